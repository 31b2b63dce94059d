"""z of tokens against the distributions that they should come from: by hand, and over many texts."""

import math

import numpy as np
import pytest

from specbench.results.statistics import Tally, all_together, two_sided


def test_z_is_the_excess_in_standard_deviations() -> None:
    tally = Tally(tokens=4, observed=5.0, expected=3.0, variance=4.0)
    assert tally.z == pytest.approx(1.0)
    assert tally.excess == pytest.approx(0.5)
    assert two_sided(tally.z) == pytest.approx(0.3173105)
    assert two_sided(-tally.z) == two_sided(tally.z)


def test_texts_add_up() -> None:
    whole = all_together([Tally(2, 1.0, 0.5, 0.25), Tally(3, 2.0, 2.5, 0.75)])
    assert whole == Tally(5, 3.0, 3.0, 1.0)
    assert all_together([]) == Tally(0, 0.0, 0.0, 0.0)


def test_what_cannot_be_is_infinitely_far() -> None:
    assert Tally(3, 0.0, 0.0, 0.0).z == 0
    assert Tally(3, 1.0, 0.0, 0.0).z == math.inf
    assert Tally(3, math.inf, 1.0, 1.0).z == math.inf
    assert two_sided(math.inf) == two_sided(math.nan) == 0
    assert math.isnan(Tally(0, 0.0, 0.0, 0.0).excess)


def test_z_of_tokens_that_depend_on_each_other_is_standard_normal() -> None:
    """A chain of two states, each of which decides how surprising the next token can be: 2000 texts of 200 tokens."""
    rng, rows = np.random.default_rng(0), np.array([[0.9, 0.1], [0.4, 0.6]])
    surprise = -np.log(rows)
    mean = (rows * surprise).sum(1)
    variance = (rows * surprise**2).sum(1) - mean**2
    state, sums = np.zeros(2000, dtype=int), np.zeros((3, 2000))
    for _ in range(200):
        token = (rng.random(2000) > rows[state, 0]).astype(int)
        sums += surprise[state, token], mean[state], variance[state]
        state = token
    z = np.array([Tally(200, *parts).z for parts in sums.T])
    assert abs(z.mean()) < 4 / math.sqrt(2000)
    assert z.std() == pytest.approx(1, abs=0.06)
    assert (np.abs(z) > 1.96).mean() == pytest.approx(0.05, abs=0.015)
