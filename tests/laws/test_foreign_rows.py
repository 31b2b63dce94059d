"""Drafts with another tokenizer on networks: every row is that of one plain pass over what the draft should have read,
whatever was accepted, in batches whose rows differ; and greedy output is the target's own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.decoding.decode import begin, decode
from specbench.decoding.drafters.chain import ModelDrafter, NoDraft
from specbench.decoding.drafters.strings import Strings
from specbench.decoding.drafters.tree import Expand, Independent, Top
from specbench.decoding.loop import Speculate
from specbench.decoding.protocols import Drafter, Reading
from specbench.decoding.randomness import Source, seeded
from specbench.decoding.tokens import ROOT, TokenTree
from specbench.decoding.types import Context, Draft
from specbench.decoding.verifiers.lossy import synthetic
from specbench.decoding.verifiers.rejection import Rejection
from specbench.decoding.views import Common
from specbench.models.checkpoints.check import NO_LIMIT
from specbench.models.checkpoints.vocabularies import Rewriter
from specbench.models.network.causal import Causal
from specbench.models.network.recurrent import Recurrent
from specbench.models.network.sampling import Sampling
from tests.support.cases import quick_or_slow
from tests.support.foreign import both, byte_level, letters
from tests.support.tiny import CPU, TOLERANCE, committed, network, path_to, plain_rows, worst

TARGET = letters(["a", "b", "ab", "aab", "<e>"], [("a", "b"), ("a", "ab")], eos="<e>")
DRAFT = letters(["<x>", "ba", "b", "a"], [("b", "a")], eos="<x>")
PAIR = both(TARGET, DRAFT)
OWN = PAIR.dictionary()
PROMPTS = [[0, 3, 1, 2], [2], [1, 1, 0, 2, 3, 0, 1]]
LAW, GREEDY = Sampling(), Sampling(temperature=0.0)
K, NEW = 3, 14


def target(law: Sampling) -> Causal:
    return Causal(network("llama", 5), law, 5)


def common(name: str, law: Sampling) -> Common:
    net = network(name, 4, seed=1)
    model: Any = Recurrent(net, law, 4, stepwise=True) if name == "mamba" else Causal(net, law, 4)
    model.known = OWN.theirs
    return Common(model, OWN, NO_LIMIT)


def told(prompt: Sequence[int], text: Sequence[int]) -> list[int]:
    """What the draft should have read of a text: its prompt by its own tokenizer, then token after token."""
    spoken = [piece for number in text[len(prompt) :] for piece in PAIR.pieces()[number]]
    return [*PAIR.prompt(prompt), *spoken]


def row_after(name: str, ids: list[int]) -> Tensor:
    """[V] by one plain pass: the law of the common tokens alone, at the target's ids."""

    def law(logits: Tensor, width: int) -> Tensor:
        return LAW(logits.index_select(-1, OWN.theirs), len(OWN.theirs))

    found = plain_rows(network(name, 4, seed=1), law, 4, [ids])[0, -1]  # type: ignore[arg-type]
    return found.new_zeros(5).index_copy(0, OWN.ours, found)


@pytest.mark.parametrize("shape", ["chain", "tree"])
@pytest.mark.parametrize(
    "name", ["llama", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gpt2", "mistral"))]
)
def test_rows_of_common_tokens_are_those_of_a_pass_without_a_cache(name: str, shape: str) -> None:
    model = common(name, LAW)
    drafter: Drafter = ModelDrafter(model, K) if shape == "chain" else Expand(model, K, [2, 2], Independent())
    lengths = {length for seed in range(0, 40, 10) for length in check_rows(name, drafter, PROMPTS, seed)}
    assert lengths >= ({0, 1, 2, 3} if shape == "chain" else {0, 1, 2})


def test_a_recurrent_draft_reads_the_same() -> None:
    for seed, prompt in enumerate(PROMPTS):
        check_rows("mamba", ModelDrafter(common("mamba", LAW), K), [prompt], seed, 1e-6)  # its scan is in float32


def check_rows(
    name: str, drafter: Drafter, prompts: list[list[int]], seed: int = 0, tolerance: float = TOLERANCE
) -> set[int]:
    """Some rounds, every row of which is compared; returns how many tokens were accepted in them. A chain is accepted
    at a rate of its own, so that all lengths come."""
    method = Speculate(drafter, target(LAW), Rejection())
    method = method if drafter.branches else synthetic(method, (0.7,))
    rng, found = seeded([seed + n for n in range(len(prompts))], CPU), set()
    for new in range(2, NEW, 3):
        context = begin(prompts, new, drafter.room, [4], CPU)
        method.start(context)
        while context.live.any():
            texts, live = committed(context), context.live.tolist()
            step = method.advance(context, None, rng)
            assert step.draft.q is not None
            back = dict(PAIR.common)
            for row, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
                for node in range(step.draft.tree.size if live[row] else 0):
                    path = path_to(step.draft.tree.parents, step.draft.tree.parents[node])
                    drafted = [back[int(step.draft.tree.ids[row, n])] for n in path if n != ROOT]
                    expected = row_after(name, told(prompt, text) + drafted)
                    assert worst(step.draft.q[row, node], expected) <= tolerance, (text, node)
            found |= set(step.round.accepted[context.live].tolist())
    return found


@dataclass(frozen=True)
class Watched(ModelDrafter):
    """Notes what it was given, and what it drafted."""

    seen: list[tuple[list[int], list[int]]] = field(default_factory=list)

    def propose(self, context: Context, budget: int | None, rng: Source, lag: int = 1) -> Draft:
        draft = super().propose(context, budget, rng, lag)
        self.seen.extend(zip(committed(context), draft.tree.ids.tolist(), strict=True))
        return draft


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral"])
def test_drafts_of_strings_are_those_of_passes_without_a_cache(name: str) -> None:
    net = network(name, 4, seed=1)
    drafter = Watched(Causal(net, GREEDY, 4), K)
    method = Speculate(Strings(drafter, Rewriter(PAIR), NO_LIMIT), target(LAW), Rejection())
    texts: list[list[int]] = []
    context = begin(PROMPTS, NEW, K, [4], CPU)
    method.start(context)
    while context.live.any():
        texts += committed(context)
        method.advance(context, NEW, seeded([1, 2, 3], CPU))
    assert len(texts) == len(drafter.seen) > 9
    for text, (read, drafted) in zip(texts, drafter.seen, strict=True):
        assert read == Rewriter(PAIR).read(text).ids
        for place, number in enumerate(drafted):
            row = plain_rows(net, GREEDY, 4, [read + drafted[:place]])[0, -1]
            assert number == int(row.argmax())


@dataclass(frozen=True)
class WatchedTree(Expand):
    """Notes what it was given, and the tree that it drafted."""

    seen: list[tuple[list[int], TokenTree]] = field(default_factory=list)

    def propose(self, context: Context, budget: int | None, rng: Source, lag: int = 1) -> Draft:
        draft = super().propose(context, budget, rng, lag)
        trees = (TokenTree(ids.unsqueeze(0), draft.tree.parents) for ids in draft.tree.ids)
        self.seen.extend(zip(committed(context), trees, strict=True))
        return draft


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral"])
def test_trees_of_strings_are_those_of_passes_without_a_cache(name: str) -> None:
    """Every node is one of the likeliest tokens after its own path, and every path is there in the target's tokens."""
    net = network(name, 4, seed=1)
    drafter = WatchedTree(Causal(net, GREEDY, 4), K, [2, 2], Top())
    method = Speculate(Strings(drafter, Rewriter(PAIR), NO_LIMIT), target(LAW), Rejection())
    context, number = begin(PROMPTS, NEW, drafter.room, [4], CPU), 0
    method.start(context)
    while context.live.any():
        texts, live = committed(context), context.live.tolist()
        left = (context.last - context.pos - 1).clamp_max(K).tolist()
        step = method.advance(context, NEW, seeded([1, 2, 3], CPU))
        for row, text in enumerate(texts):
            (read, tree), number = drafter.seen[number], number + 1
            assert read == Rewriter(PAIR).read(text).ids
            check_likeliest(net, read, tree)
            if live[row] and step.draft.tree.size:
                check_written(Rewriter(PAIR).read(text), tree, step.draft, row, left[row])
    assert number > 9


def check_likeliest(net: Any, read: list[int], tree: TokenTree) -> None:
    for node, parent in enumerate(tree.parents):
        path = [int(tree.ids[0, n]) for n in path_to(tree.parents, parent)]
        best = plain_rows(net, Sampling(), 4, [read + path])[0, -1].topk(tree.parents.count(parent)).indices.tolist()
        assert int(tree.ids[0, node]) in best


def check_written(reading: Reading, tree: TokenTree, draft: Draft, row: int, left: int) -> None:
    """What a row has in the target's tokens are all beginnings of its texts, up to `left` tokens; where there was no
    room for all of them, some."""
    assert draft.valid is not None
    there = [node for node in range(draft.tree.size) if draft.valid[row, node]]
    paths = [path_to(draft.tree.parents, node) for node in there]
    found = {tuple(int(draft.tree.ids[row, n]) for n in path) for path in paths}
    assert len(found) == len(there)  # no two children of a node have the same token
    texts = [
        Rewriter(PAIR).write(reading, [int(tree.ids[0, n]) for n in path_to(tree.parents, leaf)])
        for leaf in set(range(tree.size)) - set(tree.parents)
    ]
    expected = {tuple(text[:size]) for text in texts for size in range(1, min(len(text), left) + 1)}
    assert found == expected if draft.tree.size < tree.size else found <= expected


@pytest.mark.parametrize("rule", ["common", "strings", "strings in trees"])
@pytest.mark.parametrize("seed", quick_or_slow(range(3), lambda seed: seed == 0))
def test_greedy_output_is_the_targets_own(rule: str, seed: int) -> None:
    """Over all bytes, so that characters are left unfinished, in a batch whose rows end at different times."""
    merges = [("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("Ã", "©")], [("t", "h"), ("th", "e"), ("Ġ", "a")]
    pair = both(byte_level(merges[0]), byte_level(merges[1], eos="<s>"))
    net = network("llama", pair.target_width, seed, torch.float64)
    judge = Causal(net, GREEDY, pair.target_width)
    model = Causal(network("llama", pair.draft_width, seed + 7), GREEDY, pair.draft_width)
    texts = ["the thé a", "日本", "x"]
    prompts = [pair.target.encode(text) for text in texts]
    prompts[1] = prompts[1][:-1]  # a text may end within a character
    drafter: Drafter = Strings(ModelDrafter(model, 4), Rewriter(pair), NO_LIMIT)
    if rule == "strings in trees":
        drafter = Strings(Expand(model, 4, [2, 2], Top()), Rewriter(pair), NO_LIMIT)
    if rule == "common":
        model.known = pair.dictionary().theirs
        drafter = ModelDrafter(Common(model, pair.dictionary(), NO_LIMIT), 4)
    to: Any = {"new": 24, "eos": [int(n) for n in range(20, 24)], "device": CPU}
    expected = decode(Speculate(NoDraft(), judge, Rejection()), prompts, rng=seeded([0] * 3, CPU), **to)
    found = decode(Speculate(drafter, judge, Rejection()), prompts, rng=seeded([0] * 3, CPU), **to)
    assert [trace.tokens for trace in found] == [trace.tokens for trace in expected]
    assert sum(one.drafted for trace in found for one in trace.rounds) > 20
