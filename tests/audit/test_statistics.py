"""The tests of an audit on simulated text: right at the null, and sharp against single faults."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom, kstest

from specbench.audit.statistics import (
    BEST,
    KNOWN,
    OUTSIDE,
    Sampler,
    Scored,
    Step,
    deviations,
    permutation,
    poisson_binomial,
    step_of,
    too_few,
    too_many,
)

VOCABULARY, TOKENS = 200, 48
Rows = NDArray[np.float64]
Draw = Callable[[np.random.Generator, Rows, int], int]  # log-probabilities and position → token


def fair(rng: np.random.Generator, logs: Rows, at: int) -> int:
    return int(rng.choice(len(logs), p=np.exp(logs)))


def scored(logs: Rows, token: int) -> Scored:
    best = np.argsort(-logs)[:KNOWN]
    return Scored(token, tuple((int(one), float(logs[one])) for one in best))


def sampled(draw: Draw, seed: int, answers: int = 24, sampler: Sampler | None = None) -> list[list[Step | None]]:
    """The steps of answers with random distributions."""
    rng, found = np.random.default_rng(seed), list[list[Step | None]]()
    for _ in range(answers):
        tokens: list[int] = []
        row: list[Step | None] = []
        for at in range(TOKENS):
            logits = rng.normal(size=VOCABULARY) * 2.5
            logs = logits - np.log(np.exp(logits).sum())
            token = draw(rng, logs, at)
            row.append(step_of(scored(logs, token), sampler or Sampler(), tokens, 0.0))
            tokens.append(token)
        found.append(row)
    return found


def test_a_distribution_is_given_without_the_tokens_that_are_never_drawn() -> None:
    scores = Scored(5, ((9, math.log(0.5)), (5, math.log(0.3)), (6, math.log(0.1))))
    found = scores.without({9})
    assert [(token, round(math.exp(value), 12)) for token, value in found.top] == [(5, 0.6), (6, 0.2)]
    assert scores.without({1}) is scores
    top = tuple((token, math.log(chance)) for token, chance in ((9, 0.4), (5, 0.3), (6, 0.15), (7, 0.1)))
    raw, known = (step_of(one, Sampler(top_p=0.65), (), 1e-6) for one in (Scored(6, top), Scored(6, top).without({9})))
    assert raw is not None
    assert (raw.drawn, raw.outside) == (None, 0.0)  # the nucleus of 9 and 5, which makes 6 impossible
    assert known is not None
    assert (known.drawn, known.probs) == (1, pytest.approx((2 / 3, 1 / 3)))


def test_fair_text_is_accused_as_often_as_chance_says() -> None:
    p = [[one.p for one in deviations(sampled(fair, seed, answers=6))] for seed in range(40)]
    assert min(map(min, p)) * 9 > 1e-3
    for column in zip(*p, strict=True):  # no test says less than it claims: p is not smaller than uniform
        assert kstest(column, "uniform", alternative="greater").pvalue > 1e-3


@pytest.mark.parametrize(
    ("draw", "name"),
    [
        (lambda rng, logs, at: int(logs.argmax()), BEST),
        (lambda rng, logs, at: fair(rng, logs, at) if at >= 8 else int(rng.integers(VOCABULARY)), OUTSIDE),
        (lambda rng, logs, at: fair(rng, logs, at) if at % 12 else int(logs.argmax()), BEST),
    ],
    ids=["argmax", "garbage in the first tokens", "every twelfth token"],
)
def test_a_fault_is_found(draw: Draw, name: str) -> None:
    found = deviations(sampled(draw, 0))
    worst = min(found, key=lambda one: one.p)
    assert worst.p < 1e-6
    assert any(one.name.startswith(name) and one.p < 1e-5 for one in found)


def test_deviations_that_cancel_are_found_by_their_spread() -> None:
    drawn = iter(range(1 << 20))

    def both(rng: np.random.Generator, logs: Rows, at: int) -> int:
        sharper = logs * (1.5 if next(drawn) // TOKENS % 2 else 0.7)  # every second answer
        return fair(rng, sharper - np.log(np.exp(sharper).sum()), at)

    found = {one.name: one for one in deviations(sampled(both, 3, answers=40))}
    assert found[BEST].p > 1e-3
    assert found[f"{BEST}, spread over answers"].p < 1e-9


def test_the_number_of_unlike_events_has_its_exact_distribution() -> None:
    assert np.allclose(poisson_binomial(np.full(9, 0.3)), binom.pmf(range(10), 9, 0.3))
    two = poisson_binomial(np.array([0.5, 0.1]))
    assert np.allclose(two, [0.45, 0.5, 0.05])
    assert poisson_binomial(np.array([])).tolist() == [1.0]


TOP = tuple((token, math.log(chance)) for token, chance in enumerate((0.4, 0.3, 0.1, 0.1)))


@pytest.mark.parametrize(
    ("sampler", "probs", "outside"),
    [
        (Sampler(), (0.4, 0.3, 0.1, 0.1), 0.1),
        (Sampler(temperature=0.5), (0.16, 0.09, 0.01, 0.01), None),
        (Sampler(top_k=2), (0.4, 0.3), 0.0),
        (Sampler(top_p=0.6), (0.4, 0.3), 0.0),
        (Sampler(min_p=0.5), (0.4, 0.3), 0.0),
        (Sampler(presence=math.log(2)), (0.4, 0.15, 0.1, 0.1), None),
        (Sampler(frequency=math.log(2)), (0.4, 0.075, 0.1, 0.1), None),
        (Sampler(bias={2: math.log(4)}), (0.4, 0.4, 0.3, 0.1), None),
    ],
)
def test_the_null_distribution_follows_the_sampler(
    sampler: Sampler, probs: tuple[float, ...], outside: float | None
) -> None:
    found = step_of(Scored(0, TOP), sampler, [1, 1], 0.0)
    assert found is not None
    assert found.outside == pytest.approx(outside)
    wanted = sorted((one / sum(probs) for one in probs), reverse=True)
    assert found.probs == pytest.approx(wanted)


def test_a_token_that_no_sampler_can_give_proves_a_fault_at_once() -> None:
    steps = [
        [step_of(Scored(0, TOP), Sampler(top_k=2), [], 0.0)] * 5,
        [step_of(Scored(3, TOP), Sampler(top_k=2), [], 0.0)],
    ]
    assert next(one for one in deviations(steps) if one.name == OUTSIDE).p == 0.0


def test_rounding_decides_nothing_at_the_edge_of_a_set() -> None:
    edge = ((0, -0.5), (1, -1.0), (2, -1.0 - 1e-4))
    assert step_of(Scored(2, edge), Sampler(top_k=2), [], 1e-3) is None
    assert step_of(Scored(2, edge), Sampler(top_k=2), [], 1e-6) is not None
    assert step_of(Scored(0, TOP), Sampler(top_k=9), [], 0.0) is None  # more than are known


def test_counts() -> None:
    assert too_many(12, 2.0) < 1e-5 < too_many(4, 2.0)
    assert too_few(1, 400, 0.05) < 1e-6 < too_few(16, 400, 0.05)
    assert permutation([(float(n), n + 1.0) for n in range(16)]) < 1e-3
    assert permutation([(1.0, 1.0)] * 9) == 1.0
