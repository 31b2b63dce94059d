"""A network over few keys of its own cache: which keys, and that its rows are those of attention to them alone."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface

from specbench.decoding.decode import decode
from specbench.decoding.drafters.chain import ModelDrafter
from specbench.decoding.drafters.tree import Expand
from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import seeded
from specbench.decoding.tokens import TokenTree
from specbench.decoding.verifiers.rejection import Rejection
from specbench.decoding.views import Retrieval
from specbench.errors import UsageError
from specbench.models.network import retrieved
from specbench.models.network.attention import NAME, queries
from specbench.models.network.causal import Causal
from specbench.models.network.retrieved import Retrieved, best_chunks
from specbench.models.network.sampling import Sampling
from tests.support.random_histories import Chance, accept
from tests.support.rows import select
from tests.support.tiny import CPU, TOLERANCE, committed, context_of, network, tree_rows, worst
from tests.support.toys import Toy

V, CHUNK = 5, 2
NAMES = ("llama", "gpt2", "opt", "neox", "qwen3")
HISTORIES = ([2], [0, 1, 2, 2, 4, 3, 1, 0, 2, 3, 3, 1, 4, 4, 0, 1, 2], [1, 0, 0, 2, 1, 0, 4, 4])


def target_of(name: str, law: Sampling | None = None) -> Causal:
    return Causal(network(name, V), law or Sampling(), V)


# --- which keys -------------------------------------------------------------------------------------------------------


def best_by_hand(query: Tensor, keys: Tensor, whole: int, most: int) -> list[set[int]]:
    """For every key head of one row: the first chunk, and those with the highest scores."""
    heads, groups, found = keys.shape[0], query.shape[0] // keys.shape[0], []
    for head in range(heads):
        scores = []
        for chunk in range(1, whole):
            mean = sum(keys[head, chunk * CHUNK + i] for i in range(CHUNK)) / CHUNK
            scores.append((sum(float(query[head * groups + g] @ mean) for g in range(groups)), chunk))
        best = [chunk for _, chunk in sorted(scores, reverse=True)[: most - 1]]
        found.append({0, *best} if whole else set())
    return found


@pytest.mark.parametrize(("heads", "key_heads", "most"), [(4, 2, 3), (4, 4, 1), (6, 2, 9), (2, 1, 2)])
def test_the_chunks_are_those_of_the_definition(heads: int, key_heads: int, most: int) -> None:
    generator = torch.Generator().manual_seed(heads)
    query = torch.randn((4, heads, 3), generator=generator, dtype=torch.float64)
    keys = torch.randn((4, key_heads, 13, 3), generator=generator, dtype=torch.float64)
    whole = torch.tensor([0, 1, 4, 6])
    keys[2, :, 8:] = torch.nan  # what lies behind the text
    found = best_chunks(query, keys, whole, CHUNK, most)
    assert found.shape == (4, key_heads, most)
    for row, chunks in enumerate(whole.tolist()):
        meant = found[row, :, : min(chunks, most)].tolist()
        assert [set(head) for head in meant] == best_by_hand(query[row], keys[row], chunks, most)


def test_the_queries_are_those_of_the_last_committed_token() -> None:
    target, context = target_of("llama"), context_of(HISTORIES, 8, 2)
    target.start(context)
    found = target.queries(context)
    assert [query.shape for query in found] == [(3, 4, 4)] * 2
    for row, text in enumerate(HISTORIES):
        with queries() as seen, torch.no_grad():
            network("llama", V)(input_ids=torch.tensor([text]), use_cache=False)
        for one, other in zip(found, seen, strict=True):
            assert worst(one[row], other[0, :, -1]) <= TOLERANCE


# --- the rows ---------------------------------------------------------------------------------------------------------


class Reference:
    """The same rows without a cache: one pass over the whole text in which every layer and head sees what it should.

    The keys before `floor` are those of the full model, so what is seen of them is hidden from nothing but the later
    queries. Chunks are chosen by the definition above, from the full model's own queries and keys.
    """

    def __init__(self, name: str, budget: int) -> None:
        self.net, self.most = network(name, V), budget // CHUNK
        self.floor, self.chosen = 0, []

    def choose(self, text: list[int]) -> None:
        """After the committed `text`, whose last token has no key yet."""
        self.floor, self.chosen = len(text) - 1, []
        for query, key in zip(*self._states(text), strict=True):
            self.chosen.append(best_by_hand(query[0, :, -1], key[0], self.floor // CHUNK, self.most))

    def _states(self, text: list[int]) -> tuple[list[Tensor], list[Tensor]]:
        keys: list[Tensor] = []

        def noting(module: Any, query: Tensor, key: Tensor, *rest: Any, **named: Any) -> Any:
            keys.append(key)
            return self._plain(query, key, *rest[:1], scale=named.get("scaling"))

        with queries_of(noting) as seen:
            self.net(input_ids=torch.tensor([text]), use_cache=False)
        return seen, keys

    def _plain(
        self, query: Tensor, key: Tensor, value: Tensor, seen: Tensor | None = None, scale: float | None = None
    ) -> tuple[Tensor, None]:
        groups, length = query.shape[1] // key.shape[1], query.shape[2]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        seen = torch.ones(length, length).tril().bool() if seen is None else seen
        return F.scaled_dot_product_attention(query, key, value, attn_mask=seen, scale=scale).transpose(1, 2), None

    def row(self, text: list[int]) -> Tensor:
        """[V] after the whole text, drafted tokens included."""
        layer = iter(range(len(self.chosen)))

        def few(module: Any, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **named: Any) -> Any:
            seen = self._mask(self.chosen[next(layer)], query.shape)
            return self._plain(query, key, value, seen, named.get("scaling"))

        with queries_of(few):
            logits = self.net(input_ids=torch.tensor([text]), use_cache=False).logits
        return Sampling()(logits[0, -1:], V)[0]

    def _mask(self, chosen: list[set[int]], shape: torch.Size) -> Tensor:
        heads, length = shape[1], shape[2]
        seen = torch.ones(heads, length, length).tril().bool()
        behind = self.floor // CHUNK * CHUNK  # the tail begins here
        for head in range(heads):
            kept = chosen[head * len(chosen) // heads]
            for place in range(behind):
                seen[head, self.floor :, place] &= place // CHUNK in kept
        return seen.unsqueeze(0)


class queries_of:  # noqa: N801, a context manager
    """Calls `function` in the place of our attention; gives the queries of every layer."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __enter__(self) -> list[Tensor]:
        self.seen: list[Tensor] = []
        self.before = AttentionInterface()[NAME]

        def noting(module: Any, query: Tensor, *rest: Any, **named: Any) -> Any:
            self.seen.append(query)
            return self.function(module, query, *rest, **named)

        self.grad = torch.no_grad()
        self.grad.__enter__()
        AttentionInterface.register(NAME, noting)
        return self.seen

    def __exit__(self, *error: Any) -> None:
        AttentionInterface.register(NAME, self.before)
        self.grad.__exit__(*error)


def error(name: str, budget: int, tail: int, k: int = 2, rounds: int = 7, refeed: int = 1) -> float:
    """Worst error of the rows while chains are drafted by the few keys and accepted at random by nobody's law."""
    target, chance, found = target_of(name), Chance(3), 0.0
    model = Retrieval(target, budget, CHUNK, tail)
    context = context_of(HISTORIES, (k + 1) * rounds, k)
    target.start(context)
    model.start(context)
    references = [Reference(name, budget) for _ in HISTORIES]
    for reference, text in zip(references, committed(context), strict=True):
        reference.choose(text)
    for number in range(rounds):
        texts = committed(context)
        for reference, text in zip(references, texts, strict=True):
            if len(text) - 1 - reference.floor >= tail:
                reference.choose(text)
        ids, q = model.sample(context, k, seeded(range(3), CPU), refeed)
        expected = torch.stack([torch.stack([r.row(text + drafted[:i]) for i in range(k)])
                                for r, text, drafted in zip(references, texts, ids.tolist(), strict=True)])  # fmt: skip
        found = max(found, worst(q, expected))
        tree = TokenTree.chain(ids)
        target.probs(context, tree)
        accept(context, tree, chance, number % 3 == 1, V)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_those_of_attention_to_the_chosen_chunks(name: str) -> None:
    assert error(name, 6, 5) <= TOLERANCE
    assert error(name, 4, 2, refeed=3) <= TOLERANCE


def test_other_chunks_give_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieved, "best_chunks", lambda q, keys, whole, chunk, most: torch.arange(most).expand(
        (*keys.shape[:2], most)))  # fmt: skip
    assert error("llama", 6, 5) > 1e-4


def test_keys_that_miss_new_tokens_give_other_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Retrieved, "tail", property(lambda self: 40, lambda self, value: None), raising=False)
    assert error("llama", 4, 5, rounds=12) > 1e-4


@pytest.mark.parametrize("name", NAMES)
def test_with_a_budget_for_the_whole_text_rows_are_the_targets(name: str) -> None:
    target, chance = target_of(name), Chance(5)
    model, context = Retrieval(target, 80, 4, 6), context_of(HISTORIES, 40, 7)
    target.start(context)
    model.start(context)
    for number in range(10):
        tree = chance.tree(3, V) if number % 2 else TokenTree.chain(chance.below(V, (3, 3)))
        expected = tree_rows(network(name, V), Sampling(), V, context, tree)
        assert worst(target.probs(context, tree), expected) <= TOLERANCE
        assert worst(model.probs(context, tree, refeed=1), expected) <= TOLERANCE
        verdict, start = accept(context, tree, chance, number % 3 == 1, V)
        target.settle(start, tree, verdict)
        model.settle(start, tree, verdict)


def test_more_than_was_expected_can_be_drafted() -> None:
    target, context = target_of("llama"), context_of(HISTORIES, 120, 100)
    model, tree = Retrieval(target, 40, 4, 6), TokenTree.chain(Chance(1).below(V, (3, 100)))
    target.start(context)
    model.start(context)
    assert (
        worst(model.probs(context, tree, 1), tree_rows(network("llama", V), Sampling(), V, context, tree)) <= TOLERANCE
    )


@pytest.mark.parametrize("law", [Sampling(0.0), Sampling(1.0)], ids=["greedy", "sampled"])
def test_a_decode_is_the_targets_and_rows_do_not_disturb_each_other(law: Sampling) -> None:
    def run(budget: int, prompts: Any, seeds: list[int], tree: bool = False) -> list[tuple[int, ...]]:
        target = target_of("llama", law)
        model = Retrieval(target, budget, CHUNK, 6)
        drafter = Expand(model, 2, [2]) if tree else ModelDrafter(model, 3)
        method = Speculate(drafter, target, Rejection())
        found = decode(method, prompts, new=40, eos=(), rng=seeded(seeds, CPU), device=CPU)
        if budget == 64:
            assert all(r.accepted == r.usable for trace in found for r in trace.rounds)
        return [trace.tokens for trace in found]

    together = run(4, HISTORIES, [1, 2, 3])
    assert together == [run(4, [prompt], [seed])[0] for seed, prompt in enumerate(HISTORIES, 1)]
    whole = run(64, HISTORIES, [1, 2, 3])
    if law == Sampling(0.0):
        assert together == whole == run(4, HISTORIES, [1, 2, 3], tree=True)


def test_a_row_can_be_admitted_and_rows_can_be_chosen() -> None:
    target, context = target_of("llama"), context_of(HISTORIES, 30, 3)
    model = Retrieval(target, 6, CHUNK, 8)
    target.start(context)
    model.start(context)
    text = [4, 3, 3, 2, 0, 1, 1, 2, 4]
    context.seq[0, : len(text)], context.pos[0] = torch.tensor(text), len(text) - 1
    context.last[0] = len(text) + 10
    target.admit(context, 0)
    model.admit(context, 0)
    rows = torch.tensor([2, 0])
    picked = context.select(rows)
    select([target, model], rows)
    tree = TokenTree.chain(Chance(2).below(V, (2, 3)))
    found = model.probs(picked, tree, 1)
    for row, prompt in enumerate((HISTORIES[2], text)):
        alone, one = target_of("llama"), context_of([prompt], 30, 3)
        fresh = Retrieval(alone, 6, CHUNK, 8)
        alone.start(one)
        fresh.start(one)
        assert worst(found[row], fresh.probs(one, TokenTree(tree.ids[row : row + 1], tree.parents), 1)[0]) <= TOLERANCE


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "why"), [("gemma2", r"\(eager\) shows no queries"), ("mistral", "a window"), ("gemma3", "a window")]
)
def test_a_network_that_cannot_is_refused_in_one_line(name: str, why: str) -> None:
    context = context_of(HISTORIES, 4, 2)
    target = target_of(name)
    target.start(context)
    with pytest.raises(UsageError, match=f"^[A-Za-z0-9]+: no keys can be retrieved, .*{why}: use a method") as refusal:
        Retrieval(target, 4, 2).start(context)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((4, 0), "chunk: expected 1 to budget = 4 tokens, found 0"),
        ((4, 8), "chunk: expected 1 to budget = 4 tokens, found 8"),
        ((4, 2, 0), "tail: expected at least 1 token, found 0"),
    ],
)
def test_numbers_without_meaning_are_refused(numbers: tuple[int, ...], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}$"):
        Retrieval(Toy(torch.ones(1, 1)), *numbers)
