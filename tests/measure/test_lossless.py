"""Identical, numeric or MISMATCH: what a divergence between baseline and method is taken for."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.backends.base import Scores
from specbench.backends.native import open_pair
from specbench.measure.lossless import compare_outputs, divergence, shortfall
from specbench.models.network.causal import Causal
from specbench.results.cells import Losslessness
from specbench.spec import RunSpec
from tests.laws.mutants import Mutant, catches, mutants

PROMPT = (5, 6)
NEVER: Scores = lambda ids, start, block: pytest.fail("texts that do not differ are not scored")  # noqa: E731


def scored(row: list[float], noise: float = 0.0) -> Scores:
    """The same logits everywhere; those of a whole block are off by `noise`."""

    def scores(ids: list[int], start: int, block: int) -> Tensor:
        rows = torch.tensor(row, dtype=torch.float64).repeat(len(ids) - start, 1)
        return rows + noise * (block > 1)

    return scores


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

    compare_outputs([(PROMPT, (0, 1), (0, 2))], scores, 5)
    assert blocks == [((5, 6, 0, 1), 2, 1), ((5, 6, 0, 1), 2, 5)]


def test_the_shortfall_of_the_two_best_is_the_top_2_gap() -> None:
    row = torch.tensor([0.5, 3.0, 2.0])
    assert shortfall(row, 1, 2) == shortfall(row, 2, 1) == 1.0
    assert shortfall(row, 1, 0) == 2.5


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
