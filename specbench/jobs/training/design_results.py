"""Results of a design: a row for each shape, fits of latency and acceptance, and findings in sentences."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import product
from typing import Any, Literal

from specbench.results import statistics
from specbench.results.cells import Cell
from specbench.results.statistics import Interval
from specbench.theory import design, formulas
from specbench.theory.design import AcceptanceFit, Choice, LatencyFit, Optimum, Speed, Spread
from specbench.training.start import Shape
from specbench.wording import counted, finite_or_none, grouped, interval_text

PROMISING = 0.9  # highest break-even α of a shape that is trained
NEAR = 0.05  # tolerance for agreement of a fitted and a measured optimum, as the optimum is flat
FINER = 4  # sizes evaluated by the formula between two budgets
MEASURED = ("tokens_per_second", "speedup", "speedup_low", "speedup_high", "lossless", "status")
TRAINED = ("trained_tokens", "alpha", "k", "tokens_per_round", "speedup_predicted", "tokens_per_second_predicted")
Row = dict[str, Any]


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


def promising(one: Candidate, speed: Speed) -> bool:
    even = speed.break_even(one.name)
    return even is not None and even <= PROMISING


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
        """The trained shapes after the first rung, at the best lookahead of the best one.

        All have learned equally many tokens. On the front, no other shape is as cheap and accepted as often.
        """
        points = {name: (self.speed.drafts[name].c.value, known[self.steps[0]]) for name, known in self.alphas.items()}
        best, on_front = self.rungs[0][0].name, design.front(list(points.values()))
        k = self.speed.best(best, points[best][1]).k
        return {
            name: {"compared_k": k, "compared_tokens_per_round": formulas.expected_tokens(alpha, k), "on_front": on}
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
        return design.fit_latency(*map(list, zip(*some, strict=True)))

    @cached_property
    def acceptance_fit(self) -> AcceptanceFit | None:
        some = [
            (one.shape.layers, one.parameters, tokens, alpha)
            for one in self.candidates
            for tokens, alpha in self.alphas.get(one.name, {}).items()
        ]
        return design.fit_acceptance(*map(list, zip(*some, strict=True)))

    @cached_property
    def optimum_by_fits(self) -> Optimum | None:
        """The best shape by both fits and the formula, among depths and sizes within the timed range."""
        depths, sizes = {one.shape.layers for one in self.candidates}, {one.parameters for one in self.candidates}
        count = FINER * max(len(sizes) - 1, 1)
        between = [min(sizes) * (max(sizes) / min(sizes)) ** (n / count) for n in range(count + 1)]
        found = [self.by_fits(*shape) for shape in product(range(min(depths), max(depths) + 1), between)]
        return max((one for one in found if one is not None), key=lambda one: one.choice.speedup, default=None)

    def by_fits(self, layers: int, parameters: float) -> Optimum | None:
        """The prediction for a shape; None without fits."""
        if self.latency_fit is None or self.acceptance_fit is None:
            return None
        return design.fitted(self.latency_fit, self.acceptance_fit, self.speed, (layers, parameters), self.steps[-1])

    @property
    def document(self) -> dict[str, Any]:
        """The content of design.json: rows, the fits and their optimum as dataclasses, the target's costs."""
        speed, fits = self.speed, ("latency_fit", "acceptance_fit", "optimum_by_fits")
        orders = [[one.name for one in rung] for rung in self.rungs]
        return {
            "shapes": self.rows,
            **{name: getattr(self, name) for name in fits},
            "target": {
                "step_ms": 1000 * speed.step.value,
                "v": speed.v,
                "verify": speed.verify,
                "overhead": speed.overhead,
            },
            "rungs": [{"tokens": tokens, "order": order} for tokens, order in zip(self.steps, orders, strict=True)],
        }


def findings(found: Found) -> list[str]:
    """The findings, one sentence each: the target, depth, the fits, the optimum, the best draft."""
    speed = found.speed
    passes = ", ".join(f"{v:.2f}× at K {k}" for k, v in speed.v.items())
    step = (
        f"a step of the target takes {milliseconds(speed.step, ' ms')}; its pass over K + 1 tokens, in passes over one "
        f"(v): {passes}"
    )
    return [step, *depth_lines(found), *fit_lines(found), *optimum_lines(found), *best_lines(found)]


def milliseconds(time: Spread, unit: str = "") -> str:
    return f"{1000 * time.value:.3g}{unit} [{1000 * time.low:.3g}, {1000 * time.high:.3g}]"


def depth_lines(found: Found) -> list[str]:
    """Whether latency rises with depth at equal parameters, for every budget with several depths."""
    lines = []
    for some in grouped(found.candidates, lambda one: one.budget):
        ordered = sorted(some, key=lambda one: one.shape.layers)
        times = [found.speed.drafts[one.name].token for one in ordered]
        depths, shown = ", ".join(str(one.shape.layers) for one in ordered), ", ".join(map(milliseconds, times))
        if len(some) > 1:
            lines.append(
                f"{short(some[0].budget)} parameters: the latency {design.rising(times)}: {shown} ms per token "
                f"at {depths} layers (quartiles)"
            )
    return lines


def fit_lines(found: Found) -> list[str]:
    lines = []
    if (time := found.latency_fit) is not None:
        lines.append(
            f"latency ≈ {1000 * time.fixed:.3g} ms + {1000 * time.per_layer:.3g} ms per layer + "
            f"{1e9 * time.per_parameter:.3g} ms per million parameters; error {time.residual:.1%} (root mean square), "
            f"at most {time.worst:.1%}, over {counted(time.points, 'shape')}"
        )
    if (gain := found.acceptance_fit) is not None:
        lines.append(
            f"logit α ≈ {gain.constant:.3g} {gain.by_parameters:+.3g} ln parameters {gain.by_layers:+.3g} ln layers "
            f"{gain.by_tokens:+.3g} ln tokens; error of α {gain.residual:.3f} over "
            f"{counted(gain.points, 'trained draft')}"
        )
    return lines


def optimum_lines(found: Found) -> list[str]:
    """The optimum by the fits next to the measured one, with their agreement."""
    one, best = found.optimum_by_fits, found.best
    same = found.by_fits(best["layers"], best["parameters"])
    if one is None or same is None:
        return ["too few shapes were timed or trained for fits, and so for an optimum by the formula"]
    agree = same.choice.speedup >= (1 - NEAR) * one.choice.speedup
    return [
        f"best by the fits and the formula: {counted(one.layers, 'layer')} and {short(round(one.parameters))} "
        f"parameters, {one.choice.speedup:.2f}× at K {one.choice.k}; best "
        f"{'measured' if best['status'] == 'ok' else 'predicted, nothing being measured,'}: {best['name']}, for which "
        f"they give {same.choice.speedup:.2f}×: {'they agree' if agree else 'they DISAGREE'}"
    ]


def best_lines(found: Found) -> list[str]:
    """The best shape against the deepest of its budget, in measured tokens per second; which one to train further."""
    best, lines = found.best, []
    measured = best["status"] == "ok"
    others = [row for row in found.rows if row["budget"] == best["budget"] and row["status"] == "ok"]
    deep = max(others, key=lambda row: int(row["layers"]), default=best)
    if deep is not best:
        gain = found.gain(best["name"], deep["name"])
        lines.append(
            f"{best['name']} decodes {best['tokens_per_second']:.1f} tokens/s, {gain.value:.2f}× "
            f"{interval_text(finite_or_none(gain.low), finite_or_none(gain.high))} those of {deep['name']}, the "
            f"deepest of its budget that was trained as long ({deep['tokens_per_second']:.1f} tokens/s)"
        )
    elif len(others) > 1:
        lines.append(f"{best['name']} is the deepest of its budget that was measured")
    if not any(promising(one, found.speed) for one in found.candidates):
        return [*lines, f"no shape pays below α = {PROMISING} here; the best of them is {best['name']}"]
    value, word = (best["speedup"], "measured") if measured else (best["speedup_predicted"], "predicted")
    pays = "" if value > 1 else ", which does not pay yet"
    return [*lines, f"train on {best['name']}: {value:.2f}× {word} at K {best['k']}{pays}"]


def command(found: Found, target: str, data: Sequence[str], generate: bool) -> str:
    """The next command: training the best shape on more text."""
    shape = [word for name in ("layers", "hidden", "intermediate") for word in (f"--{name}", str(found.best[name]))]
    words = ["specbench", "train", "draft", "--target", target, *shape, *(w for name in data for w in ("--data", name))]
    return shlex.join([*words, "--generate" if generate else "--as-it-is", "--output", "my-draft"])
