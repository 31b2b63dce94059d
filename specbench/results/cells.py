"""A cell of a run as data: its spec, its samples and how it ended. `row()` is the only list of CSV columns.

Also the errors of cells, which a command ends with, and whether engines accepted the same drafted tokens.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal, Self

from specbench import metrics
from specbench.errors import CellsFailedError, NotLosslessError
from specbench.metrics import Trace
from specbench.results import noise, statistics
from specbench.results.latency import goodputs
from specbench.results.machine import Peaks
from specbench.results.nests import belief_rows
from specbench.results.numbers import (
    LEARNING,
    NUMBERS,
    acceptance_columns,
    cost_columns,
    decodes,
    explanation,
    numbers,
    output_columns,
    pooled,
    speedup_columns,
    timing,
)
from specbench.results.samples import Sample, by_prompt
from specbench.spec import BASELINE, CHOOSING, SCHEMA_VERSION, RunSpec
from specbench.theory.optimum import measured_costs
from specbench.wording import clean, counted, grouped, pair_said

Status = Literal["ok", "partial", "oom", "nan", "mismatch", "skipped", "error", "NOT LOSSLESS"]  # the last by an audit
MEASURED = ("ok", "partial")  # the statuses with numbers
NAMES = ("target", "draft", "method", "k", "schedule", "dataset", "temperature", "batch")  # columns by category
UNFINISHED = ("partial", "skipped")  # the statuses that a resumed run continues; the others are final
Comparison = Literal["identical", "numeric", "MISMATCH", "not compared", "lossy"]
COSTS = ("c", "v", "overhead", "baseline_tokens_per_second", "tokens_per_second")
PREDICTED = ("speedup_predicted", "speedup_calibrated")
TIMED = (*COSTS, "c_mean", "v_mean", "speedup", "speedup_low", "speedup_high", "speedup_geomean",
         "speedup_end_to_end", *LEARNING, *PREDICTED)  # fmt: skip


@dataclass(frozen=True)
class Losslessness:
    """`lossless` is identical, numeric, MISMATCH, not compared (sampled output differs by chance), or lossy.

    lossy: sampled by a rule that is not lossless; the column law_distance has the distance of its
    distribution. The field names are keys of the journal.
    """

    verdict: Comparison = "not compared"
    identical: int = 0
    compared: int = 0
    first_divergence: int | None = None
    gap: float | None = None
    noise: float | None = None

    def row(self) -> dict[str, Any]:
        return {
            "lossless": self.verdict,
            "prompts_identical": self.identical,
            "prompts_compared": self.compared,
            "first_divergence": self.first_divergence,
            "top2_gap": self.gap,
            "noise_floor": self.noise,
        }


@dataclass(frozen=True)
class Cell:
    """One cell of a run: its spec, what its names resolved to, the samples, and how it ended.

    ready: seconds to build, compile or capture (baseline, method); part of no other number. detail: the
    traceback of an unexpected error, kept in the journal only. peaks: peak memory.
    """

    spec: RunSpec
    resolved: Mapping[str, Any]
    samples: Sequence[Sample] = ()
    status: Status = "ok"
    error: str = ""
    lossless: Losslessness = field(default_factory=Losslessness)
    detail: str = ""
    ready: tuple[float, float] = field(default=(math.nan, math.nan), compare=False)
    peaks: Peaks = field(default=Peaks(), compare=False)

    def __repr__(self) -> str:
        of = self.spec
        what = f"{pair_said(of.target, of.draft)}, {clean(of.method)} K {of.k}, {clean(of.dataset)}"
        return f"<Cell {what}: {self.status}, {counted(len(self.samples), 'sample')}>"

    @property
    def lookahead(self) -> int | None:
        """The K of a constant schedule; None for others, and if methods are chosen."""
        return self.spec.k if self.spec.schedule == "constant" and self.spec.method != CHOOSING else None

    @property
    def rows(self) -> int:
        """How many prompts share their seconds; 1 for requests with arrival times, as each has its own wait."""
        return self.spec.batch if self.spec.arrivals is None else 1

    def row(self) -> dict[str, Any]:
        """The columns of results.csv, in order; numbers are blank if the cell ended without them."""
        row: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "status": self.status, "error": self.error}
        given = self.spec.acceptance
        rates = {
            "acceptance": None if given is None else ",".join(map(str, given)),
            "acceptance_mode": "real" if given is None else "synthetic",
        }
        row |= {"cell": self.spec.key, **self.spec.model_dump(mode="json"), **rates, **self.resolved}
        row |= dict.fromkeys(NUMBERS)
        if self.status in (*MEASURED, "mismatch"):
            row |= self.lossless.row()
        if self.samples and self.status in MEASURED:
            row |= numbers(self.samples, self.lookahead, self.rows)
            row |= output_columns(self.samples, self.spec.max_new_tokens)
            arms = [s.baseline for s in self.samples], [s.method for s in self.samples]
            row |= goodputs(*arms, row["draws"], self.spec.slo)
            row |= {"baseline_ready_seconds": self.ready[0], "ready_seconds": self.ready[1]}
            row |= self.peaks.row()
            if given is not None:
                row["law_distance"] = None  # synthetic acceptance follows no model's distribution
        return row

    def category_rows(self) -> list[dict[str, Any]]:
        """The lines of categories.csv; empty if all prompts are of one category, or the cell has no numbers."""
        limits = (self.spec.max_new_tokens, self.lookahead)
        found = numbers_by_category(self.samples, *limits) if self.status in MEASURED else []
        named = {name: getattr(self.spec, name) for name in NAMES}
        return [{"schema_version": SCHEMA_VERSION, "cell": self.spec.key, **named, **numbers} for numbers in found]

    def belief_rows(self) -> list[dict[str, float]]:
        """The reliability curve of its schedule; empty without predictions or numbers."""
        return belief_rows([r for s in self.samples for r in s.method.rounds]) if self.status in MEASURED else []

    def sample_rows(self) -> list[dict[str, Any]]:
        """The lines of samples.csv. Outliers are marked, never dropped."""
        where = {"cell": self.spec.key, "dataset": self.spec.dataset}
        groups = zip(decodes(self.samples), noise.flags(pooled(self.samples)), strict=True)
        flags = {i: flag for together, flag in groups for i in together}
        return [{**where, **s.row(), "outlier": flags[i]} for i, s in enumerate(self.samples)]


@dataclass(frozen=True)
class Agreement:
    """The agreement of two engines on one cell.

    Counts of prompts, of those with equal texts, and among these with equal verdicts at every position that
    both tested, with equal counts, and with neither.
    """

    one: Cell
    other: Cell
    prompts: int
    equal: int
    verdicts: int
    counts: int

    @property
    def different(self) -> int:
        return self.equal - self.verdicts - self.counts


def agreements(cells: Sequence[Cell]) -> Iterator[Agreement]:
    """Compare the first engine with each other one, for every cell that several engines measured greedily.

    With a greedy chain, whether the token at a position would be drafted does not depend on where the round began. So
    two engines must agree at every position that both tested. If an engine reports only totals, its counts must agree:
    rounds that begin one position apart never overtake each other, so the engine whose first token comes with the
    prompt accepts as many tokens, or one fewer; or one more if a text ends within a draft.
    """
    able = [
        cell
        for cell in cells
        if cell.status in MEASURED and cell.samples and cell.spec.temperature == 0 and cell.spec.method != BASELINE
        # drafts independent of where a round begins: those of a model
        if cell.resolved.get("drafted_by") and cell.spec.schedule == "constant" and not cell.resolved.get("carries")
    ]
    for first, *others in grouped(able, lambda cell: cell.spec.on_any_engine):
        for other in others:
            theirs = {(s.prompt, s.repeat, s.turn): s.method for s in other.samples}
            both = [(s.method, theirs[key]) for s in first.samples if (key := (s.prompt, s.repeat, s.turn)) in theirs]
            equal = [pair for pair in both if pair[0].tokens == pair[1].tokens]
            same = [pair for pair in equal if same_verdicts(*pair)]
            counted = [pair for pair in equal if pair not in same and same_counts(*pair)]
            yield Agreement(first, other, len(both), len(equal), len(same), len(counted))


def same_verdicts(one: Trace, other: Trace) -> bool:
    ours, theirs = verdicts(one), verdicts(other)
    return all(ours[place] == theirs[place] for place in ours.keys() & theirs.keys())


def verdicts(trace: Trace) -> dict[int, bool]:
    """For every position of a text with a tested drafted token, whether it was accepted."""
    found, at = dict[int, bool](), 0
    for one in trace.rounds:
        found |= {at + level: level < one.accepted for level in range(one.tested)}
        at += one.emitted
    return found


def same_counts(one: Trace, other: Trace) -> bool:
    accepted = [sum(r.accepted for r in trace.rounds) for trace in (one, other)]
    within = any(trace.rounds and trace.rounds[-1].accepted == trace.rounds[-1].emitted for trace in (one, other))
    return abs(accepted[0] - accepted[1]) <= 1 + within


def raise_for_status(cells: Sequence[Cell]) -> None:
    """Raise the error for the exit code of an uninterrupted run; return if every cell is ok."""
    broken = [c for c in cells if c.lossless.verdict == "MISMATCH"]
    if broken:
        names = ", ".join(dict.fromkeys(f"{c.spec.dataset} (K {c.spec.k})" for c in broken))
        raise NotLosslessError(
            f"greedy output differs from the baseline's beyond numerical noise on {names} "
            f"(top-2 gap {broken[0].lossless.gap:.3g}, noise {broken[0].lossless.noise:.3g}): these numbers are void"
        )
    failed = [c for c in cells if c.status != "ok"]
    if failed:
        raise CellsFailedError(f"{len(failed)} of {len(cells)} cells ended without numbers: {failed[0].error}")


Samples = Mapping[RunSpec, Sequence[Sample]]  # of a turn, by cell


class Observer:
    """Sees everything as it is measured; may store and draw, but not change a number. This one does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Called when the run has ended, in any way."""

    def loading(self, what: str, done: int, total: int) -> None:
        """Bytes of a model were fetched or loaded; called by several threads."""

    def begin(self, cells: Sequence[Cell], prompts: int) -> None:
        """A group begins: its cells, and its maximum number of prompts, with all turns and repetitions."""

    def resolved(self, cells: Sequence[Cell]) -> None:
        """The names of started cells resolved to something else than recorded."""

    def preparing(self, spec: RunSpec | None) -> None:
        """An arm of the group is about to be prepared, which may take minutes to compile; None: all are ready."""

    def estimated(self, spec: RunSpec, speedup: float, prompts: int) -> None:
        """A first estimate of the speedup from a few prompts, before the arms are compiled; it enters no result."""

    def turn(self, samples: Samples) -> None:
        """All arms have decoded the prompts of a turn."""

    def comparing(self, done: int, texts: int) -> None:
        """So many of the texts in which outputs differ have been scored; with a large model it takes long."""

    def end(self, cell: Cell) -> None:
        """A cell has ended, in any way."""


# --- numbers by category ----------------------------------------------------------------------------------------------
# The rows of categories.csv: the columns of results.csv over the prompts of one category; `<name>_mean` is the mean of
# the prompts' own values, with equal weights.


def numbers_by_category(samples: Sequence[Sample], longest: int, lookahead: int | None) -> list[dict[str, Any]]:
    """One row per category, in alphabetical order; empty if all prompts are of one.

    `longest` is the number of new tokens that ends an output, `lookahead` as in `numbers`. Prompts decoded
    together share their time across categories, so columns from seconds are then blank.
    """
    groups = sorted(grouped(samples, lambda one: one.category), key=lambda group: group[0].category)
    if len(groups) < 2:
        return []
    together = any(len(group) > 1 for group in decodes(samples))
    blank = dict.fromkeys(TIMED) if together else {}
    return [{**category_numbers(group, lookahead), **output_columns(group, longest), **blank} for group in groups]


def category_numbers(samples: Sequence[Sample], lookahead: int | None) -> dict[str, Any]:
    """The numbers of the prompts of one category: ratios of totals with intervals, means of prompts, and counts."""
    counts = metrics.acceptance([r for s in samples for r in s.method.rounds])
    groups = [[s.method for s in group] for group in by_prompt(samples)]
    emitted = [sum(len(trace.tokens) for trace in group) for group in groups]
    found = statistics.ratio_of_totals(emitted, [sum(len(trace.rounds) for trace in group) for group in groups])
    arms = timing([s.baseline for s in samples]), timing([s.method for s in samples])
    cost, explained = cost_columns(samples, *arms), explanation(samples, *arms, lookahead)
    own = [own_numbers(group) for group in grouped(samples, lambda one: one.prompt)]
    means = {name: [one[name] for one in own if math.isfinite(one[name])] for name in own[0]}
    return {
        "category": samples[0].category,
        "prompts": len({s.prompt for s in samples}),
        "draws": len(by_prompt(samples)),
        **acceptance_columns(samples, counts),
        "tokens_per_round_low": found.low,
        "tokens_per_round_high": found.high,
        **{name: cost[name] for name in COSTS},
        **speedup_columns(samples),
        **{name: explained[name] for name in PREDICTED},
        **{f"{name}_mean": fmean(some) if some else math.nan for name, some in means.items()},
        "rounds": counts.rounds,
        "drafted": counts.drafted,
        "tested": counts.tested,
        "accepted": counts.accepted,
        "tokens": counts.emitted,
    }


def own_numbers(samples: Sequence[Sample]) -> dict[str, float]:
    """α, tokens per round, c and v of one prompt."""
    counts = metrics.acceptance([r for s in samples for r in s.method.rounds])
    found = measured_costs(timing([s.baseline for s in samples]), timing([s.method for s in samples]))
    return {"alpha": counts.alpha, "tokens_per_round": counts.tokens_per_round, "c": found.c, "v": found.v}
