"""Which sequences are learned in which pass, and which of their tokens."""

import numpy as np
import pytest
import torch

from specbench.training.cache import Example
from specbench.training.learner import Batches, batch_of, part_of
from specbench.training.recipe import Recipe
from tests.support.learning import InMemory, examples

ALL = InMemory(examples(23))


def passes(count: int, **changes: object) -> list[list[str]]:
    batches = Batches(ALL, Recipe(rows=4, **changes))
    return [[example.prompt for example in batches(number).examples] for number in range(count)]


def test_every_example_is_learned_once_before_any_is_learned_twice() -> None:
    names = sorted(example.prompt for example in ALL)
    both = passes(12)
    assert sorted(name for batch in both[:6] for name in batch) == names
    assert sorted(name for batch in both[6:] for name in batch) == names
    assert both[:6] != both[6:]


def test_a_pass_is_a_function_of_its_number_and_the_seed() -> None:
    batches = Batches(ALL, Recipe(rows=4))
    assert torch.equal(batches(7).ids, Batches(ALL, Recipe(rows=4))(7).ids)
    assert passes(6) != passes(6, seed=1)


def test_processes_share_a_pass() -> None:
    whole = Batches(ALL, Recipe(rows=4), processes=1)
    parts = [Batches(ALL, Recipe(rows=2), processes=2, process=number) for number in range(2)]
    for number in range(5):
        names = {example.prompt for part in parts for example in part(number).examples}
        assert names == {example.prompt for example in whole(number).examples}


def test_the_learned_tokens_are_those_of_the_answer() -> None:
    long, short = Example([5, 6, 7, 8, 9], 3, "a", "x"), Example([4, 3, 2], 1, "a", "y")
    batch = batch_of([long, short], length=10)
    assert batch.fed.tolist() == [[5, 6, 7, 8], [4, 3, 2, 0]]
    assert batch.learned.tolist() == [[False, False, True, True], [True, True, False, False]]
    assert batch.following.tolist() == [8, 9, 3, 2]
    assert batch.tokens == 4


def test_text_from_its_first_token_on_has_nothing_before_it_to_predict_it_from() -> None:
    assert batch_of([Example([5, 6], 0, "a", "x")], length=4).learned.tolist() == [[True]]


@pytest.mark.parametrize("start", [1, 5, 30, 39])
def test_a_part_of_a_long_example_has_learned_tokens(start: int) -> None:
    example = Example(list(range(40)), start, "a", "x")
    for seed in range(20):
        ids, first, end = part_of(example, 8, np.random.default_rng(seed))
        assert end == ids[-1] + 1
        assert len(ids) == 8
        assert list(ids) == list(range(ids[0], ids[0] + 8))
        assert max(first, 1) < 8
        assert ids[max(first, 1)] >= start


def test_sequences_of_a_pass_are_of_similar_length() -> None:
    many = InMemory(examples(256, longest=60))
    batches = Batches(many, Recipe(rows=8))
    spread = [np.ptp([len(e.ids) for e in batches(number).examples]) for number in range(32)]
    assert np.mean(spread) < np.ptp(many.lengths) / 4
