"""Holm's limits: the farthest z is held against that of all tests together."""

import pytest

from specbench.judge.lossless_text import LEVEL, judged
from specbench.results.tally import Tally


def of(z: float) -> Tally:
    return Tally(100, z, 0.0, 1.0)


def test_limits_fall_from_the_farthest_on() -> None:
    found = judged({"a": of(0.5), "b": of(-2.0), "c": of(1.0)}, level=0.05)
    assert [found[name].limit for name in "bca"] == pytest.approx([2.394, 2.241, 1.960], abs=1e-3)
    assert not any(test.differs for test in found.values())


def test_a_z_beyond_its_limit_differs_only_if_all_farther_ones_do() -> None:
    found = judged({"a": of(2.1), "b": of(2.3), "c": of(0.0)}, level=0.05)
    assert [test.differs for test in found.values()] == [False, False, False]  # 2.1 is beyond 1.96, 2.3 within 2.394
    found = judged({"a": of(2.3), "b": of(-2.5), "c": of(0.0)}, level=0.05)
    assert [test.differs for test in found.values()] == [True, True, False]


def test_no_number_is_no_excuse() -> None:
    found = judged({"a": of(float("nan")), "b": of(float("inf")), "c": of(1.0)})
    assert [test.differs for test in found.values()] == [True, True, False]
    assert LEVEL == 0.001
    assert judged({}) == {}
