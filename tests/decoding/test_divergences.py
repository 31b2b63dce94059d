"""The losses of drafts: their values against independent formulas, their zeros, and their gradients."""

import math

import pytest
import torch

from specbench.decoding.divergences import JSD, NAMES, Hybrid, TotalVariation, overlap

ROWS = torch.Generator().manual_seed(0)
P = torch.rand((5, 7), generator=ROWS, dtype=torch.float64).softmax(-1)
LOGITS = torch.randn((5, 7), generator=ROWS, dtype=torch.float64)
Q = LOGITS.softmax(-1)


def kl(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return torch.distributions.kl_divergence(torch.distributions.Categorical(p), torch.distributions.Categorical(q))


def expected(name: str) -> torch.Tensor:
    alpha, tv = torch.minimum(P, Q).sum(-1), (P - Q).abs().sum(-1) / 2
    middle = (P + Q) / 2
    weight = (-3 * alpha).exp()
    return {
        "forward-kl": kl(P, Q),
        "reverse-kl": kl(Q, P),
        "jsd": (kl(P, middle) + kl(Q, middle)) / 2,
        "tv": tv,
        "overlap": -alpha.log(),
        "hybrid": weight * kl(P, Q) + (1 - weight) * tv,
    }[name]


@pytest.mark.parametrize("name", NAMES)
def test_a_loss_is_its_formula(name: str) -> None:
    torch.testing.assert_close(NAMES[name](P, LOGITS), expected(name))


@pytest.mark.parametrize("name", NAMES)
def test_equal_rows_have_no_loss_and_no_gradient(name: str) -> None:
    logits = P.log().requires_grad_()
    loss = NAMES[name](P, logits)
    loss.sum().backward()
    assert loss.abs().max() < 1e-12
    assert logits.grad is not None
    assert logits.grad.abs().max() < 1 / 7  # tv and overlap have a corner there; nothing is infinite
    if name not in ("tv", "overlap", "hybrid"):
        assert logits.grad.abs().max() < 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_is_that_of_finite_differences(name: str) -> None:
    logits = LOGITS.clone().requires_grad_()
    if name == "hybrid":  # its weight is held still
        weight = (-3 * overlap(P, Q)).exp()
        function = lambda x: (weight * NAMES["forward-kl"](P, x) + (1 - weight) * NAMES["tv"](P, x)).sum()  # noqa: E731
        (other,) = torch.autograd.grad(function(logits), logits)
        (mine,) = torch.autograd.grad(Hybrid()(P, logits).sum(), logits)
        torch.testing.assert_close(mine, other)
    else:
        assert torch.autograd.gradcheck(lambda x: NAMES[name](P, x).sum(), logits)


@pytest.mark.parametrize("name", NAMES)
def test_tokens_that_neither_can_say_change_nothing(name: str) -> None:
    wide = torch.nn.functional.pad(LOGITS, (0, 3), value=-math.inf).requires_grad_()
    loss = NAMES[name](torch.nn.functional.pad(P, (0, 3)), wide)
    torch.testing.assert_close(loss, NAMES[name](P, LOGITS))
    loss.sum().backward()
    assert wide.grad is not None
    assert torch.isfinite(wide.grad).all()


def test_a_point_mass_has_finite_losses() -> None:
    sure = torch.nn.functional.one_hot(torch.tensor([3]), 7).double()
    for loss in NAMES.values():
        logits = LOGITS[:1].clone().requires_grad_()
        value = loss(sure, logits)
        value.sum().backward()
        assert torch.isfinite(value).all()
        assert logits.grad is not None
        assert torch.isfinite(logits.grad).all()


def test_total_variation_is_what_is_not_accepted() -> None:
    torch.testing.assert_close(TotalVariation()(P, LOGITS), 1 - overlap(P, Q))


@pytest.mark.parametrize("beta", [0.0, 1.0, -0.1, math.nan])
def test_beta_lies_between_its_ends(beta: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        JSD(beta)
