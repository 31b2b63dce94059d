"""Successive halving: who goes on, with how much, and that nothing is lost of who does not."""

import itertools
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from specbench.theory.halving import Rung, amounts, successive_halving


def test_amounts_double_and_end_at_the_whole() -> None:
    assert amounts(400, 3) == [100, 200, 400]
    assert amounts(400, 1) == [400]
    assert amounts(1, 3) == [1, 1, 1]


@given(st.permutations(range(12)), st.integers(1, 4))
def test_the_best_always_reaches_the_last_rung(scores: list[int], rungs: int) -> None:
    asked: list[tuple[int, int]] = []

    def score(one: int, amount: int) -> float:
        asked.append((one, amount))
        return scores[one]

    found = successive_halving(range(12), amounts(800, rungs), score)
    assert [len(rung.scores) for rung in found] == [12, 6, 3, 2][:rungs]
    assert found[-1].order[0] == scores.index(11)
    assert len(asked) == len(set(asked)) == sum(len(rung.scores) for rung in found)
    for rung, after in itertools.pairwise(found):
        assert min(rung.scores[one] for one in after.scores) >= max(
            (score for one, score in rung.scores.items() if one not in after.scores), default=-1
        )


def test_some_go_on_for_a_comparison_and_of_equal_scores_the_earlier() -> None:
    asked: list[list[str]] = []

    def besides(rung: Rung[str], kept: Sequence[str]) -> list[str]:
        asked.append(list(kept))
        return ["d"]

    found = successive_halving("abcd", [1, 2, 4], lambda one, amount: 0.0, besides)
    assert [list(rung.scores) for rung in found] == [["a", "b", "c", "d"], ["a", "b", "d"], ["a", "d"]]
    assert asked[:2] == [["a", "b"], ["a"]]
    assert Rung(1, {"a": 1.0, "b": 2.0, "c": 0.0}).order == ["b", "a", "c"]
