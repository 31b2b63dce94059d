"""The best shape of a draft by the formula: the cost and the acceptance of its depth and size.

At equal parameters the latency of a draft grows with its depth, so wide and shallow drafts are better (Yan,
Agarwal, Venkataraman, "Decoding Speculative Decoding", arXiv 2402.01528). Here both sides are fitted, not assumed.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.special import expit, logit

from specbench.theory.formulas import expected_tokens
from specbench.theory.optimum import Costs, break_even_alpha_of

FEWEST = 4  # points for a fit of up to three unknowns: fewer leave no residual
EDGE = 1e-4  # α is kept this far from 0 and 1, where its logit is infinite


@dataclass(frozen=True)
class Spread:
    """The median of some measurements with their quartiles."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        low, middle, high = np.quantile([*values], [0.25, 0.5, 0.75]).tolist()
        return cls(middle, low, high)


@dataclass(frozen=True)
class Choice:
    """The best lookahead of a draft: its tokens per round (TAR), and its speedup."""

    k: int
    tokens: float
    speedup: float


@dataclass(frozen=True)
class DraftTimes:
    """Seconds per drafted token of one draft, and c, over the turns; seconds of first and later tokens of a round."""

    token: Spread
    c: Spread
    first: float
    later: float


@dataclass(frozen=True)
class Speed:
    """The measured times of a target and its drafts by name, and the maximum lookahead.

    step: seconds of a decode step of the target; verify[K], overhead: of a round, in such
    steps; v: by lookahead, the target's pass over K + 1 tokens ÷ that over one.
    """

    step: Spread
    verify: tuple[float, ...]
    overhead: float
    v: Mapping[int, float]
    drafts: Mapping[str, DraftTimes]
    k_max: int

    def rounds(self, first: float, later: float) -> tuple[float, ...]:
        """The costs of rounds with 1..k_max tokens, of a draft with these seconds for first and later tokens."""
        step = self.step.value
        return Costs(first / step, later / step, self.verify, self.overhead).rounds(self.k_max)

    def best(self, name: str, alpha: float) -> Choice:
        return best_choice(alpha, self.rounds(self.drafts[name].first, self.drafts[name].later))

    def break_even(self, name: str) -> float | None:
        """The α above which some lookahead pays; None if none does."""
        return break_even_alpha_of((1.0, *self.rounds(self.drafts[name].first, self.drafts[name].later)))


def best_choice(alpha: float, rounds: Sequence[float]) -> Choice:
    """The lookahead with the greatest E(α, K) ÷ cost of a round, by their costs from K = 1 on;
    its speedup is below 1 if none pays. ValueError if alpha is outside [0, 1]."""
    choices = [Choice(k, t := expected_tokens(alpha, k), t / cost) for k, cost in enumerate(rounds, 1)]
    return max(choices, key=lambda choice: choice.speedup)


def front(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Which points (cost, gain) are on the Pareto front: no other one is as cheap and as good, and better in one."""
    return [not any(c <= cost and g >= gain and (c, g) != (cost, gain) for c, g in points) for cost, gain in points]


def rising(spreads: Sequence[Spread]) -> str:
    """Whether the medians rise with depth, in words; a fall counts if the quartiles are disjoint."""
    steps = list(itertools.pairwise(spreads))
    if all(a.value < b.value for a, b in steps):
        return "rises with depth"
    level = all(a.low <= b.high for a, b in steps)
    return "does not fall with depth beyond its spread" if level else "does NOT rise with depth"


@dataclass(frozen=True)
class LatencyFit:
    """Seconds per drafted token = fixed + per_layer · layers + per_parameter · parameters, by least squares of
    relative errors, with no coefficient below zero. residual: their root mean square; worst: the largest."""

    fixed: float
    per_layer: float
    per_parameter: float
    residual: float
    worst: float
    points: int

    def at(self, layers: int, parameters: float) -> float:
        return self.fixed + self.per_layer * layers + self.per_parameter * parameters


def fit_latency(layers: Sequence[int], parameters: Sequence[float], seconds: Sequence[float]) -> LatencyFit | None:
    """The fit to some shapes. A constant column becomes part of `fixed`; None for fewer than four."""
    if len(seconds) < FEWEST:
        return None
    columns = varying(layers, parameters) / np.asarray(seconds)[:, None]
    scale = np.abs(columns).max(0)
    scale[scale == 0] = 1.0  # a constant column
    found = nnls(columns / scale, np.ones(len(columns)))[0] / scale
    errors = columns @ found - 1
    fixed, per_layer, per_parameter = found.tolist()
    return LatencyFit(fixed, per_layer, per_parameter, rms(errors), float(np.abs(errors).max()), len(columns))


@dataclass(frozen=True)
class AcceptanceFit:
    """logit α = constant + by_parameters · ln parameters + by_layers · ln layers + by_tokens · ln training tokens:
    a description of the trained shapes, not a theory. residual: the root mean square of α's error."""

    constant: float
    by_parameters: float
    by_layers: float
    by_tokens: float
    residual: float
    points: int

    def at(self, layers: int, parameters: float, tokens: float) -> float:
        by = self.by_parameters * math.log(parameters) + self.by_layers * math.log(layers)
        return float(expit(self.constant + by + self.by_tokens * math.log(tokens)))


def fit_acceptance(
    layers: Sequence[int], parameters: Sequence[float], tokens: Sequence[float], alphas: Sequence[float]
) -> AcceptanceFit | None:
    """The fit to some trained shapes; None for fewer than five."""
    if len(alphas) <= FEWEST:
        return None
    a, columns = np.clip(alphas, EDGE, 1 - EDGE), varying(*map(np.log, (parameters, layers, tokens)))
    found = np.linalg.lstsq(columns, logit(a), rcond=None)[0]
    constant, by_parameters, by_layers, by_tokens = found.tolist()
    error = rms(expit(columns @ found) - a)
    return AcceptanceFit(constant, by_parameters, by_layers, by_tokens, error, len(a))


def varying(*values: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """[n, 1 + columns]: ones, and the values; zeros for constant ones, which carry no information."""
    return np.stack([np.ones(len(values[0])), *(np.asarray(c) * bool(np.ptp(c)) for c in values)], 1)


def rms(errors: NDArray[np.float64]) -> float:
    return float(np.sqrt(np.mean(errors**2)))


@dataclass(frozen=True)
class Optimum:
    """A shape's prediction by the formula, from the fits alone, whether measured or not."""

    layers: int
    parameters: float
    alpha: float
    c: float
    choice: Choice


def fitted(
    latency: LatencyFit, acceptance: AcceptanceFit, speed: Speed, shape: tuple[int, float], tokens: float
) -> Optimum:
    """The prediction of both fits and the formula for a shape (layers, parameters) after this many training tokens."""
    seconds, alpha = latency.at(*shape), acceptance.at(*shape, tokens)
    return Optimum(*shape, alpha, seconds / speed.step.value, best_choice(alpha, speed.rounds(seconds, seconds)))
