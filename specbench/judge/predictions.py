"""Predictions of the formulas for a given alpha and c, and for the cells of a run.

Also the acceptance of such a cell as a profile, for simulation with other weights or by another engine. Loads
nothing heavy, so that the command answers at once.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specbench.errors import UsageError
from specbench.judge.advice import at_once, drafting, drafts_trees
from specbench.presets import DIGITS, Profile
from specbench.spec import BASELINE, CHOOSING
from specbench.theory import formulas, optimum
from specbench.wording import Row, clean, number_in, ranges, text_in

ROUNDING = 1e-5  # a mean of float32 sums of min(p, q) may exceed 1 by this much when draft and target agree
NEEDED = ("k", "alpha", "c", "speedup")


@dataclass(frozen=True)
class Prediction:
    """Predictions for one (alpha, c, K). None means undefined at this K, or reached by no alpha.

    at_once: c and c_hat are for a whole draft, made by one pass, and not for one token.
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
    """One measured row of a run with its predictions. None if the run did not measure the inputs.

    c_round: draft time of a round ÷ a baseline step. If one pass makes a whole draft, every other K would
    cost the same, and best_k is the greatest; near_best gives the K from which more tokens add less than 1 %.
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
    """One Prediction per K; see there for c at once. ValueError if an argument is out of range."""
    best, best_speedup = optimum.best_k(alpha, c, at_once=at_once)
    near = optimum.near_best(alpha, c, at_once=at_once)
    near = [k for k in near if (k > 0) == (best > 0)] if at_once else near  # only those contiguous with the best
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
    """One row of results.csv with its predictions. UsageError, naming the location, for an impossible value."""
    try:
        k, alpha, c, speedup = (number(row, name) or 0.0 for name in NEEDED)
        if not k.is_integer() or k > formulas.K_MAX:
            raise ValueError(f"k must be a whole number of at most {formulas.K_MAX}, got {k:g}")
        alpha = as_share(alpha)
        v, overhead = number(row, "v"), number(row, "overhead")
        one, of_round = at_once(row), drafting(row) or k * c
        cost = of_round if one else c  # the formula's cost, also for other K
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
            speedup_calibrated=number(row, "speedup_calibrated"),
            best_k=best,
            best_speedup=best_speedup,
            near_best=ranges(optimum.near_best(alpha, cost, at_once=one)),
        )
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error


def calibrated_at(row: Row, cell: Measured, k: int, costs: Mapping[int, float]) -> float | None:
    """The calibrated speedup of a measured cell if it drafted k tokens. None unless every round drafts a chain of K.

    Positions beyond those that were tested accept with its alpha, and its texts stay as long. costs: drafting and
    verifying a round, by K, of cells that differ in K alone, this one's too, in baseline steps.
    """
    known, (tokens, prompts, repeats) = conditional(row), (number_in(row, n) for n in ("tokens", "prompts", "repeat"))
    differing = text_in(row, "schedule") not in ("", "constant") or (number_in(row, "drafted_per_round") or 0) < cell.k
    if not (known and tokens and prompts and cell.k) or differing or cell.v is None or cell.overhead is None:
        return None
    if not k:
        return 1.0
    length = max(1, round(tokens / (prompts * (repeats or 1))))
    alphas = [*map(as_share, known[:k]), *[cell.alpha] * (k - len(known))]
    emitted = formulas.tokens_of_texts(formulas.round_chances(alphas), [length])
    return emitted / (cost_at(cell, k, costs, at_once(row)) + cell.overhead)


def cost_at(cell: Measured, k: int, costs: Mapping[int, float], at_once: bool) -> float:
    """A line through the two nearest K; with one alone, every drafted token and every row but the first costs the same.

    A second row may cost more than those after it, as on a CPU: one K does not show that.
    """
    if len(costs) < 2:
        return cell.c_round * (1 if at_once else k / cell.k) + 1 + ((cell.v or 1) - 1) * k / cell.k
    near, next_ = sorted(costs, key=lambda one: abs(one - k))[:2]
    return costs[near] + (costs[next_] - costs[near]) * (k - near) / (next_ - near)


def costs_by_k(cells: Iterable[Measured]) -> dict[int, float]:
    """Drafting and verifying a round by K, in baseline steps, as far as known."""
    return {cell.k: cell.c_round + cell.v for cell in cells if cell.v is not None and cell.k}


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


ABOUT = ("engine", "target", "draft", "method", "k", "dataset", "temperature", "max_new_tokens", "prompts", "rounds",
         "specbench")  # fmt: skip


def profile_of_run(rows: Sequence[Row], cell: str = "") -> tuple[Profile, dict[str, Any]]:
    """The profile of the only chain cell, or of the one that `cell` names by key, method or K; and its measurement.

    UsageError unless exactly one matches.
    """
    found = [row for row in rows if text_in(row, "method") not in (BASELINE, CHOOSING) and conditional(row)]
    if cell:
        found = [row for row in found if text_in(row, "cell").startswith(cell) or is_name_of(cell, name_of(row))]
    names = ", ".join(f"{text_in(row, 'cell')} ({name_of(row)})" for row in found)
    if len(found) != 1:
        wrong = f"several cells have a profile: choose one with --cell: {names}" if found else "no cell drafted a chain"
        raise UsageError(wrong + f" that --cell {clean(cell)} names" * bool(cell and not found))
    (row,) = found
    about = {name: text_in(row, name) for name in ABOUT if text_in(row, name)}
    return Profile(conditional(row), f"specbench, {name_of(row)}"), {**about, "cell": text_in(row, "cell")}


def conditional(row: Row) -> tuple[float, ...]:
    """Acceptance by position up to the first untested one; empty for trees."""
    if drafts_trees(row):
        return ()
    found: list[float] = []
    while (chance := number_in(row, f"acceptance_at_{len(found) + 1}")) is not None:
        found.append(round(chance, DIGITS))
    return tuple(found)


def name_of(row: Row) -> str:
    parts = (text_in(row, "dataset"), text_in(row, "method"), f"K{text_in(row, 'k')}")
    return clean(" ".join(parts), 200)


def is_name_of(given: str, name: str) -> bool:
    """Whether a user's name denotes a cell: the method, the lookahead, or both; `K = 4`, `k=4` and `K4` are equal."""
    words, own = squeezed(given), squeezed(name)
    return words == own or words in own.split(" ")


def squeezed(name: str) -> str:
    """Lower case, without commas, and with the number joined to its K."""
    return re.sub(r"\bk\s*=?\s*(?=[\d≤])", "k", " ".join(name.lower().replace(",", " ").split()))
