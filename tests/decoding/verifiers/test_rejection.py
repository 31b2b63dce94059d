"""A chain is judged and committed by fewer operators than a tree, and to the same result."""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.decoding import loop
from specbench.decoding.decode import begin
from specbench.decoding.randomness import FromUniforms, Stream, race
from specbench.decoding.tokens import TokenTree, topology
from specbench.decoding.types import Context, Draft, Round, Verdict
from specbench.decoding.verifiers import rejection
from specbench.decoding.verifiers.rejection import Rejection, TokenMatch, Walk
from tests.support.toys import CPU

ROWS, VOCAB, NEW, END = 64, 5, 9, 3
RULES = [Rejection(), TokenMatch()]


def rows(random: torch.Generator, *shape: int, dtype: torch.dtype) -> Tensor:
    """Distributions with zeros among them."""
    scores = torch.randn((*shape, VOCAB), generator=random, dtype=dtype)
    unlikely = scores < scores.amax(-1, keepdim=True).clamp_max(-1)
    return (3 * scores).masked_fill(unlikely, -torch.inf).softmax(-1)


def drafted(seed: int, length: int, dtype: torch.dtype) -> tuple[Tensor, Draft]:
    """Rows and chains of all kinds: shorter ones, of p = q, and with tokens that have no chance under q."""
    random = torch.Generator().manual_seed(seed)
    p, q = rows(random, ROWS, length + 1, dtype=dtype), rows(random, ROWS, length, dtype=dtype)
    q[: ROWS // 4] = p[: ROWS // 4, :-1]
    ids = torch.randint(VOCAB, (ROWS, length), generator=random)
    lengths = torch.randint(length + 1, (ROWS, 1), generator=random)
    valid = torch.arange(length) < lengths if seed % 2 else None
    return p, Draft(TokenTree.chain(ids), None if seed % 3 == 0 else q, valid)


def decided(rule: Any, p: Tensor, draft: Draft, seed: int) -> tuple[Verdict, Context, Round]:
    """The verdict on a draft, and what is committed of it after a prompt, where some rows end."""
    random = torch.Generator().manual_seed(seed)

    def uniforms(shape: tuple[int, ...], stream: Stream) -> Tensor:
        return torch.rand(shape, generator=random, dtype=torch.float64)

    verdict: Verdict = rule.judge(p, draft, FromUniforms(uniforms))
    context = begin([[1, 2]] * ROWS, NEW, draft.tree.size, [END], CPU)
    context.last -= torch.arange(ROWS) % NEW
    context.live &= torch.arange(ROWS) % 7 > 0
    return verdict, context, loop.commit(context, draft, verdict)


@pytest.fixture
def as_a_tree() -> Iterator[pytest.MonkeyPatch]:
    """Lets `general` judge chains by the code for trees."""
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def general(patch: pytest.MonkeyPatch) -> None:
    def overlap(tested: Any) -> Tensor:
        (x,) = tested
        return F.pad(torch.minimum(x.p, x.q).sum(-1) * x.valid, (0, 1))

    patch.setattr(TokenTree, "topology", property(lambda tree: replace(topology(tree.parents), is_chain=False)))
    patch.setattr(Walk, "is_chain", property(lambda walked: False))
    patch.setattr(rejection, "overlap", overlap)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_chain_ends_as_a_tree_of_the_same_nodes_does(
    rule: Any, length: int, dtype: torch.dtype, as_a_tree: pytest.MonkeyPatch
) -> None:
    given = [(seed, *drafted(seed, length, dtype)) for seed in range(6)]
    found = [decided(rule, p, draft, seed) for seed, p, draft in given]
    general(as_a_tree)
    for (seed, p, draft), (verdict, context, done) in zip(given, found, strict=True):
        known, after, counts = decided(rule, p, draft, seed)
        for name in ("path", "accepted", "token", "overlap"):
            assert torch.equal(getattr(verdict, name), getattr(known, name)), name
        for name in ("pos", "live"):
            assert torch.equal(getattr(context, name), getattr(after, name)), name
        committed = torch.arange(context.seq.shape[1]) <= context.pos.unsqueeze(1)
        assert torch.equal(context.seq * committed, after.seq * committed)
        for one in fields(Round):
            mine, other = getattr(done, one.name), getattr(counts, one.name)
            assert torch.equal(mine, other) if isinstance(mine, Tensor) else mine == other, one.name


def test_a_race_is_won_by_the_clock_that_rings_first() -> None:
    random = torch.Generator().manual_seed(0)
    probs, u = rows(random, 2000, dtype=torch.float32), torch.rand((2000, VOCAB), generator=random, dtype=torch.float64)
    u[:50, 0] = 0.0
    rings = (-torch.log1p(-u)).clamp_min(torch.finfo(torch.float64).tiny)
    won = race(probs, u)
    assert torch.equal(won, (probs.double() / rings).argmax(-1))
    assert (probs.gather(-1, won.unsqueeze(-1)) > 0).all()
