"""The experts that a pass touches, by enumeration of all choices, and the bytes that it reads of them."""

from itertools import combinations, product

import pytest

from specbench.theory.experts import COLUMNS, Experts, touched


@pytest.mark.parametrize(("experts", "chosen", "tokens"), [(4, 2, 1), (4, 2, 3), (5, 1, 4), (3, 3, 2), (6, 2, 2)])
def test_independent_choices_touch_so_many_in_the_mean(experts: int, chosen: int, tokens: int) -> None:
    choices = list(product(combinations(range(experts), chosen), repeat=tokens))
    mean = sum(len(set().union(*choice)) for choice in choices) / len(choices)
    assert touched(experts, chosen, tokens) == pytest.approx(mean, rel=1e-12)


@pytest.mark.parametrize(("experts", "chosen", "tokens"), [(4, 0, 1), (4, 5, 1), (4, 2, -1)])
def test_impossible_choices_are_refused(experts: int, chosen: int, tokens: int) -> None:
    with pytest.raises(ValueError, match="expected 1 ≤ k ≤ E"):
        touched(experts, chosen, tokens)


def test_a_pass_reads_every_touched_expert_once() -> None:
    found = Experts(experts=8, once=2.0, many=5.0, independent=6.0, dense=300.0, expert=100.0)
    assert tuple(found.row()) == COLUMNS
    assert list(found.row().values()) == [8, 2.0, 5.0, 800 / 500, 900 / 500]
    assert Experts(8, 2.0, 2.0, 2.0, 300.0, 100.0).v(2.0) == 1
