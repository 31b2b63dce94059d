"""Heads that feed themselves, in the loop: their rows are those of a pass over everything, whatever was taken back."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, MistralConfig, MistralForCausalLM

from specbench.decoding.decode import decode
from specbench.decoding.drafters.chain import ModelDrafter
from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import seeded
from specbench.decoding.tokens import ROOT, TokenTree
from specbench.decoding.types import Context
from specbench.decoding.verifiers.rejection import Rejection
from specbench.models.heads.build import joined
from specbench.models.heads.recursive import Recursive
from specbench.models.heads.taps import Tapped, Taps
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from tests.support.head_passes import module_of
from tests.support.heads import write_head
from tests.support.random_histories import HISTORIES, RAGGED, Chance, accept_and_append
from tests.support.tiny import (
    CPU,
    TOLERANCE,
    committed,
    context_of,
    difference,
    enumerate_law,
    in_double,
    network,
    oracle_law,
    path_to,
    worst,
)

K = 3
LAW = Sampling()
kinds = pytest.mark.parametrize(("kind", "switches"), [
    ("eagle1", {}), ("eagle3", {"aux": (0, 1, 2)}), ("eagle3", {"aux": (0, 1), "vocab": 3})],
    ids=["EAGLE-1", "EAGLE-3", "EAGLE-3 of some tokens"])  # fmt: skip


def head_of(folder: Path, net: Any, kind: str, **switches: Any) -> Any:
    """A random head of the target `net`, in its dtype."""
    return module_of(write_head(folder / kind, kind, net.config, dtype=torch.float64, **switches), net)


def models_of(net: Any, head: Any, depth: int = K) -> tuple[Causal, Recursive]:
    width = net.config.vocab_size
    return joined(Causal(net, LAW, width), head, depth)


def features(net: Any, head: Any, ids: Tensor) -> Tensor:
    """[1, n, A · H] by transformers' own record of hidden states, whose last entry is normed."""
    return torch.cat([hidden(net, ids)[tap] for tap in head.taps], -1)


def hidden(net: Any, ids: Tensor) -> dict[int | str, Tensor]:
    """The hidden rows of all boundaries; the one after the last layer is what goes into the norm."""
    raw: list[Tensor] = []
    last_norm = net.get_decoder().norm if hasattr(net.get_decoder(), "norm") else net.get_decoder().ln_f
    hook = last_norm.register_forward_pre_hook(lambda _, given: raw.append(given[0]))
    found = net(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
    hook.remove()
    return {**dict(enumerate(found)), len(found) - 1: raw[0], "z": found[-1]}


@torch.no_grad()
def plain_row(net: Any, head: Any, text: list[int], drafted: list[int]) -> Tensor:
    """[V] the law after a text and drafted tokens: no cache, every pair of the text anew, one more for each draft."""
    tokens = torch.tensor([text[1:]])
    states = head.enter(features(net, head, torch.tensor([text]))[:, :-1])
    for n in range(len(drafted) + 1):
        length = tokens.shape[1]
        mask = torch.full((length, length), -torch.inf, dtype=states.dtype).triu(1)[None, None]
        logits, out = head(tokens, states, torch.arange(length)[None], mask, None)
        if n < len(drafted):
            tokens = torch.cat([tokens, torch.tensor([[drafted[n]]])], 1)
            states = torch.cat([states, out[:, -1:]], 1)
    law: Tensor = LAW(logits[:, -1:].nan_to_num(neginf=-1e30), net.config.vocab_size)[0, 0]
    return law


def rows_apart(net: Any, head: Any, context: Context, tree: TokenTree, found: Tensor) -> float:
    """How far rows [B, n, V], of what the last token and every node but the last are followed by, are from plain ones;
    a text of one token, which has no pair, is left out."""
    error = 0.0
    for text, ids, rows in zip(committed(context), tree.ids.tolist(), found, strict=True):
        for node, row in zip(range(ROOT, tree.size - 1), rows, strict=True):
            drafted = [ids[one] for one in path_to(tree.parents, node)]
            error = max(error, worst(row, plain_row(net, head, text, drafted)) if len(text) > 1 else 0.0)
    return error


@pytest.mark.parametrize("outer", [pytest.param(0, marks=pytest.mark.slow), 2])
@kinds
def test_rows_along_chains_do_not_depend_on_what_was_drafted_before(
    kind: str, switches: dict[str, Any], outer: int, tmp_path: Path
) -> None:
    net, chance, error, rounds = network("llama", vocab=5), Chance(7), 0.0, 6
    head = head_of(tmp_path, net, kind, **switches)
    target, draft = models_of(net, head)
    context = context_of(HISTORIES, (K + 1 + outer) * rounds, K)
    target.start(context)
    draft.start(context)
    rng = seeded(range(context.rows), CPU)
    for number in range(rounds):
        if outer:  # tokens that somebody else has committed: the target is fed them before anything is drafted
            target.probs(context, TokenTree.chain(context.seq[:, :0]), outer)
        ids, q = draft.sample(context, K, rng, outer + 1)
        tree = TokenTree.chain(ids)
        error = max(error, rows_apart(net, head, context, tree, q))
        target.probs(context, tree, outer)
        accept_and_append(target, context, tree, chance, number, outer, net.config.vocab_size)
    assert error <= TOLERANCE


TREE = (ROOT, ROOT, 0, 0, 1, 2, 4)


@kinds
def test_rows_of_trees_do_not_depend_on_what_was_drafted_before(
    kind: str, switches: dict[str, Any], tmp_path: Path
) -> None:
    net, chance, error, rounds = network("llama", vocab=5), Chance(11), 0.0, 5
    head = head_of(tmp_path, net, kind, **switches)
    target, draft = models_of(net, head)
    context = context_of(HISTORIES, 4 * rounds, len(TREE))
    target.start(context)
    draft.start(context)
    for number in range(rounds):
        tree = TokenTree(chance.below(5, (context.rows, len(TREE))), TREE)
        none = TokenTree(tree.ids[:, :0], ())
        rows = [draft.expand(context, none, 0, 1)]
        for first, last in ((0, 2), (2, 5)):  # level by level
            rows.append(draft.expand(context, TokenTree(tree.ids[:, :last], TREE[:last]), last - first))
        grown = TokenTree(tree.ids[:, :6], TREE[:6])
        error = max(error, rows_apart(net, head, context, grown, torch.cat(rows, 1)))
        target.probs(context, tree)
        accept_and_append(target, context, tree, chance, number, 0, 5)
    assert error <= TOLERANCE


@kinds
def test_the_law_of_a_decode_is_that_of_the_target_alone(kind: str, switches: dict[str, Any], tmp_path: Path) -> None:
    net = network("llama", vocab=5 if "vocab" in switches else 3)
    target, draft = models_of(net, head_of(tmp_path, net, kind, **switches), depth=2)
    method = Speculate(ModelDrafter(draft, 2), target, Rejection())
    new = 3 if net.config.vocab_size == 3 else 2
    for prompts, together in ((RAGGED[:1], False), (RAGGED, True)):
        found = enumerate_law(method, prompts, new, (1,), together)
        expected = [oracle_law(net, LAW, net.config.vocab_size, prompt, new, (1,)) for prompt in prompts]
        assert max(map(difference, found.law, expected)) <= TOLERANCE


@pytest.mark.parametrize("prompts", [([1], [2]), ([1, 2], [2, 0])], ids=["no pair", "one pair"])
def test_a_prompt_takes_the_place_of_another_before_anything_was_drafted(prompts: Any, tmp_path: Path) -> None:
    """As where texts have one token to go, which is never a draft."""
    net = network("llama", vocab=5)
    head = head_of(tmp_path, net, "eagle1")
    target, draft = models_of(net, head)
    context = context_of(prompts, 8, K)
    target.start(context)
    draft.start(context)
    context.seq[1, :4], context.pos[1] = torch.tensor([1, 0, 2, 1]), 3  # longer than those before it
    target.admit(context, 1)
    draft.admit(context, 1)
    target.probs(context, TokenTree.chain(context.seq[:, :0]))
    context.seq.scatter_(1, context.pos.unsqueeze(1) + 1, torch.tensor([[3], [4]]))
    context.pos += 1
    ids, q = draft.sample(context, K, seeded([0, 1], CPU))
    assert rows_apart(net, head, context, TokenTree.chain(ids), q) <= TOLERANCE


@torch.no_grad()
@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral"])
def test_hidden_rows_are_those_of_transformers_also_after_a_tree_was_accepted(name: str) -> None:
    net, chance = network(name, vocab=5), Chance(3)
    depth = net.config.get_text_config(decoder=True).num_hidden_layers
    tapped = Tapped(net, (0, 1, depth, "z"))
    judge = Causal(tapped, LAW, 5)
    taps, context = Taps(judge, tapped), context_of(HISTORIES, 20, 7)
    judge.start(context)
    for number in range(4):
        tree = chance.tree(context.rows, 5)
        judge.probs(context, tree)
        accept_and_append(judge, context, tree, chance, number, 0, 5)
    for row, text in enumerate(committed(context)):
        slots = torch.arange(len(text) - 1)[None]
        states = hidden(net, torch.tensor([text]))
        expected = torch.cat([states[0], states[1], states[depth], states["z"]], -1)[:, :-1]
        assert worst(taps.at(slots, row), expected) <= 1e-11


class Knowing(torch.nn.Module):
    """A head that knows the law of a target of one layer whose tokens see themselves and the one before: it reads the
    embedding of the latter, and gives out that of its token. late: of one position too early."""

    taps, width, steps = (0,), 32, None
    at_once = False

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net, self.dtype, self.width = net, net.dtype, net.config.hidden_size
        self.config = LlamaConfig(num_hidden_layers=0, vocab_size=net.config.vocab_size)

    def enter(self, features: Tensor) -> Tensor:
        return features

    def forward(self, ids: Tensor, states: Tensor, *rest: Any, keep: int = 0) -> tuple[Tensor, Tensor]:
        embedded = self.net.get_input_embeddings()(ids)
        both = torch.stack([states, embedded], 2).flatten(0, 1)
        logits = self.net(inputs_embeds=both, use_cache=False).logits[:, -1].view(*ids.shape, -1)
        return logits[:, -keep:], embedded


class Late(Knowing):
    """The same, reading the row of one position before."""

    def enter(self, features: Tensor) -> Tensor:
        return features.roll(1, 1)


def accepted(kind: type[Knowing], net: Any) -> float:
    """Which share of all drafts is accepted."""
    target, draft = models_of(net, kind(net))
    method = Speculate(ModelDrafter(draft, K), target, Rejection())
    (trace,) = decode(method, [[1, 2, 0, 3]], new=200, eos=(), rng=seeded([0], CPU), device=CPU)
    tested = sum(done.tested for done in trace.rounds)
    return sum(done.accepted for done in trace.rounds) / tested


def test_all_drafts_of_a_head_that_knows_the_target_are_accepted_and_fewer_where_it_reads_one_place_off() -> None:
    config = MistralConfig(vocab_size=5, hidden_size=32, intermediate_size=48, num_hidden_layers=1, sliding_window=2,
                           num_attention_heads=2, num_key_value_heads=2, eos_token_id=None)  # fmt: skip
    torch.manual_seed(0)
    net = in_double(MistralForCausalLM(config).double())
    for weight in net.parameters():
        weight.data = torch.randn_like(weight) * 0.4 if weight.ndim > 1 else weight.data
    assert accepted(Knowing, net) == 1.0
    assert accepted(Late, net) < 0.9
