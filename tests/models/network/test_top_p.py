"""Top-p without a sort keeps the tokens that the sort keeps, for every row, and these are those of transformers."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import TopPLogitsWarper

from specbench.models.network.sampling import FEW, ONE, Sampling, TopP, by_digits, by_sort, masses

DTYPES = (torch.float64, torch.float32, torch.bfloat16)
LEVELS = (0.0, -0.0, 1.0, -1.0, 2.5, -3.25, 30.0, -200.0, 1e-30, -1e-40, 3e4, -math.inf)  # few of them: many ties
FULL = 3.0  # a score of every row, so that it is a distribution
SHARES = st.one_of(st.sampled_from((1e-9, 0.25, 0.5, 0.75, 0.9, 1 - 1e-9)), st.floats(1e-12, 1 - 1e-12))
ROWS = st.lists(st.one_of(st.sampled_from(LEVELS), st.floats(-60, 60, width=32)), min_size=0, max_size=40)


def scores_of(rows: list[list[float]], dtype: torch.dtype) -> Tensor:
    """As `Law` hands them on: 16 bits become float32."""
    found = torch.tensor(rows, dtype=dtype)
    return found if dtype == torch.float64 else found.float()


def left_out(scores: Tensor, p: float) -> list[bool]:
    """Which tokens of one row are left out, by whole numbers of Python."""
    mass = [int(Fraction(x) * 2**ONE) for x in scores.softmax(-1).tolist()]
    order = sorted(range(len(mass)), key=lambda i: (float(scores[i]), i))
    gone, goes = 0, Fraction(1 - p) * 2**ONE
    kept = {order[-1]}
    for i in order:
        gone += mass[i]
        kept |= {i} if gone > goes else set()
    return [i not in kept for i in range(len(mass))]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(ROWS, SHARES, st.sampled_from(DTYPES), st.randoms(use_true_random=False))
def test_both_ways_leave_out_what_exact_arithmetic_does(row: list[float], p: float, dtype: torch.dtype, order) -> None:  # type: ignore[no-untyped-def]
    row = [*row, FULL]
    order.shuffle(row)
    scores = scores_of([row, row[::-1]], dtype)
    assert by_sort(scores, p).tolist() == [left_out(one, p) for one in scores]
    assert torch.equal(by_digits(scores, p), by_sort(scores, p))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9, 0.999])
def test_both_ways_agree_on_rows_of_a_whole_vocabulary_with_and_without_ties(p: float, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    rows = 4 * torch.randn((4, 9000), generator=generator, dtype=torch.float64)
    rows = torch.cat([rows, rows.round(), rows.clamp(max=0), torch.zeros_like(rows[:1])])
    scores = rows.to(dtype) if dtype == torch.float64 else rows.to(dtype).float()
    found = by_digits(scores, p)
    assert torch.equal(found, by_sort(scores, p))
    assert found.any(-1).all()
    assert not found.all(-1).any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_kept_tokens_are_those_of_transformers_but_for_rounding_at_the_edge(dtype: torch.dtype) -> None:
    scores = 3 * torch.randn((300, 50), generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)
    sums = scores.double().sort(-1).values.softmax(-1).cumsum(-1)
    for p in (0.2, 0.5, 0.9, 0.99):
        clear = ((sums - (1 - p)).abs() > 1e-6).all(-1)
        theirs = TopPLogitsWarper(p)(torch.empty(0), scores).isinf()  # type: ignore[arg-type]
        assert clear.sum() > 290
        assert torch.equal(by_sort(scores, p)[clear], theirs[clear])


@pytest.mark.parametrize("p", [0.125, 0.25, 0.5, 0.875])
def test_among_equals_the_greatest_ids_stay_as_in_transformers(p: float) -> None:
    scores = torch.zeros(1, 8)
    theirs = TopPLogitsWarper(p)(torch.empty(0), scores).isinf()  # type: ignore[arg-type]
    assert by_digits(scores, p).tolist() == by_sort(scores, p).tolist() == theirs.tolist()
    assert (~theirs).sum() == 8 * p


def test_one_token_stays_whatever_p_is_and_rows_that_are_no_distribution_raise_nothing() -> None:
    certain = torch.full((1, 6), -torch.inf).index_fill(1, torch.tensor([2]), 0.0)
    for p in (1e-12, 0.5, 1 - 1e-12):
        assert by_digits(certain, p).tolist() == by_sort(certain, p).tolist() == [[i != 2 for i in range(6)]]
    for wrong in (torch.nan, torch.inf, -torch.inf, -torch.nan):
        assert by_digits(torch.full((2, 6), wrong), 0.5).shape == by_sort(torch.full((2, 6), wrong), 0.5).shape


def test_masses_are_probabilities_as_whole_numbers() -> None:
    scores = torch.tensor([[0.0, math.log(3.0), -20.0]])
    assert masses(scores).double().div(2.0**ONE).tolist() == scores.softmax(-1).double().tolist()


@pytest.mark.parametrize("width", [FEW, FEW + 1])
def test_a_distribution_is_the_same_on_either_side_of_the_switch(width: int) -> None:
    scores = 3 * torch.randn((2, width), generator=torch.Generator().manual_seed(2))
    theirs = TopPLogitsWarper(0.9)(torch.empty(0), scores).softmax(-1)  # type: ignore[arg-type]
    assert torch.equal(Sampling(top_p=0.9)(scores, width), theirs)
    assert torch.equal(TopP(0.9)(torch.empty(0), scores).isinf(), by_sort(scores, 0.9))


@pytest.mark.slow
def test_compiled_it_keeps_the_same() -> None:
    scores = 3 * torch.randn((5, 9000), generator=torch.Generator().manual_seed(3))
    assert torch.equal(torch.compile(by_digits)(scores, 0.9), by_sort(scores, 0.9))
