"""Drafting while verifying by formula: values by hand, and its two ends."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.theory.while_verifying import always_ready, by_hits, hit_of_one, one_after_another

costs = st.floats(0, 10)


def test_values_by_hand() -> None:
    """E = 3 tokens for K = 4 drafts of c = 0.2 (Kc = 0.8) and a pass of v = 1.2."""
    assert one_after_another(3, 0.8, 1.2) == 1.5  # 3 / 2
    assert always_ready(3, 0.8, 1.2) == 2.5  # 3 / max(0.8, 1.2)
    assert by_hits(3, 0.8, 1.2, 0.5) == pytest.approx(3 / 1.6)  # 3 / (1.2 + 0.5 · 0.8)
    assert by_hits(3, 0.8, 1.2, 0.5, 0.4) == pytest.approx(1.5)  # 3 / (1.6 + 0.4)
    assert always_ready(3, 1.5, 1.0) == 2.0  # 3 / max(1.5, 1)
    assert by_hits(3, 1.5, 1.0, 0.5) == 1.5  # 3 / (0.5 · 1.5 + 0.5 · 2.5): a hit waits for the rest of the draft
    assert hit_of_one(0.5, 2) == 0.125


@settings(max_examples=50)
@given(drafting=costs, v=st.floats(0.1, 10), hit=st.floats(0, 1))
def test_no_hit_is_one_after_another_and_nothing_but_hits_the_most_there_is(
    drafting: float, v: float, hit: float
) -> None:
    low, high = one_after_another(2, drafting, v), always_ready(2, drafting, v)
    assert by_hits(2, drafting, v, 0) == pytest.approx(low)
    assert by_hits(2, drafting, v, 1) == pytest.approx(high)
    assert low * (1 - 1e-12) <= by_hits(2, drafting, v, hit) <= high * (1 + 1e-12)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [((-1, 1, 0.5), "what a round drafts"), ((1, -1, 0.5), "v must be"), ((1, 1, 1.5), "hit must lie"),
     ((0, 0, 1.0), "more than nothing")],
)  # fmt: skip
def test_what_is_no_cost_or_share_is_refused(numbers: tuple[float, float, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        by_hits(3, *numbers)
