"""Identical, numeric or MISMATCH: what a divergence between baseline and method is taken for."""

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.backends.native import open_pair
from specbench.measure.lossless import Outputs, Rescored, compare_outputs, forks_of, shortfall
from specbench.metrics import divergence
from specbench.models.network.causal import Causal
from specbench.results.cells import Losslessness
from specbench.spec import RunSpec
from tests.laws.mutants import Mutant, catches, mutants

PROMPT = (5, 6)
NEVER = Rescored(lambda *_: pytest.fail("texts that do not differ are not scored"))


def scored(row: list[float], noise: float = 0.0) -> Rescored:
    """The same logits everywhere; those of a whole block are off by `noise`."""

    def scores(ids: list[int], start: int, block: int) -> Tensor:
        rows = torch.tensor(row, dtype=torch.float64).repeat(len(ids) - start, 1)
        return rows + noise * (block > 1)

    return Rescored(scores)


@pytest.mark.parametrize(
    ("a", "b", "at"), [("abc", "abc", None), ("abc", "abd", 2), ("abc", "ab", 2), ("", "a", 0), ("xbc", "abc", 0)]
)
def test_a_divergence_is_the_first_index_that_differs_ends_included(a: str, b: str, at: int | None) -> None:
    assert divergence([*map(ord, a)], [*map(ord, b)]) == at


def test_equal_texts_are_identical_and_cost_nothing() -> None:
    assert compare_outputs([(PROMPT, (1, 2), (1, 2))] * 3, NEVER, 5) == Losslessness("identical", 3, 3)


def test_a_near_tie_within_the_noise_is_numeric() -> None:
    found = compare_outputs(
        [(PROMPT, (1, 0), (1, 2)), (PROMPT, (3,), (3,))], scored([1.0, 0.0, 1.0 - 1e-6], noise=1e-6), 5
    )
    assert (found.verdict, found.identical, found.compared, found.first_divergence) == ("numeric", 1, 2, 1)
    assert (found.gap, found.noise) == pytest.approx((1e-6, 1e-6))


def test_an_exact_tie_is_numeric_without_any_noise() -> None:
    assert compare_outputs([(PROMPT, (0,), (2,))], scored([1.0, 0.0, 1.0]), 5).verdict == "numeric"


def test_a_gap_beyond_the_noise_is_a_mismatch() -> None:
    found = compare_outputs([(PROMPT, (0,), (2,))], scored([1.0, 0.0, 0.9], noise=1e-6), 5)
    assert (found.verdict, found.gap) == ("MISMATCH", pytest.approx(0.1))


@pytest.mark.parametrize(("gap", "verdict"), [(1.99e-3, "numeric"), (2.01e-3, "MISMATCH")])
def test_a_gap_of_twice_the_noise_is_the_last_that_is_numeric(gap: float, verdict: str) -> None:
    assert compare_outputs([(PROMPT, (0,), (2,))], scored([1.0, 0.0, 1.0 - gap], noise=1e-3), 5).verdict == verdict


BOUND = "gap <= 2 * noise"
MUTANTS: dict[str, Mutant] = {
    f"numeric up to {times} times the noise": (
        *(compare_outputs, BOUND, f"gap <= {times} * noise"),
        partial(test_a_gap_of_twice_the_noise_is_the_last_that_is_numeric, gap, verdict),
    )
    for times, gap, verdict in ((20, 2.01e-3, "MISMATCH"), (1.9, 1.99e-3, "numeric"))
}


@mutants(MUTANTS)
def test_another_bound_is_caught(mutant: Mutant) -> None:
    catches(*mutant)


def test_one_mismatch_among_near_ties_is_a_mismatch() -> None:
    tie, wrong = (PROMPT, (0,), (2,)), (PROMPT, (0,), (1,))
    assert compare_outputs([tie, tie], scored([1.0, 0.0, 1.0]), 5).verdict == "numeric"
    assert compare_outputs([tie, wrong, tie], scored([1.0, 0.0, 1.0]), 5).verdict == "MISMATCH"


def test_a_third_token_is_no_near_tie_however_close_the_two_best_are() -> None:
    found = compare_outputs([(PROMPT, (0,), (1,))], scored([1.0, 0.0, 1.0], noise=1e-6), 5)
    assert (found.verdict, found.gap) == ("MISMATCH", 1.0)


def test_a_text_that_goes_on_where_the_other_ends_is_a_mismatch() -> None:
    for base, other in (((0,), (0, 0)), ((0, 0), (0,))):
        found = compare_outputs([(PROMPT, base, other)], scored([1.0, 0.0, 1.0], noise=1e-3), 5)
        assert (found.verdict, found.gap) == ("MISMATCH", math.inf)


def test_scores_are_asked_for_one_token_and_for_a_verification_at_a_time() -> None:
    blocks = []

    def scores(ids: list[int], start: int, block: int) -> Tensor:
        blocks.append((tuple(ids), start, block))
        return torch.zeros(len(ids) - start, 3)

    compare_outputs([(PROMPT, (0, 1), (0, 2))], Rescored(scores), 5)
    assert blocks == [((5, 6, 0, 1), 2, 1), ((5, 6, 0, 1), 2, 5)]


def test_the_shortfall_of_the_two_best_is_the_top_2_gap() -> None:
    row = torch.tensor([0.5, 3.0, 2.0])
    assert shortfall(row, 1, 2) == shortfall(row, 2, 1) == 1.0
    assert shortfall(row, 1, 0) == 2.5


def noisy(loud: float, size: float = 0.02, vocabulary: int = 4) -> Callable[[Sequence[int], int, int], Tensor]:
    """Near ties everywhere; the noise of a row depends on the text before it and the tokens of its pass, and is
    `loud` times as large late in a text."""

    def scores(ids: Sequence[int], start: int, block: int) -> Tensor:
        rows = []
        for place in range(start, len(ids)):
            begin = start + (place - start) // block * block
            passed = len(ids[begin : begin + block])
            tied = random.Random(repr(ids[:place]))
            rounding = random.Random(repr((ids[:place], passed, place - begin)))
            scale = 0.01 * (loud if place - start > 6 else 1)
            rows.append([size * tied.random() + scale * rounding.random() for _ in range(vocabulary)])
        return torch.tensor(rows, dtype=torch.float64).view(-1, vocabulary)

    return scores


def along_whole_texts(outputs: Sequence[Outputs], scores: Any, block: int) -> tuple[str, float, float]:
    """The verdict by its definition: gap and noise along all of every text that differs."""
    gap, noise = 0.0, 0.0
    for prompt, base, other in outputs:
        if (at := divergence(base, other)) is not None:
            one, many = (scores([*prompt, *base], len(prompt), width) for width in (1, block))
            gap = max(gap, shortfall(one[at], base[at], other[at]) if at < min(len(base), len(other)) else math.inf)
            noise = max(noise, float((one - many).abs().max()))
    return "numeric" if gap <= 2 * noise else "MISMATCH", gap, noise


def made(dice: random.Random) -> list[Outputs]:
    """Texts of 1 to 12 tokens; another one differs from a random place on, or ends there."""
    found: list[Outputs] = []
    for _ in range(dice.randrange(1, 5)):
        base = tuple(dice.randrange(4) for _ in range(dice.randrange(1, 13)))
        at = dice.randrange(len(base))
        ends = dice.random() < 0.03
        rest = () if ends else ((base[at] + dice.randrange(1, 4)) % 4, *(dice.randrange(4) for _ in base[at + 1 :]))
        found.append((tuple(dice.randrange(9) for _ in range(2)), base, (*base[:at], *rest)))
    return found


def test_the_verdict_on_scores_up_to_the_forks_is_that_on_whole_texts() -> None:
    """Whatever the noise, and whoever else was scored along the same texts before."""
    verdicts: Counter[tuple[str, bool]] = Counter()
    for seed in range(60):
        dice = random.Random(seed)
        scores, cells = noisy(dice.choice([0, 1, 4])), {block: made(dice) for block in (2, 3, 6)}
        shared = Rescored(scores)
        for block, outputs in cells.items():
            outputs.append((*cells[2][0][:2], made(dice)[0][2]))
            shared.expect(forks_of(outputs, block))
        for block, outputs in cells.items():
            found = compare_outputs(outputs, shared, block)
            verdict, gap, noise = along_whole_texts(outputs, scores, block)
            assert (found.verdict, found.gap) == (verdict, gap)
            assert found.noise is not None
            assert found.noise <= noise
            if found.verdict == "MISMATCH" and gap < math.inf:
                assert found.noise == noise
            verdicts[found.verdict, found.noise < noise] += 1
    assert all(verdicts[one] > 5 for one in (("numeric", True), ("numeric", False), ("MISMATCH", False)))


def test_a_text_that_many_cells_leave_is_scored_token_by_token_once_and_only_up_to_its_last_fork() -> None:
    calls: list[tuple[int, int]] = []  # (block, scored tokens)

    def scores(ids: Sequence[int], start: int, block: int) -> Tensor:
        calls.append((block, len(ids) - start))
        return torch.zeros(len(ids) - start, 3)

    seen: list[tuple[int, int]] = []
    base, other = (0,) * 100, (1,) * 100
    shared = Rescored(scores, lambda done, texts: seen.append((done, texts)))
    cells = {k + 1: [((5,), base, (*base[: 3 * k], *other)), ((6,), base, (*base[:k], *other))] for k in range(1, 9)}
    for block, outputs in cells.items():
        shared.expect(forks_of(outputs, block))
    for block, outputs in cells.items():
        assert compare_outputs(outputs, shared, block).verdict == "numeric"
    assert [made for made in calls if made[0] == 1] == [(1, 25), (1, 9)]
    assert {made for block, made in calls if block == 9} == {27, 9}  # whole passes
    assert len(calls) == 2 + 2 * 8
    assert seen == [(1, 2), (2, 2)]


def test_a_divergence_without_scores_is_counted_and_not_judged() -> None:
    equal, other = (PROMPT, (1, 2), (1, 2)), (PROMPT, (1, 0), (1, 2))
    assert compare_outputs([equal, other], None, 5) == Losslessness("not compared", 1, 2, 1)
    assert compare_outputs([equal], None, 5) == Losslessness("identical", 1, 1)


@pytest.mark.processor
@pytest.mark.parametrize("k", [0, 4])
def test_scores_are_bit_for_bit_what_an_eager_decode_computed(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16 attention over 100 places rounds otherwise than over 128: noise must know that, or a near-tie between
    the two is taken for a mismatch."""
    spec = RunSpec(method="baseline" if k == 0 else "chain", k=k, dtype="bfloat16", max_new_tokens=24, ignore_eos=True)
    backend = open_pair([spec])
    backend.load()
    prompt = backend.encode("def area(radius):\n    return 3.14159 * radius ** 2\n\n\n" * 4)
    passes: list[Tensor] = []
    seen = Causal._forward

    def spy(self: Causal, *args: Any, **kwargs: Any) -> Tensor:
        logits = seen(self, *args, **kwargs)
        if self.network is backend.passing()["target"] and not kwargs.get("keep"):
            passes.append(logits[0])
        return logits

    with monkeypatch.context() as patched:
        patched.setattr(Causal, "_forward", spy)
        (trace,) = backend.prepare(spec, len(prompt))([prompt], [0])
    scores = backend.scores([*prompt, *trace.tokens], len(prompt), k + 1)
    # later rounds of a chain begin elsewhere than later blocks do, and where a draft is rejected it is another text
    computed = torch.cat(passes) if k == 0 else passes[0][: trace.rounds[0].emitted]
    assert torch.equal(scores[: len(computed)], computed[:, : scores.shape[1]])
    part = backend.scores([*prompt, *trace.tokens[:15]], len(prompt), k + 1)  # whole passes, as up to a fork
    assert torch.equal(part, scores[:15])
