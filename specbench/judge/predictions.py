"""What the formulas say: for a given alpha and c, and for the cells that a run measured.

Knows the formulas and columns of results.csv; must not know how a prediction is shown. Loads nothing heavy: the command
answers at once.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile

from specbench.errors import UsageError
from specbench.judge.drafts import at_once, drafting
from specbench.theory import formulas, optimum
from specbench.wording import clean, ranges

ROUNDING = 1e-5  # a mean of float32 sums of min(p, q) may exceed 1 by this much when draft and target agree
NEEDED = ("k", "alpha", "c", "speedup")


@dataclass(frozen=True)
class Prediction:
    """What the formulas say for one (alpha, c, K). None = undefined at this K, or reached by no alpha.

    at_once: c and c_hat are those of all drafts of a round, which one pass drafts, and not of one token.
    """

    alpha: float
    c: float
    c_hat: float
    k: int
    expected_tokens: float
    speedup_predicted: float
    operations: float
    accepted_per_drafted: float | None
    break_even_alpha: float | None
    best_k: int
    best_speedup: float
    near_best_low: int
    near_best_high: int
    at_once: bool


@dataclass(frozen=True)
class Measured:
    """One measured row of a run beside its predictions. None = the run did not measure what the number needs.

    c_round: all drafts of a round ÷ a baseline step. Where one pass makes them all, that is what every other K would
    cost, too, and best_k the greatest there is; near_best says from which K on more tokens add less than 1 %.
    """

    dataset: str
    method: str
    k: int
    alpha: float
    c: float
    c_round: float
    v: float | None
    overhead: float | None
    speedup: float
    speedup_predicted: float
    speedup_calibrated: float | None
    best_k: int
    best_speedup: float
    near_best: str


def predictions(alpha: float, c: float, c_hat: float, ks: list[int], at_once: bool = False) -> list[Prediction]:
    """One Prediction per K; see there what c is at once. ValueError if an argument is out of range."""
    best, best_speedup = optimum.best_k(alpha, c, at_once=at_once)
    near = optimum.near_best(alpha, c, at_once=at_once)
    near = [k for k in near if (k > 0) == (best > 0)] if at_once else near  # those in one piece with the best
    return [
        Prediction(
            alpha=alpha,
            c=c,
            c_hat=c_hat,
            k=k,
            expected_tokens=formulas.expected_tokens(alpha, k),
            speedup_predicted=formulas.speedup(alpha, k, c, at_once),
            operations=formulas.operations(alpha, k, c_hat, at_once),
            accepted_per_drafted=formulas.accepted_per_drafted(alpha, k) if k else None,
            break_even_alpha=optimum.break_even_alpha(k, c, at_once) if k else None,
            best_k=best,
            best_speedup=best_speedup,
            near_best_low=near[0],
            near_best_high=near[-1],
            at_once=at_once,
        )
        for k in ks
    ]


def read_cell(row: Mapping[str, str], where: str) -> Measured:
    """One row of results.csv beside its predictions. UsageError, naming the place, if a value makes no sense."""
    try:
        k, alpha, c, speedup = (number(row, name) or 0.0 for name in NEEDED)
        if not k.is_integer() or k > formulas.K_MAX:
            raise ValueError(f"k must be a whole number of at most {formulas.K_MAX}, got {k:g}")
        alpha = as_share(alpha)
        v, overhead = number(row, "v"), number(row, "overhead")
        one, of_round = at_once(row), drafting(row) or k * c
        cost = of_round if one else c  # what the formula has, also for other K
        per_token = of_round / k if one and k else c  # lookups that find nothing draft fewer than K
        best, best_speedup = optimum.best_k(alpha, cost, at_once=one)
        return Measured(
            dataset=clean(row.get("dataset", ""), 300),
            method=clean(row.get("method", "")),
            k=int(k),
            alpha=alpha,
            c=c,
            c_round=of_round,
            v=v,
            overhead=overhead,
            speedup=speedup,
            speedup_predicted=formulas.speedup(alpha, int(k), cost, one),
            speedup_calibrated=calibrated(row, int(k), per_token, v, overhead),
            best_k=best,
            best_speedup=best_speedup,
            near_best=ranges(optimum.near_best(alpha, cost, at_once=one)),
        )
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error


def calibrated(row: Mapping[str, str], k: int, c: float, v: float | None, overhead: float | None) -> float | None:
    accepted = accepted_by_position(row, k)
    if v is None or overhead is None or accepted is None:
        return None
    return formulas.speedup_calibrated(accepted, k, c, v, overhead)


def accepted_by_position(row: Mapping[str, str], k: int) -> list[float] | None:
    """The K conditional acceptances of a row; None where one is missing."""
    measured = [number(row, f"acceptance_at_{position}") for position in range(1, k + 1)]
    tested = takewhile(lambda acceptance: acceptance is not None, measured)
    known = [as_share(acceptance) for acceptance in tested if acceptance is not None]
    # No round gets past a position that never accepts: later ones were not tested and count for nothing.
    complete = len(known) == k or 0.0 in known
    return [*known, *[0.0] * (k - len(known))] if complete else None


def as_share(value: float) -> float:
    return 1.0 if 1 < value <= 1 + ROUNDING else value


def number(row: Mapping[str, str], name: str) -> float | None:
    """The value of a column; None if it is absent or blank. ValueError if it is not a finite number."""
    text = row.get(name, "").strip()
    try:
        value = float(text or 0)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError(f"{name} is {text!r}, not a finite number")
    return value if text else None
