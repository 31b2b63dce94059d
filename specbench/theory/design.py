"""Which shape a draft should have: what depth and size cost, what they buy, and the best of them by the formula.

Knows only numbers; must not know networks, clocks or files. The claim behind it: at equal parameters the latency of a
draft grows with its depth, so wide and shallow drafts are better (Yan, Agarwal, Venkataraman, "Decoding Speculative
Decoding", arXiv 2402.01528). Here both sides are fitted, not assumed.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from specbench.theory.costs import Costs
from specbench.theory.formulas import check_share, expected_tokens

FEWEST = 4  # points for a fit of up to three unknowns: with fewer there is no residual to judge it by
EDGE = 1e-4  # α is kept this far from 0 and 1, where its logit is infinite

Rising = Literal["rises", "level within the spread", "does not rise"]


@dataclass(frozen=True)
class Spread:
    """The median of some measurements with their quartiles."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Choice:
    """The best lookahead of a draft: tokens per round there (TAR), and the speedup that follows."""

    k: int
    tokens: float
    speedup: float


def best_choice(alpha: float, costs: Costs, k_max: int) -> Choice:
    """The lookahead of 1..k_max with the greatest E(α, K) ÷ cost of a round; its speedup is below 1 where none pays.

    ValueError if alpha is outside [0, 1].
    """
    tokens = [expected_tokens(alpha, k) for k in range(1, k_max + 1)]
    speedups = [t / cost for t, cost in zip(tokens, costs.rounds(k_max), strict=True)]
    best = max(range(k_max), key=speedups.__getitem__)
    return Choice(best + 1, tokens[best], speedups[best])


def front(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Of points (cost, gain) which lie on the Pareto front: no other one is as cheap and as good, and better in one."""

    def beaten(cost: float, gain: float) -> bool:
        return any(c <= cost and g >= gain and (c < cost or g > gain) for c, g in points)

    return [not beaten(cost, gain) for cost, gain in points]


def rising(spreads: Sequence[Spread]) -> Rising:
    """Whether the medians rise from one measurement to the next; a fall counts where the quartiles are apart."""
    steps = list(itertools.pairwise(spreads))
    if all(a.value < b.value for a, b in steps):
        return "rises"
    return "level within the spread" if all(a.low <= b.high for a, b in steps) else "does not rise"


@dataclass(frozen=True)
class LatencyFit:
    """Seconds per drafted token = fixed + per_layer · layers + per_parameter · parameters, by least squares.

    Of relative errors, with no coefficient below zero. residual: their root mean square; worst: the largest of them.
    """

    fixed: float
    per_layer: float
    per_parameter: float
    residual: float
    worst: float
    points: int

    def at(self, layers: int, parameters: float) -> float:
        """Seconds of a shape."""
        return self.fixed + self.per_layer * layers + self.per_parameter * parameters


def fit_latency(layers: Sequence[int], parameters: Sequence[float], seconds: Sequence[float]) -> LatencyFit | None:
    """The fit to some shapes. What is the same for all of them becomes part of `fixed`; None for fewer than four."""
    if len(seconds) < FEWEST:
        return None
    y = np.asarray(seconds, dtype=np.float64)
    columns = varying(np.ones(len(y)), np.asarray(layers, np.float64), np.asarray(parameters, np.float64))
    scale = np.abs(columns).max(0)
    scale[scale == 0] = 1.0  # of a column that does not vary
    found, _ = nnls(columns / scale / y[:, None], np.ones(len(y)))
    fixed, per_layer, per_parameter = (float(v) for v in found / scale)
    errors = columns @ (found / scale) / y - 1
    return LatencyFit(fixed, per_layer, per_parameter, rms(errors), float(np.abs(errors).max()), len(y))


@dataclass(frozen=True)
class AcceptanceFit:
    """logit α = constant + by_parameters · ln parameters + by_layers · ln layers + by_tokens · ln training tokens.

    A description of the shapes that were trained, by least squares, not a theory. residual: the root mean square of
    α's error; points: how many trained networks it is from.
    """

    constant: float
    by_parameters: float
    by_layers: float
    by_tokens: float
    residual: float
    points: int

    def at(self, layers: int, parameters: float, tokens: float) -> float:
        """α of a shape after so many training tokens."""
        by = self.by_parameters * math.log(parameters) + self.by_layers * math.log(layers)
        return expit(self.constant + by + self.by_tokens * math.log(tokens))


def fit_acceptance(
    layers: Sequence[int], parameters: Sequence[float], tokens: Sequence[float], alphas: Sequence[float]
) -> AcceptanceFit | None:
    """The fit to some trained shapes; None for fewer than five. ValueError if an α is outside [0, 1]."""
    for alpha in alphas:
        check_share("alpha", alpha)
    if len(alphas) <= FEWEST:
        return None
    a = np.clip(np.asarray(alphas, np.float64), EDGE, 1 - EDGE)
    logs = [np.log(np.asarray(x, np.float64)) for x in (parameters, layers, tokens)]
    columns = varying(np.ones(len(a)), *logs)
    found, *_ = np.linalg.lstsq(columns, np.log(a / (1 - a)), rcond=None)
    errors = np.array([expit(float(x)) for x in columns @ found]) - a
    constant, by_parameters, by_layers, by_tokens = (float(v) for v in found)
    return AcceptanceFit(constant, by_parameters, by_layers, by_tokens, rms(errors), len(a))


def varying(*columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """[n, columns] with zeros for every column but the first that is the same everywhere: it says nothing."""
    first, *rest = columns
    return np.stack([first, *(c if np.ptp(c) else np.zeros_like(c) for c in rest)], 1)


def rms(errors: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean(errors**2)))


def expit(x: float) -> float:
    """1 ÷ (1 + e^−x)."""
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


@dataclass(frozen=True)
class Optimum:
    """A shape as the formula sees it: from the fits alone, measured or not."""

    layers: int
    parameters: float
    alpha: float
    c: float
    choice: Choice


@dataclass(frozen=True)
class Target:
    """What a target costs beside any draft: seconds of a step; verify[K] and overhead of a round, in such steps."""

    step: float
    verify: tuple[float, ...]
    overhead: float

    def costs(self, first: float, later: float) -> Costs:
        """Of a round with a draft whose first and later tokens take so many seconds."""
        return Costs(first / self.step, later / self.step, self.verify, self.overhead)


def optimum(
    fits: tuple[LatencyFit, AcceptanceFit],
    target: Target,
    shapes: Iterable[tuple[int, float]],
    tokens: float,
    k_max: int,
) -> Optimum:
    """The shape (layers, parameters) with the greatest speedup by the formula after so many training tokens."""
    found = [fitted(fits, target, shape, tokens, k_max) for shape in shapes]
    return max(found, key=lambda one: one.choice.speedup)


def fitted(
    fits: tuple[LatencyFit, AcceptanceFit], target: Target, shape: tuple[int, float], tokens: float, k_max: int
) -> Optimum:
    """What both fits and the formula say of a shape."""
    latency, acceptance = fits
    seconds, alpha = latency.at(*shape), acceptance.at(*shape, tokens)
    return Optimum(*shape, alpha, seconds / target.step, best_choice(alpha, target.costs(seconds, seconds), k_max))
