"""What is held out: α and tokens per round against decodes written out by hand."""

import itertools
import math

import pytest
import torch

from specbench.models.network.sampling import Sampling
from specbench.training.cache import Example
from specbench.training.evaluation import Along, Judge, chosen, sampled, tokens_per_round
from specbench.training.recipe import Recipe
from specbench.training.teacher import Teacher
from tests.support.learning import VOCABULARY, cache, examples, llama

TEACHER, STUDENT = llama(2), llama(1, seed=1)
TEXTS = examples(9, seed=3)


def per_round(chances: list[torch.Tensor], k: int) -> float:
    """Of texts all of whose tokens are learned, each with one chance whatever its place in a round."""
    found = [Along("a", torch.ones(len(one), dtype=torch.bool), one, one.expand(k, -1)) for one in chances]
    return tokens_per_round(found, k)


def by_hand(temperature: float, example: Example) -> tuple[torch.Tensor, torch.Tensor]:
    """p and q [n, V] of the learned tokens of one example, without batches."""
    fed, law = torch.tensor([list(example.ids)[:-1]]), Sampling(temperature)
    first = max(example.start, 1) - 1
    return law(TEACHER(fed).logits[0, first:], VOCABULARY), law(STUDENT(fed).logits[0, first:], VOCABULARY)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("sampled", [False, True])
def test_figures_are_those_of_every_text_by_itself(temperature: float, sampled: bool) -> None:
    recipe = Recipe(rows=4, temperature=temperature, k=3)
    text = cache([], TEXTS, "answers" if sampled else "text", temperature=temperature)
    figures, by_category = Judge(Teacher(TEACHER), text, recipe).figures(STUDENT)
    shared, chances = [], []
    for example in TEXTS:
        p, q = by_hand(temperature, example)
        shared.append(torch.minimum(p, q).sum(1).double())
        told = torch.tensor(list(example.ids)[max(example.start, 1) :]).unsqueeze(1)
        ratio = (q.gather(1, told) / p.gather(1, told)).clamp(max=1).squeeze(1).double()
        chances.append(ratio if sampled and temperature else shared[-1])
    assert figures.tokens == sum(map(len, shared))
    assert figures.alpha == pytest.approx(float(torch.cat(shared).mean()), abs=1e-6)
    assert figures.accepted == pytest.approx(per_round(chances, 3), abs=1e-5)
    assert sum(one.tokens for one in by_category.values()) == figures.tokens
    assert set(by_category) == {"a", "b"}


def test_a_draft_that_is_the_target_is_accepted_as_a_whole() -> None:
    figures, _ = Judge(Teacher(TEACHER), cache([], TEXTS), Recipe(k=4)).figures(TEACHER)
    assert figures.alpha == 1.0
    assert figures.accepted == 5.0


def test_equal_chances_give_the_formula() -> None:
    chances = [torch.full((50,), 0.8, dtype=torch.float64)]
    assert per_round(chances, 4) == pytest.approx((1 - 0.8**5) / (1 - 0.8))


def test_the_mean_over_the_target_s_own_text_is_what_is_accepted() -> None:
    """Enumerated: Σ_x p(x) Π min(1, q ÷ p) over all texts is the chance that as many drafts are accepted."""
    p, q = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    expected = 1 + sum(math.pow(float(torch.minimum(p, q).sum()), j) for j in (1, 2))
    mean = 0.0
    for text in itertools.product(range(3), repeat=2):
        weight = math.prod(float(p[x]) for x in text)
        chance = torch.tensor([min(1.0, float(q[x] / p[x])) for x in text], dtype=torch.float64)
        # only the first place of a text of two has two tokens after it
        mean += weight * (1 + float(chance[0]) + float(chance.prod()))
    assert mean == pytest.approx(expected)


def test_texts_shorter_than_the_lookahead_count_as_far_as_they_go() -> None:
    assert per_round([torch.ones(2, dtype=torch.float64)], 4) == 3.0
    assert per_round([], 4) == 1.0


def test_the_held_out_examples_are_taken_evenly_from_the_categories() -> None:
    many = [*examples(20, categories=("a",)), *examples(3, seed=1, categories=("b",))]
    found = chosen(many, 8)
    assert sorted(example.category for example in found) == ["a"] * 5 + ["b"] * 3
    assert found == chosen(many, 8)
    assert len(chosen(many, 100)) == 23


@pytest.mark.parametrize(
    ("law", "temperature", "own"),
    [({}, 0.0, True), ({"temperature": 0.7}, 0.7, True), ({"temperature": 0.7}, 0.0, False),
     ({"temperature": 0.7, "top_p": 0.9}, 0.7, False)],
)  # fmt: skip
def test_text_is_the_target_s_own_only_at_the_same_distribution(
    law: dict[str, float], temperature: float, own: bool
) -> None:
    recipe = Recipe(temperature=temperature)
    assert sampled(cache([], [], **law), recipe) == own
    assert not sampled(cache([], [], kind="text", **law), recipe)
