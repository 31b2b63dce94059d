"""What decides a training: names of losses, the rate over the run, and a key."""

from typing import get_args

import pytest
from pydantic import ValidationError

from specbench.decoding.divergences import JSD, NAMES, divergence
from specbench.settings import declared
from specbench.training.recipe import Divergence, Recipe


def test_the_losses_of_a_recipe_are_those_that_there_are() -> None:
    assert set(get_args(Divergence)) == set(NAMES)
    assert divergence("jsd", 0.9) == JSD(0.9)


def test_losses_share_the_run() -> None:
    recipe = Recipe(losses=("forward-kl", "tv", "hybrid"))
    assert [recipe.loss(done) for done in (0, 0.3, 0.34, 0.66, 0.67, 1.0)] == [
        "forward-kl", "forward-kl", "tv", "tv", "hybrid", "hybrid",
    ]  # fmt: skip


def test_the_rate_rises_and_then_falls_to_a_tenth() -> None:
    recipe = Recipe(warmup=0.1)
    rates = [recipe.factor(step / 100) for step in range(101)]
    assert rates[:11] == sorted(rates[:11])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[0] > 0
    assert rates[10] == pytest.approx(1.0)
    assert rates[100] == pytest.approx(0.1)
    assert Recipe(warmup=0).factor(0) == 1.0


@pytest.mark.parametrize(
    "wrong", [{"losses": ()}, {"losses": ("kl",)}, {"rate": 0}, {"tokens": 0}, {"length": 1}, {"x": 1}]
)
def test_a_wrong_value_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Recipe(**wrong)


def test_every_field_is_declared() -> None:
    assert list(declared(Recipe)) == list(Recipe.model_fields)
