"""Results of a design: a row for each shape, and fits of latency, which grows with depth at equal parameters (Yan et
al., arXiv 2402.01528), and of acceptance."""

import itertools
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.special import expit, logit

from specbench.results import statistics
from specbench.results.cells import Cell
from specbench.results.statistics import Interval
from specbench.theory.formulas import expected_tokens
from specbench.theory.optimum import Costs, break_even_alpha_of
from specbench.training.start import Shape

PROMISING = 0.9  # highest break-even α of a shape that is trained
FEWEST = 4  # points for a fit of up to three unknowns: fewer leave no residual
EDGE = 1e-4  # α is kept this far from 0 and 1, where its logit is infinite
FINER = 4  # sizes evaluated by the formula between two budgets
MEASURED = ("tokens_per_second", "speedup", "speedup_low", "speedup_high", "lossless", "status")
TRAINED = ("trained_tokens", "alpha", "k", "tokens_per_round", "speedup_predicted", "tokens_per_second_predicted")
Row = dict[str, Any]


@dataclass(frozen=True)
class Spread:
    """The median of some measurements with their quartiles."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        return cls(*np.quantile([*values], [0.5, 0.25, 0.75]).tolist())


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
    """The measured times of a target and its drafts by name. step: seconds of a decode step of the target; verify[K],
    overhead: of a round, in such steps; v: by lookahead, the target's pass over K + 1 tokens ÷ that over one."""

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

    def promises(self, name: str) -> bool:
        even = self.break_even(name)
        return even is not None and even <= PROMISING


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


@dataclass(frozen=True)
class Candidate:
    """A shape within a budget, and its number of parameters."""

    budget: int
    shape: Shape
    parameters: int

    @property
    def name(self) -> str:
        """Budget, layers and width, as in 1M-4x128."""
        return f"{short(self.budget)}-{self.shape.layers}x{self.shape.hidden}"

    @property
    def model(self) -> str:
        """The name of its network in method files."""
        return f"draft-{self.name.replace('.', '-')}"


def short(number: int) -> str:
    """A number of parameters in short form: 1M, 1.5M, 500k."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.4g}{unit}"
    return str(number)


@dataclass(frozen=True)
class Found:
    """The results of a design: rungs of training, best first; α by name and training tokens; measured cells by name."""

    counted: Literal["all", "layers"]
    candidates: Sequence[Candidate]
    speed: Speed
    steps: Sequence[int]
    rungs: Sequence[Sequence[Candidate]]
    alphas: Mapping[str, Mapping[int, float]]
    cells: Mapping[str, Cell] = field(default_factory=dict)

    def best_of(self, name: str) -> Choice:
        return self.speed.best(name, self.alphas[name][max(self.alphas[name])])

    @cached_property
    def rows(self) -> list[Row]:
        """One row per shape: first the measured ones, fastest first."""
        columns = ("tokens_per_second", "tokens_per_second_predicted")
        return sorted(map(self.row, self.candidates), key=lambda row: [-(row[column] or 0) for column in columns])

    def row(self, one: Candidate) -> Row:
        times, step = self.speed.drafts[one.name], self.speed.step.value
        row = {
            "name": one.name,
            "budget": one.budget,
            "budget_counts": self.counted,
            **asdict(one.shape),
            "parameters": one.parameters,
            "parameters_in_layers": one.shape.parameters(0),
            "latency_ms": 1000 * times.token.value,
            "latency_low_ms": 1000 * times.token.low,
            "latency_high_ms": 1000 * times.token.high,
            "target_step_ms": 1000 * step,
            "c": times.c.value,
            "c_low": times.c.low,
            "c_high": times.c.high,
            "break_even_alpha": self.speed.break_even(one.name),
            **dict.fromkeys(TRAINED),
        }
        if alphas := self.alphas.get(one.name):
            last, best = max(alphas), self.best_of(one.name)
            trained = (last, alphas[last], best.k, best.tokens, best.speedup, best.speedup / step)
            row |= zip(TRAINED, trained, strict=True)
        cell = self.cells[one.name].row() if one.name in self.cells else {}
        row |= {column: cell.get(column) for column in MEASURED}
        row |= {f"measured_{column}": cell.get(column) for column in ("alpha", "tokens_per_round", "c")}
        row |= {"reached": self.reached(one), **dict.fromkeys(("compared_k", "compared_tokens_per_round", "on_front"))}
        return row | self.compared.get(one.name, {})

    def reached(self, one: Candidate) -> str:
        """The last stage that a shape reached."""
        if one.name not in self.alphas:
            even = self.speed.break_even(one.name)
            return "not trained: " + ("no α pays" if even is None else f"pays only from α = {even:.2f} on")
        tokens = max(self.alphas[one.name])
        return "trained to the end" if tokens == self.steps[-1] else f"dropped after {tokens:,} tokens"

    @cached_property
    def compared(self) -> dict[str, Row]:
        """The trained shapes after the first rung, so after equally many tokens, at the best lookahead of the best one.
        On the front, no other shape is as cheap and accepted as often."""
        points = {name: (self.speed.drafts[name].c.value, known[self.steps[0]]) for name, known in self.alphas.items()}
        best, on_front = self.rungs[0][0].name, front(list(points.values()))
        k = self.speed.best(best, points[best][1]).k
        return {
            name: {"compared_k": k, "compared_tokens_per_round": expected_tokens(alpha, k), "on_front": on}
            for (name, (_, alpha)), on in zip(points.items(), on_front, strict=True)
        }

    @property
    def best(self) -> Row:
        """The shape to train further: the fastest measured one; without a measurement, the fastest predicted one."""
        return next((row for row in self.rows if row["status"] == "ok"), self.rows[0])

    def gain(self, name: str, other: str) -> Interval:
        """Measured tokens per second of a draft ÷ those of another, paired by prompt."""
        arms = [[sample.method for sample in self.cells[one].samples] for one in (other, name)]
        before, after = (([trace.seconds for trace in arm], [len(trace.tokens) for trace in arm]) for arm in arms)
        return statistics.speedup_interval(*before, *after)

    @cached_property
    def latency_fit(self) -> LatencyFit | None:
        some = [(one.shape.layers, one.parameters, self.speed.drafts[one.name].token.value) for one in self.candidates]
        return fit_latency(*map(list, zip(*some, strict=True)))

    @cached_property
    def acceptance_fit(self) -> AcceptanceFit | None:
        some = [
            (o.shape.layers, o.parameters, *at) for o in self.candidates for at in self.alphas.get(o.name, {}).items()
        ]
        return fit_acceptance(*map(list, zip(*some, strict=True)))

    @cached_property
    def optimum_by_fits(self) -> Optimum | None:
        """The best shape by both fits and the formula, among depths and sizes within the timed range."""
        depths, sizes = {one.shape.layers for one in self.candidates}, {one.parameters for one in self.candidates}
        count = FINER * max(len(sizes) - 1, 1)
        between = [min(sizes) * (max(sizes) / min(sizes)) ** (n / count) for n in range(count + 1)]
        found = [self.by_fits(*shape) for shape in itertools.product(range(min(depths), max(depths) + 1), between)]
        return max((one for one in found if one is not None), key=lambda one: one.choice.speedup, default=None)

    def by_fits(self, layers: int, parameters: float) -> Optimum | None:
        """The prediction for a shape after all training tokens; None without both fits."""
        if self.latency_fit is None or self.acceptance_fit is None:
            return None
        seconds = self.latency_fit.at(layers, parameters)
        alpha, rounds = self.acceptance_fit.at(layers, parameters, self.steps[-1]), self.speed.rounds(seconds, seconds)
        return Optimum(layers, parameters, alpha, seconds / self.speed.step.value, best_choice(alpha, rounds))

    @property
    def document(self) -> dict[str, Any]:
        """The content of json: rows, the fits and their optimum as dataclasses, the target's costs."""
        speed, step = self.speed, self.speed.step.value
        rungs = zip(self.steps, self.rungs, strict=True)
        return {
            "shapes": self.rows,
            **{name: getattr(self, name) for name in ("latency_fit", "acceptance_fit", "optimum_by_fits")},
            "target": {"step_ms": 1000 * step, "v": speed.v, "verify": speed.verify, "overhead": speed.overhead},
            "rungs": [{"tokens": tokens, "order": [one.name for one in rung]} for tokens, rung in rungs],
        }

    def command(self, target: str, data: Sequence[str], generate: bool) -> str:
        """The next command: training the best shape on more text."""
        shape = [word for name in ("layers", "hidden", "intermediate") for word in (f"--{name}", str(self.best[name]))]
        texts = [word for name in data for word in ("--data", name)]
        end = ["--generate" if generate else "--as-it-is", "--output", "my-draft"]
        return shlex.join(["specbench", "train", "draft", "--target", target, *shape, *texts, *end])
