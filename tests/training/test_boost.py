"""Drafts that complement each other: what counts is what the earlier ones miss, and what all of them hit together."""

from functools import partial

import pytest
import torch

from specbench.models.network.sampling import Sampling
from specbench.training.evaluation import Judge
from specbench.training.learner import REST, batch_of, hit, logits_of, missed
from specbench.training.recipe import Recipe
from specbench.training.teacher import Teacher
from tests.support.learning import cache, examples, llama, train

TEACHER, FIRST, SECOND = llama(2), llama(1, seed=1), llama(1, seed=2)
TEXTS = examples(8)
CACHE = cache([], TEXTS)


def test_what_an_earlier_draft_hits_counts_little() -> None:
    batch = batch_of(TEXTS, 16)
    p = Teacher(TEACHER).rows(batch, Sampling(1.0))
    right = logits_of(FIRST, batch).argmax(-1) == p.argmax(-1)
    assert 0 < int(right.sum()) < len(right)
    weights = missed([FIRST], batch, p)
    assert torch.equal(weights, torch.where(right, REST, 1.0))
    assert torch.equal(missed([TEACHER], batch, p), torch.full_like(weights, REST))
    assert torch.equal(missed([], batch, p), torch.ones_like(weights))


def test_a_token_is_hit_by_any_of_them() -> None:
    batch = batch_of(TEXTS, 16)
    told = logits_of(TEACHER, batch).argmax(-1)
    assert torch.equal(hit([FIRST, SECOND], batch, told), hit([FIRST], batch, told) | hit([SECOND], batch, told))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_beside_each_other_are_judged_together(temperature: float) -> None:
    recipe = Recipe(temperature=temperature)
    together, _ = Judge(Teacher(TEACHER), CACHE, recipe, [FIRST]).figures(SECOND)
    again, _ = Judge(Teacher(TEACHER), CACHE, recipe, [SECOND]).figures(FIRST)
    alone, _ = Judge(Teacher(TEACHER), CACHE, recipe.model_copy(update={"temperature": 0.0})).figures(FIRST)
    assert together == again
    assert together.alpha > alone.alpha


@pytest.mark.slow
def test_a_boosted_draft_adds_more_than_one_trained_alike() -> None:
    """A narrow second draft cannot learn everything: fitted where the first misses, it learns that."""
    teacher, text = Teacher(llama(2, scale=1.0)), examples(40)
    both = cache(text, text)
    recipe = Recipe(tokens=6000, rows=8, rate=1e-2, evaluations=3, patience=9, losses=("forward-kl",))
    first = llama(1, width=4, seed=1)
    train(first, teacher, both, recipe)
    boosted, alike = (
        train(llama(1, width=4, seed=2), teacher, both, recipe, weights=weights, earlier=[first]).figures.alpha
        for weights in (partial(missed, [first], rest=0.0), None)
    )
    assert boosted > alike + 0.02
