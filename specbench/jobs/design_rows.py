"""What a design found, as rows, and as fits beside what was measured.

Knows what was timed, trained and measured; must not know how, or how it is shown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import product
from typing import Any

from specbench.jobs.design_folder import Learned
from specbench.jobs.design_shapes import Candidate
from specbench.jobs.design_training import Speed
from specbench.results import statistics
from specbench.results.cells import Cell
from specbench.results.statistics import Interval
from specbench.theory import design, formulas
from specbench.theory.design import AcceptanceFit, LatencyFit, Optimum
from specbench.theory.halving import Rung

FINER = 4  # parameters that the formula is asked about between two budgets
Row = dict[str, Any]


@dataclass(frozen=True)
class Found:
    """Everything that a design has found. grown: the parameters of the scale models that were timed, if any."""

    candidates: Sequence[Candidate]
    speed: Speed
    steps: Sequence[int]
    rungs: Sequence[Rung[Candidate]]
    learned: Mapping[str, Mapping[int, Learned]]
    cells: Mapping[str, Cell]
    grown: Mapping[str, int]

    @cached_property
    def rows(self) -> list[Row]:
        """One per shape: first those that were measured, the fastest first."""
        rows = [self.row(one) | self.beside(one.name) for one in self.candidates]
        return sorted(
            rows, key=lambda row: (-(row["tokens_per_second"] or 0), -(row["tokens_per_second_predicted"] or 0))
        )

    def row(self, one: Candidate) -> Row:
        time, step = self.speed.latencies.drafts[one.name], self.speed.latencies.step.value
        row = one.row() | ({"grown_parameters": self.grown[one.name]} if self.grown else {})
        row |= {
            "latency_ms": 1000 * time.token.value,
            "latency_low_ms": 1000 * time.token.low,
            "latency_high_ms": 1000 * time.token.high,
            "target_step_ms": 1000 * step,
            "c": time.c.value,
            "c_low": time.c.low,
            "c_high": time.c.high,
            "break_even_alpha": self.speed.break_even(one.name),
        }
        return row | self.acceptance(one.name) | self.measured(one.name) | {"reached": self.reached(one)}

    def acceptance(self, name: str) -> Row:
        """After the last rung that a draft was on, and what the formula makes of it; blank without training."""
        known = self.learned.get(name, {})
        if not known:
            names = (
                "trained_tokens",
                "alpha",
                "k",
                "tokens_per_round",
                "speedup_predicted",
                "tokens_per_second_predicted",
            )
            return dict.fromkeys(names)
        last = known[max(known)]
        best = design.best_choice(last.alpha, self.speed.costs(name), self.speed.k_max)
        return {
            "trained_tokens": last.tokens,
            "alpha": last.alpha,
            "k": best.k,
            "tokens_per_round": best.tokens,
            "speedup_predicted": best.speedup,
            "tokens_per_second_predicted": best.speedup / self.speed.latencies.step.value,
        }

    def measured(self, name: str) -> Row:
        """What decoding gave; blank where nothing was decoded."""
        cell = self.cells.get(name)
        row = cell.row() if cell is not None else {}
        columns = ("tokens_per_second", "speedup", "speedup_low", "speedup_high", "lossless", "status")
        renamed = {f"measured_{column}": row.get(column) for column in ("alpha", "tokens_per_round", "c")}
        return {column: row.get(column) for column in columns} | renamed

    def reached(self, one: Candidate) -> str:
        """How far a shape came."""
        known = self.learned.get(one.name, {})
        if not known:
            even = self.speed.break_even(one.name)
            return "not trained: " + ("no α pays" if even is None else f"pays only from α = {even:.2f} on")
        last = next(rung for rung in reversed(self.rungs) if one in rung.scores)
        return "trained to the end" if last is self.rungs[-1] else f"dropped after {last.amount:,} tokens"

    def beside(self, name: str) -> Row:
        """What all trained shapes can be compared by: after the first rung, on which they have learned as much, and at
        one lookahead, that of the best of them. On the front no other one is as cheap and accepted as often."""
        alphas = self.first_alphas
        if name not in alphas:
            return dict.fromkeys(("compared_k", "compared_tokens_per_round", "on_front"))
        tokens = formulas.expected_tokens(alphas[name], self.compared_k)
        return {"compared_k": self.compared_k, "compared_tokens_per_round": tokens, "on_front": self.on_front[name]}

    @property
    def first_alphas(self) -> dict[str, float]:
        """α after the first rung, of every trained shape by name."""
        return {name: known[self.steps[0]].alpha for name, known in self.learned.items()}

    @cached_property
    def compared_k(self) -> int:
        """The best lookahead of the best shape of the first rung."""
        name = self.rungs[0].order[0].name
        return design.best_choice(self.first_alphas[name], self.speed.costs(name), self.speed.k_max).k

    @cached_property
    def on_front(self) -> dict[str, bool]:
        """By name, whether a trained shape is on the Pareto front of c and α."""
        drafts, alphas = self.speed.latencies.drafts, self.first_alphas
        points = [(drafts[name].c.value, alpha) for name, alpha in alphas.items()]
        return dict(zip(alphas, design.front(points), strict=True))

    @property
    def best(self) -> Row | None:
        """The shape to train on: the fastest measured one; without a measurement the one predicted to be."""
        rows = [row for row in self.rows if row["status"] == "ok"] or [r for r in self.rows if r["trained_tokens"]]
        return rows[0] if rows else None

    def gain(self, name: str, other: str) -> Interval:
        """Measured tokens per second of a draft ÷ those of another one, paired by prompt."""
        before, after = ([s.method for s in self.cells[one].samples] for one in (other, name))
        seconds = ([trace.seconds for trace in some] for some in (before, after))
        tokens = ([len(trace.tokens) for trace in some] for some in (before, after))
        return statistics.speedup_interval(next(seconds), next(tokens), next(seconds), next(tokens))

    @cached_property
    def latency_fit(self) -> LatencyFit | None:
        drafts = [self.speed.latencies.drafts[one.name].token.value for one in self.candidates]
        depths = [one.shape.layers for one in self.candidates]
        return design.fit_latency(depths, list(self.sizes.values()), drafts)

    @property
    def sizes(self) -> dict[str, int]:
        """The parameters that were timed, by name."""
        return {one.name: self.grown.get(one.name, one.parameters) for one in self.candidates}

    @cached_property
    def acceptance_fit(self) -> AcceptanceFit | None:
        layers, sizes = {one.name: one.shape.layers for one in self.candidates}, self.sizes
        points = [
            (layers[name], sizes[name], float(tokens), learned.alpha)
            for name, known in self.learned.items()
            for tokens, learned in known.items()
        ]
        return design.fit_acceptance(*map(list, zip(*points, strict=True))) if points else None

    @cached_property
    def optimum(self) -> Optimum | None:
        """The best shape by both fits and the formula, of depths and sizes within those that were timed."""
        if self.latency_fit is None or self.acceptance_fit is None:
            return None
        depths = range(min(c.shape.layers for c in self.candidates), max(c.shape.layers for c in self.candidates) + 1)
        shapes = product(depths, between(sorted(set(self.sizes.values()))))
        fits, target = (self.latency_fit, self.acceptance_fit), self.speed.latencies.target
        return design.optimum(fits, target, shapes, self.steps[-1], self.speed.k_max)

    def by_fits(self, layers: int, parameters: float) -> Optimum | None:
        """What both fits and the formula say of a shape."""
        if self.latency_fit is None or self.acceptance_fit is None:
            return None
        fits, target = (self.latency_fit, self.acceptance_fit), self.speed.latencies.target
        return design.fitted(fits, target, (layers, parameters), self.steps[-1], self.speed.k_max)

    @property
    def document(self) -> dict[str, Any]:
        """The content of design.json: rows, fits, the optimum by the formula, and the target's costs."""
        optimum, target = self.optimum, self.speed.latencies.target
        return {
            "shapes": self.rows,
            "latency_fit": None if self.latency_fit is None else asdict(self.latency_fit),
            "acceptance_fit": None if self.acceptance_fit is None else asdict(self.acceptance_fit),
            "optimum_by_fits": None if optimum is None else asdict(optimum),
            "target": {
                "step_ms": 1000 * target.step,
                "v": self.speed.latencies.v,
                "verify": target.verify,
                "overhead": target.overhead,
            },
            "rungs": [{"tokens": rung.amount, "order": [one.name for one in rung.order]} for rung in self.rungs],
        }


def between(sizes: Sequence[int]) -> list[float]:
    """Sizes from the least to the greatest, in equal ratios."""
    low, high = sizes[0], sizes[-1]
    count = FINER * max(len(sizes) - 1, 1)
    return [low * (high / low) ** (n / count) for n in range(count + 1)]
