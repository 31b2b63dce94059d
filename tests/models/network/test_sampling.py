"""Logits become distributions: the warpers of transformers in their order, top-p without a sort."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import GenerationConfig, TopPLogitsWarper
from transformers.generation import logits_process as hf

from specbench.models.network.sampling import COLD, FEW, ONE, Sampling, TopP, by_digits, by_sort, masses

V = 23


def logits(seed: int = 0, shape: tuple[int, ...] = (64, V), dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)


def in_transformers(scores: Tensor, *warpers: hf.LogitsProcessor) -> Tensor:
    return hf.LogitsProcessorList(warpers)(torch.empty((len(scores), 0), dtype=torch.long), scores).softmax(-1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_temperature_zero_puts_everything_on_the_greatest_logit_and_the_lowest_id_among_equals(
    dtype: torch.dtype,
) -> None:
    tied = torch.tensor([[1, 5, 5, 0], [2, 2, 2, 2], [0, 1, 2, 3], [-9, -1, -3, -1]], dtype=dtype)
    assert Sampling(0)(tied, 4).argmax(-1).tolist() == [1, 0, 3, 1]
    assert Sampling(0)(tied, 4).sum(-1).tolist() == [1, 1, 1, 1]
    assert Sampling(0)(tied, 4).max(-1).values.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("temperature", [COLD, COLD / 2, 1e-6, 1e-30, 5e-324])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_tiny_temperature_is_greedy(temperature: float, dtype: torch.dtype) -> None:
    rows = torch.stack([torch.randperm(V, generator=torch.Generator().manual_seed(i)) for i in range(20)]).to(dtype)
    found = Sampling(temperature)(1000 * rows, V)
    assert torch.equal(found.to(torch.float64), Sampling(0)(rows, V).to(torch.float64))


@pytest.mark.parametrize("top_k", [None, 2])
@pytest.mark.parametrize("temperature", [COLD / 2, 1e-30])
def test_a_tiny_temperature_shares_equally_among_equals(temperature: float, top_k: int | None) -> None:
    found = Sampling(temperature, top_k=top_k)(torch.tensor([[7.0, 3.0, 7.0]]), 3)
    assert torch.allclose(found.double(), torch.tensor([[0.5, 0.0, 0.5]]).double())


@pytest.mark.parametrize(
    ("law", "warpers"),
    [
        (Sampling(), []),
        (Sampling(0.7), [hf.TemperatureLogitsWarper(0.7)]),
        (Sampling(2.5), [hf.TemperatureLogitsWarper(2.5)]),
        (Sampling(top_k=1), [hf.TopKLogitsWarper(1)]),
        (Sampling(top_k=5), [hf.TopKLogitsWarper(5)]),
        (Sampling(top_k=1000), []),
        (Sampling(top_p=0.3), [hf.TopPLogitsWarper(0.3)]),
        (Sampling(top_p=0.9), [hf.TopPLogitsWarper(0.9)]),
        (Sampling(top_p=1.0), []),
        (Sampling(min_p=0.1), [hf.MinPLogitsWarper(0.1)]),
        (Sampling(eta=0.05), [hf.EtaLogitsWarper(0.05)]),
        (
            Sampling(0.7, top_k=9, top_p=0.8, min_p=0.05, eta=0.03),
            [
                hf.TemperatureLogitsWarper(0.7),
                hf.TopKLogitsWarper(9),
                hf.TopPLogitsWarper(0.8),
                hf.MinPLogitsWarper(0.05),
                hf.EtaLogitsWarper(0.03),
            ],
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, Sampling) else "",
)
def test_the_warpers_are_those_of_transformers(law: Sampling, warpers: list[hf.LogitsProcessor]) -> None:
    scores = logits()
    assert torch.allclose(law(scores, V), in_transformers(scores, *warpers), rtol=0, atol=1e-15)


def test_the_order_of_the_warpers_is_that_of_generate() -> None:
    """`generate` applies temperature, top-k, top-p, min-p, eta in the order in which transformers puts them."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=V, n_embd=4, n_layer=1, n_head=1))
    config = GenerationConfig(
        do_sample=True, temperature=0.7, top_k=9, top_p=0.8, min_p=0.05, eta_cutoff=0.03, bos_token_id=0
    )
    model._prepare_special_tokens(config)
    processors = model._get_logits_processor(config, input_ids_seq_length=1)
    assert len(processors) == 5
    found = Sampling(0.7, top_k=9, top_p=0.8, min_p=0.05, eta=0.03)(logits(), V)
    assert torch.allclose(found, in_transformers(logits(), *processors), rtol=0, atol=1e-15)


LAWS = [
    Sampling(),
    Sampling(0),
    Sampling(0.3),
    Sampling(1e-5),
    Sampling(top_k=1),
    Sampling(top_p=1e-9),
    Sampling(min_p=1.0),
    Sampling(eta=0.99),
    Sampling(5, top_k=3),
]


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e3])
def test_at_least_one_token_is_kept_and_the_rest_sums_to_one(law: Sampling, scale: float) -> None:
    found = law(scale * logits(1), V)
    assert found.isfinite().all()
    assert (found >= 0).all()
    assert torch.allclose(found.sum(-1), torch.ones(64, dtype=found.dtype), rtol=0, atol=1e-12)


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_logits_give_a_law_of_at_least_float32(law: Sampling, dtype: torch.dtype) -> None:
    scores = logits(2, dtype=dtype)
    found = law(scores, V)
    assert found.dtype in {torch.float32, torch.float64}
    assert torch.allclose(found.double().sum(-1), torch.ones(64).double(), rtol=0, atol=1e-6)
    assert torch.allclose(found, law(scores.float(), V), rtol=0, atol=0)


@pytest.mark.parametrize("law", LAWS, ids=str)
def test_a_wide_head_is_cut_before_the_softmax_and_a_narrow_one_padded_with_zeros(law: Sampling) -> None:
    scores = logits(3)
    assert torch.equal(law(scores, V - 4), law(scores[:, : V - 4], V - 4))
    padded = law(scores, V + 4)
    assert padded.shape == (64, V + 4)
    assert torch.equal(padded[:, :V], law(scores, V))
    assert not padded[:, V:].any()


def test_any_leading_shape_will_do_every_row_stands_alone_and_minus_infinity_forbids_a_token() -> None:
    scores, law = logits(4, (2, 3, V)), Sampling(0.7, top_k=9, top_p=0.8, min_p=0.05, eta=0.03)
    alone = torch.stack([torch.stack([law(row.unsqueeze(0), V)[0] for row in rows]) for rows in scores])
    assert torch.equal(law(scores, V), alone)
    scores = logits(5)
    scores[:, 3] = -torch.inf
    for law in LAWS:
        assert not law(scores, V)[:, 3].any()


@pytest.mark.parametrize("law", [Sampling(0), Sampling(), Sampling(0.7, top_k=3)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_rows_that_are_no_law_are_told(law: Sampling, dtype: torch.dtype) -> None:
    rows = logits(dtype=dtype)[:4]
    rows[0, 3], rows[1, 0], rows[2, 5] = torch.nan, torch.inf, -torch.inf
    laws, proper = law.checked(rows, V)
    assert proper.tolist() == [False, False, True, True]
    assert torch.equal(laws[2:], law(rows[2:], V))


KINDS = (torch.float64, torch.float32, torch.bfloat16)
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
@given(ROWS, SHARES, st.sampled_from(KINDS), st.randoms(use_true_random=False))
def test_both_ways_leave_out_what_exact_arithmetic_does(row: list[float], p: float, dtype: torch.dtype, order) -> None:  # type: ignore[no-untyped-def]
    row = [*row, FULL]
    order.shuffle(row)
    scores = scores_of([row, row[::-1]], dtype)
    assert by_sort(scores, p).tolist() == [left_out(one, p) for one in scores]
    assert torch.equal(by_digits(scores, p), by_sort(scores, p))


@pytest.mark.parametrize("dtype", KINDS)
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
