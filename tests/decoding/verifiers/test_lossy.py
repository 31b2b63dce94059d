"""Lossy verifiers: the distance they report is the distance they have, and without a reason for it there is none."""

from collections.abc import Sequence
from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor

from specbench.decoding import loop
from specbench.decoding.drafters.tree import Expand, Merge, Top
from specbench.decoding.loop import Speculate
from specbench.decoding.protocols import Verifier
from specbench.decoding.randomness import FromUniforms, Stream
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Draft, Verdict
from specbench.decoding.verifiers.lossy import Lenient, Relaxed, Typical
from specbench.decoding.verifiers.rejection import Rejection
from specbench.models.network.sampling import Sampling
from tests.laws.mutants import Mutant, catches, mutants
from tests.support.frontdoor import Command
from tests.support.laws import EXACT, Outcomes, block_error, one_round
from tests.support.toys import KINDS, PROMPT, Stopping, Toy, Tree, chain, nodes, numbers, random_pair

LOSSY = [Lenient(0.5), Lenient(0.1), Typical(), Typical(0.5, 1.0), Relaxed(3, 0.9)]
lossy = pytest.mark.parametrize("verifier", LOSSY, ids=str)
SHAPES = [("chain", (1,)), ("chain", (1, 1)), ("chain", (1, 1, 1)), ("ragged", (1, 1, 1)), ("points", (1, 1)),
          ("tree", (2,)), ("tree", (3, 2)), ("tree", (2, 2, 1)), ("ragged tree", (2, 2))]  # fmt: skip
shapes = pytest.mark.parametrize(("shape", "widths"), SHAPES)


def method(shape: str, widths: tuple[int, ...], p: Tensor, q: Tensor, verifier: Verifier) -> Speculate:
    kind = Stopping if "ragged" in shape else Tree
    drafter = kind((Toy(q),), widths, "top" if "tree" in shape or shape == "points" else "iid")
    return Speculate(drafter, Toy(p), verifier)


# --- the distance -----------------------------------------------------------------------------------------------------


def check_every_level(outcomes: Outcomes, p: Tensor) -> list[float]:
    """Compare what is reported with what is found at every level after every text; → the distances found."""
    vocab, found = p.shape[1], []
    context, verdict = outcomes.context, outcomes.step.verdict
    assert verdict.distance is not None
    for level in range(verdict.path.shape[1] + 1):
        there = verdict.accepted >= level
        assert (verdict.distance[~there, level] == 0).all()
        before = context.select(torch.arange(len(there)))
        before.pos = torch.full_like(context.pos, len(PROMPT) - 1 + level)
        text, token = numbers(before, vocab, nodes(vocab, 9)), context.seq[:, len(PROMPT) + level]
        for number in text[there].unique().tolist():
            here = there & (text == number)
            law = torch.zeros(vocab, dtype=torch.float64).index_add_(0, token[here], outcomes.weight[here])
            if law.sum() > 1e-200:  # chances of less have lost their digits
                found.append(float((law / law.sum() - p[number]).abs().sum() / 2))
                assert (verdict.distance[here, level] - found[-1]).abs().max() <= EXACT
    return found


@lossy
@shapes
def test_what_it_reports_is_how_far_the_law_of_every_token_is_off(
    shape: str, widths: tuple[int, ...], verifier: Verifier
) -> None:
    found: list[float] = []
    for seed in range(len(KINDS)):
        p, q = random_pair(seed, 3, len(widths) + 1)
        outcomes = one_round(method(shape, widths, p, q, verifier), [PROMPT], len(PROMPT) + len(widths) + 1)
        found += check_every_level(outcomes, p)
    assert max(found) > 0.1


@lossy
def test_so_it_does_of_several_drafters_of_point_masses(verifier: Verifier) -> None:
    """Their tree has siblings that are the same token."""
    for seed in range(len(KINDS)):
        p, q = random_pair(seed, 3, 3)
        merge = Merge([Expand(Toy(q), 2, (2,), Top()), Expand(Toy(q.roll(1, 0)), 2, (1, 2), Top())])
        assert not merge.drawn
        check_every_level(one_round(Speculate(merge, Toy(p), verifier), [PROMPT], len(PROMPT) + 3), p)


@lossy
@shapes
def test_overlap_is_the_chance_that_a_level_is_accepted(
    shape: str, widths: tuple[int, ...], verifier: Verifier
) -> None:
    for seed in range(len(KINDS)):
        p, q = random_pair(seed, 3, len(widths) + 1)
        outcomes = one_round(method(shape, widths, p, q, verifier), [PROMPT], len(PROMPT) + len(widths) + 1)
        verdict = outcomes.step.verdict
        assert torch.allclose(outcomes.mean(verdict.overlap), outcomes.mean(verdict.path >= 0), rtol=0, atol=EXACT)


def test_lenience_accepts_what_the_paper_says_and_no_token_too_often() -> None:
    for seed, lenience in product(range(len(KINDS)), (0.1, 0.5, 0.9)):
        p, q = random_pair(seed, 4, 2)
        outcomes = one_round(chain(p, q, 1, Lenient(lenience)), [PROMPT], 3)
        law = torch.zeros(4, dtype=torch.float64)
        law.index_add_(0, outcomes.context.seq[:, 1], outcomes.weight)
        assert (law <= p[1] / lenience + EXACT).all()
        alpha = torch.minimum(p[1] / lenience, q[1]).sum()
        assert float(outcomes.mean(outcomes.step.verdict.accepted)) == pytest.approx(float(alpha), abs=EXACT)


@lossy
def test_an_empty_draft_is_a_token_of_the_model(verifier: Verifier) -> None:
    p, q = random_pair(0, 3, 3)
    outcomes = one_round(chain(p, q, 2, verifier), [PROMPT], 4, budget=0)
    assert torch.equal(outcomes.step.verdict.distance, torch.zeros((3, 1), dtype=torch.float64))
    assert torch.equal(outcomes.weight, p[1])


@lossy
def test_tokens_behind_the_end_of_a_sequence_have_no_distance(verifier: Verifier) -> None:
    p, q = random_pair(0, 3, 4)
    step = one_round(chain(p, q, 3, verifier), [PROMPT], len(PROMPT) + 4, eos=(2,)).step
    assert step.verdict.distance is not None
    rows = list(zip(step.verdict.distance.tolist(), step.round.emitted.tolist(), strict=True))
    assert any(sum(levels[emitted:]) > 0.1 for levels, emitted in rows)
    assert step.round.distance.tolist() == pytest.approx([sum(levels[:emitted]) for levels, emitted in rows], abs=EXACT)


MUTANTS: dict[str, Mutant] = {
    "distance behind the end counted": (
        *(loop.distance, " * (levels < emitted.unsqueeze(1))", ""),
        partial(test_tokens_behind_the_end_of_a_sequence_have_no_distance, Lenient(0.5)),
    ),
    "no distance of the last token": (
        *(loop.distance, "levels < emitted", "levels + 1 < emitted"),
        partial(test_tokens_behind_the_end_of_a_sequence_have_no_distance, Lenient(0.5)),
    ),
}


@mutants(MUTANTS)
def test_a_wrong_sum_of_distances_is_caught(mutant: Mutant) -> None:
    catches(*mutant)


# --- where there is none ----------------------------------------------------------------------------------------------


@lossy
@shapes
def test_at_temperature_0_it_is_exact(shape: str, widths: tuple[int, ...], verifier: Verifier) -> None:
    for seed in range(len(KINDS)):
        p, q = random_pair(seed, 3, len(widths) + 1)
        p = Sampling(0)(p.log(), 3)
        greedy = method(shape, widths, p, q, verifier)
        assert block_error(greedy, p, len(widths) + 1) <= EXACT, seed
        distance = one_round(greedy, [PROMPT], len(PROMPT) + len(widths) + 1).step.verdict.distance
        assert distance is not None
        assert distance.max() <= EXACT


def judged(verifier: Verifier, p: Tensor, draft: Draft) -> Verdict:
    generator = torch.Generator().manual_seed(7)

    def uniforms(shape: tuple[int, ...], stream: Stream) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    return verifier.judge(p, draft, FromUniforms(uniforms))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("parents", [(-1, 0, 1), (-1, -1, 0, 0, 1, 2)], ids=["chain", "tree"])
def test_lenience_1_is_rejection_bit_for_bit(parents: tuple[int, ...], dtype: torch.dtype) -> None:
    rng, rows, n = torch.Generator().manual_seed(0), 30_000, len(parents)
    p, q = (torch.rand((rows, m, 9), generator=rng, dtype=dtype).pow(3) for m in (n + 1, n))
    p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
    ids = torch.stack([torch.randperm(9, generator=rng)[:n] for _ in range(rows)])
    valid = torch.arange(n) < torch.randint(n + 1, (rows, 1), generator=rng)
    draft = Draft(TokenTree(ids, parents), q if parents == (-1, 0, 1) else None, valid)
    one, other = (judged(verifier, p, draft) for verifier in (Lenient(1), Rejection()))
    for name in ("path", "accepted", "token"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    assert torch.allclose(one.overlap, other.overlap, rtol=0, atol=4 * torch.finfo(dtype).eps)
    assert one.distance is not None
    assert one.distance.max() <= 8 * torch.finfo(dtype).eps
    assert set(one.accepted.tolist()) == set(range(draft.tree.topology.depth + 1))


# --- the rule of Medusa, in plain Python ------------------------------------------------------------------------------


def by_hand(p: Tensor, ids: Sequence[int], parents: Sequence[int], valid: Sequence[bool]) -> list[int]:
    """The nodes of the longest accepted path, of several the most likely one, of one row."""
    best: tuple[int, float, list[int]] = (0, 0.0, [])
    paths: dict[int, tuple[float, list[int]]] = {-1: (0.0, [])}
    for node, parent in enumerate(parents):
        row = p[parent + 1]
        entropy = -float(sum(x * x.log() for x in row if x > 0))
        passed = valid[node] and float(row[ids[node]]) > min(0.09, 0.3 * torch.tensor(-entropy).exp())
        if passed and parent in paths:
            weight, path = paths[parent]
            paths[node] = weight + float(row[ids[node]].log()), [*path, node]
            if (len(path) + 1, paths[node][0]) > best[:2] or len(path) + 1 > best[0]:
                best = len(path) + 1, *paths[node]
    return best[2]


@pytest.mark.parametrize("seed", range(3))
def test_typical_takes_the_longest_path_and_of_several_the_likeliest(seed: int) -> None:
    rng, rows, width = torch.Generator().manual_seed(seed), 60, 20
    parents = (-1, -1, -1, 0, 0, 1, 2, 2, 3, 5, 6, 7, 9)
    p = (3 * torch.randn((rows, len(parents) + 1, width), generator=rng, dtype=torch.float64)).softmax(-1)
    ids = p[:, [parent + 1 for parent in parents]].topk(4).indices  # likely tokens, but for one in four
    ids = ids.gather(2, torch.randint(4, (rows, len(parents), 1), generator=rng)).squeeze(2)
    valid = torch.rand(ids.shape, generator=rng) < 0.9
    verdict = judged(Typical(), p, Draft(TokenTree(ids, parents), None, valid))
    for row in range(rows):
        path = by_hand(p[row], ids[row].tolist(), parents, valid[row].tolist())
        assert verdict.path[row].tolist() == path + [-1] * (verdict.path.shape[1] - len(path))
    assert len(set(verdict.accepted.tolist())) > 3


# --- a run ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["typical", "lenience", "relaxed-everywhere"])
def test_a_run_ends_well_and_is_not_called_lossless(run: Command, name: str) -> None:
    found = run("--method", name, "--temperature", 1)
    assert found.code == 0, found.err
    (row,) = found.table()
    assert (row["status"], row["method"]) == ("ok", name)
    assert row["lossless"] not in ("identical", "numeric", "MISMATCH")


@pytest.mark.parametrize("name", ["typical", "lenience", "relaxed-everywhere"])
def test_a_greedy_run_is_identical(run: Command, name: str) -> None:
    (row,) = run("--method", name).table()
    assert row["lossless"] == "identical"
