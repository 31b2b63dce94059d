"""The results of `specbench calibrate`, with derived values: v, c, the free width, the best K for an α. The costs that
`specbench predict --hardware` calculates or extrapolates have the same form."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from statistics import median, quantiles
from typing import Any

import numpy as np

from specbench.theory import optimum
from specbench.theory.formulas import expected_tokens
from specbench.theory.optimum import Costs
from specbench.theory.roofline import Engine, Reads
from specbench.wording import ranges

ALPHAS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
FREE = 1.10  # a pass up to this multiple of a single-token pass counts as free


@dataclass(frozen=True)
class Point:
    """One line of calibration.csv: median milliseconds of many calls with their quartiles.

    target: one pass over `width` tokens; draft: `width` tokens drafted one after the other. v = ÷ the value at width 1.
    """

    model: str
    context: int
    width: int
    milliseconds: float
    low: float
    high: float
    v: float


def points_of(model: str, context: int, seconds: Mapping[int, Sequence[float]]) -> tuple[Point, ...]:
    """The points of one model from the seconds of every call, by width; width 1 is required."""
    alone = median(seconds[1])
    found = []
    for width, values in sorted(seconds.items()):
        low, _, high = quantiles(values, method="inclusive") if len(values) > 1 else [values[0]] * 3
        middle = median(values)
        found.append(Point(model, context, width, 1000 * middle, 1000 * low, 1000 * high, middle / alone))
    return tuple(found)


@dataclass(frozen=True)
class AtContext:
    """Costs at one context length. step: ms of a baseline step; overhead: of acceptance and host, in steps."""

    context: int
    step: float
    overhead: float
    target: tuple[Point, ...]
    draft: tuple[Point, ...]

    def costs(self) -> Costs:
        """Costs in baseline steps; verify[K] is a step with a pass over K + 1 tokens, so verify[0] is 1.

        Unmeasured widths are interpolated linearly.
        """
        first, last = self.draft[0], self.draft[-1]
        later = (last.milliseconds - first.milliseconds) / max(last.width - first.width, 1)
        widths = [p.width for p in self.target]
        passes = np.interp(range(1, widths[-1] + 1), widths, [p.milliseconds for p in self.target])
        verify = tuple(max(0.0, 1 + float(more) / self.step) for more in passes - passes[0])
        return Costs(first.milliseconds / self.step, max(later, 0.0) / self.step, verify, self.overhead)

    def rounds(self) -> tuple[float, ...]:
        """Cost of a round by K, in baseline steps."""
        costs = self.costs()
        return (1.0, *costs.rounds(len(costs.verify) - 1))

    def summary(self) -> dict[str, Any]:
        """One row of derived values at this length, independent of α."""
        costs = self.costs()
        return {
            "context": self.context,
            "baseline_step_ms": self.step,
            "draft_first_ms": costs.first * self.step,
            "draft_later_ms": costs.later * self.step,
            "c_first": costs.first,
            "c_later": costs.later,
            "overhead": costs.overhead,
            "free_width": [p.width for p in takewhile(lambda p: p.v <= FREE, self.target)][-1],
            "break_even_alpha": optimum.break_even_alpha_of(self.rounds()),
        }

    def choices(self) -> list[dict[str, Any]]:
        """The optimal K for a range of α, with the predicted speedup; K = 0 if no K pays."""
        rounds, found = self.rounds(), list[dict[str, Any]]()
        for alpha in ALPHAS:
            k, speedup = optimum.best_k_of(alpha, rounds)
            near = ranges(optimum.near_best_of(alpha, rounds))
            found.append({"context": self.context, "alpha": alpha, "best_k": k, "speedup": speedup, "near_best": near})
        return found

    def forecast(self, alphas: Sequence[float], ks: Sequence[int], rows: int = 1) -> list[dict[str, Any]]:
        """For every α the best of some K (0: none pays), with its costs in the columns of a run, and tokens per second
        of `rows` sequences together. ks: at most the widest pass less one."""
        costs, rounds, found = self.costs(), self.rounds(), []
        passes = (1.0, *(1 + (verify - 1) * self.step / self.target[0].milliseconds for verify in costs.verify[1:]))
        for alpha in alphas:
            k = max(ks, key=lambda k: expected_tokens(alpha, k) / rounds[k])
            tokens, c = expected_tokens(alpha, k), (costs.first + max(k - 1, 0) * costs.later) / max(k, 1)
            baseline, speedup = 1000 * rows / self.step, tokens / rounds[k]
            found.append(
                {
                    "context": self.context, "alpha": alpha, "k": k, "speedup": speedup,
                    "tokens_per_second": speedup * baseline, "baseline_tokens_per_second": baseline,
                    "baseline_step_ms": self.step, "draft_token_ms": c * self.step, "tokens_per_round": tokens,
                    "c": c, "v": passes[k], "overhead": rounds[k] - k * c - passes[k],
                }
            )  # fmt: skip
        return found


def calculated(engine: Engine, target: Reads, draft: Reads, context: int, k: int) -> AtContext:
    """The costs of rounds with up to k drafted tokens by a roofline, in the form of measured ones."""
    alone, step, token = engine.alone(target, context), engine.step(target, context), engine.draft(draft, context)
    passes = {1: [alone], **{n: [engine.verify(target, context, n)] for n in range(2, k + 2)}}
    rest = (engine.rest() - (step - alone)) / step  # a baseline step has a part outside its pass, too
    drafts = points_of("draft", context, {1: [token], 2: [2 * token]})
    return AtContext(context, 1000 * step, rest, points_of("target", context, passes), drafts)


def extrapolated(shallow: AtContext, deep: AtContext, target: float, draft: float) -> AtContext:
    """The costs of a deeper pair from those of two with fewer layers, measured alike: time is linear in layers.

    target, draft: (layers − layers of the shallow one) ÷ (those of the deep one − those of the shallow one); 1 for
    the deep one itself.
    """

    def points(few: Sequence[Point], many: Sequence[Point], way: float) -> tuple[Point, ...]:
        found = {b.width: [further(a.milliseconds, b.milliseconds, way) / 1000] for a, b in zip(few, many, strict=True)}
        return points_of(many[0].model, deep.context, found)

    def further(few: float, many: float, way: float) -> float:
        return max(many, few + way * (many - few))  # noise must not make more layers faster

    step = further(shallow.step, deep.step, target)
    rest = deep.overhead * deep.step / step  # acceptance and the host do not depend on layers
    targets, drafts = points(shallow.target, deep.target, target), points(shallow.draft, deep.draft, draft)
    return AtContext(deep.context, step, rest, targets, drafts)


@dataclass(frozen=True)
class Calibration:
    """A pair on a machine, at several context lengths. tier: how passes were executed; empty if unknown."""

    contexts: tuple[AtContext, ...]
    tier: str = ""

    def costs(self, context: int) -> Costs:
        """The costs at the measured length nearest to `context`."""
        return min(self.contexts, key=lambda level: abs(level.context - context)).costs()

    def rows(self) -> list[dict[str, Any]]:
        """The lines of calibration.csv."""
        points = [point for level in self.contexts for point in (*level.target, *level.draft)]
        return [{**asdict(point), "tier": self.tier} for point in points]

    def document(self) -> dict[str, Any]:
        """calibration.json: the points and derived values."""
        return {
            "tier": self.tier,
            "points": self.rows(),
            "contexts": [level.summary() for level in self.contexts],
            "costs": [{"context": level.context, **asdict(level.costs())} for level in self.contexts],
            "choices": [choice for level in self.contexts for choice in level.choices()],
        }
