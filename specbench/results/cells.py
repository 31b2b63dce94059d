"""What is measured, as data: samples of prompts, and a cell's result, whose `row()` is the only list of CSV columns."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from specbench import metrics
from specbench.metrics import Trace
from specbench.results import nests, noise, statistics
from specbench.results.batches import decodes, pooled
from specbench.results.costs import break_even, cost_columns, rows_idle, timing
from specbench.results.losslessness import Losslessness
from specbench.results.nests import relayed, round_row, steady
from specbench.spec import SCHEMA_VERSION, RunSpec, acceptance_of
from specbench.theory.waterfall import explain

Status = Literal["ok", "partial", "oom", "nan", "mismatch", "skipped", "error"]
MEASURED = ("ok", "partial")  # the statuses that come with numbers
UNFINISHED = ("partial", "skipped")  # what a continued run goes on with; other statuses are how a cell ended for good


@dataclass(frozen=True)
class Sample:
    """One prompt decoded once by baseline and method in one turn.

    turn: position in time within the group of cells that share the baseline; order: the places of (baseline, method)
    among the arms of the turn; load: processes that ran or waited just before it. cluster: the name of the batch that
    the prompt was decoded in, whose prompts have equal parts of its seconds; empty for a prompt decoded alone.
    """

    prompt: str
    category: str
    repeat: int
    prompt_tokens: int
    turn: int
    order: tuple[int, int]
    load: float | None
    baseline: Trace
    method: Trace
    cluster: str = ""

    @property
    def draw(self) -> str:
        """What all samples that are one draw of an interval have in common."""
        return self.cluster or self.prompt

    def row(self) -> dict[str, Any]:
        """One line of samples.csv: seconds, tokens and counts of both arms."""
        counts = metrics.acceptance(self.method.rounds)
        return {
            "prompt": self.prompt,
            "category": self.category,
            "cluster": self.draw,
            "repeat": self.repeat,
            "turn": self.turn,
            "baseline_place": self.order[0],
            "place": self.order[1],
            "load_average": self.load,
            "prompt_tokens": self.prompt_tokens,
            "baseline_tokens": len(self.baseline.tokens),
            "tokens": len(self.method.tokens),
            "baseline_seconds": self.baseline.seconds,
            "seconds": self.method.seconds,
            "baseline_prefill_seconds": self.baseline.prefill_seconds,
            "prefill_seconds": self.method.prefill_seconds,
            "speedup": _speedup(self),
            "identical": self.baseline.tokens == self.method.tokens,
            "baseline_output_sha256": digest(self.baseline.tokens),
            "output_sha256": digest(self.method.tokens),
            "baseline_rounds": len(self.baseline.rounds),
            "baseline_verify_seconds": self.baseline.spans.get("verify", 0.0),
            "rounds": counts.rounds,
            "drafted": counts.drafted,
            "tested": counts.tested,
            "accepted": counts.accepted,
            "overlap": math.fsum(x for r in self.method.rounds for x in r.overlap),
            "nodes": sum(r.width for r in self.method.rounds),
            "distance": math.fsum(r.distance for r in self.method.rounds),
            "draft_seconds": self.method.spans.get("draft", 0.0),
            "verify_seconds": self.method.spans.get("verify", 0.0),
            "alpha": counts.alpha,
        }

    def round_rows(self) -> list[dict[str, Any]]:
        """The lines of rounds.parquet: one per round of the method."""
        where = {"prompt": self.prompt, "repeat": self.repeat}
        return [{**where, "round": i, **round_row(r)} for i, r in enumerate(self.method.rounds)]


def digest(tokens: Sequence[int]) -> str:
    """Sixteen hex digits of an output: equal texts have equal ones, and no text of a model stands in a table."""
    return hashlib.sha256(" ".join(map(str, tokens)).encode()).hexdigest()[:16]


def _per_token(trace: Trace) -> float:
    return metrics.ratio(trace.seconds, len(trace.tokens))


def _speedup(sample: Sample) -> float:
    return metrics.ratio(_per_token(sample.baseline), _per_token(sample.method))


@dataclass(frozen=True)
class Cell:
    """One cell of a run: its spec, what it resolved to, the samples, and how it ended.

    `ready`: seconds that building, compiling or capturing took, of (baseline, method); no part of any other number.
    `detail` is the traceback of an error that nobody foresaw; the journal keeps it, no table shows it.
    """

    spec: RunSpec
    resolved: Mapping[str, Any]
    samples: Sequence[Sample] = ()
    status: Status = "ok"
    error: str = ""
    lossless: Losslessness = field(default_factory=Losslessness)
    detail: str = ""
    ready: tuple[float, float] = field(default=(math.nan, math.nan), compare=False)

    def row(self) -> dict[str, Any]:
        """The columns of results.csv, in their order. A cell that ended without numbers has none."""
        row: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "status": self.status, "error": self.error}
        row |= {"cell": self.spec.key, **self.spec.model_dump(mode="json"), **acceptance_of(self.spec), **self.resolved}
        row |= dict.fromkeys(NUMBERS)
        if self.status in (*MEASURED, "mismatch"):
            row |= self.lossless.row()
        if self.samples and self.status in MEASURED:
            row |= numbers(self.samples, self.spec.k if self.spec.schedule == "constant" else None, self.spec.batch)
            row |= {"baseline_ready_seconds": self.ready[0], "ready_seconds": self.ready[1]}
            if self.spec.acceptance is not None:
                row["law_distance"] = None  # of the synthetic law nobody knows it
        return row

    def sample_rows(self) -> list[dict[str, Any]]:
        """The lines of samples.csv. Outliers are marked; none is left out of any number."""
        where = {"cell": self.spec.key, "dataset": self.spec.dataset}
        groups = zip(decodes(self.samples), noise.flags(pooled(self.samples)), strict=True)
        flags = {i: flag for together, flag in groups for i in together}
        return [{**where, **s.row(), "outlier": flags[i]} for i, s in enumerate(self.samples)]


def by_prompt(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Repetitions of a prompt belong together: intervals are over prompts, not over decodes.

    So do the prompts of a batch, which share their time: intervals are over batches then, and one batch has none.
    """
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.draw, []).append(sample)
    return list(groups.values())


def end_to_end(samples: Sequence[Sample]) -> float:
    """Speedup per token with the prefill of both arms."""
    return metrics.speedup_of_totals(
        (s.baseline.seconds + s.baseline.prefill_seconds for s in samples),
        (len(s.baseline.tokens) for s in samples),
        (s.method.seconds + s.method.prefill_seconds for s in samples),
        (len(s.method.tokens) for s in samples),
    )


def speedup_of(samples: Sequence[Sample]) -> statistics.Interval:
    """The headline: paired by prompt, from totals."""
    groups = by_prompt(samples)
    return statistics.speedup_interval(
        [math.fsum(s.baseline.seconds for s in g) for g in groups],
        [sum(len(s.baseline.tokens) for s in g) for g in groups],
        [math.fsum(s.method.seconds for s in g) for g in groups],
        [sum(len(s.method.tokens) for s in g) for g in groups],
    )


def alpha_of(samples: Sequence[Sample]) -> statistics.Interval:
    """α with its interval over prompts: the tests of one prompt depend on each other."""
    counts = [metrics.acceptance([r for s in g for r in s.method.rounds]) for g in by_prompt(samples)]
    tested = [c.tested for c in counts]
    return statistics.ratio_of_totals([c.alpha * c.tested if c.tested else 0.0 for c in counts], tested, at_most=1.0)


NUMBERS = (
    "prompts", "draws", "alpha", "alpha_low", "alpha_high", "alpha_tested", "accepted_per_drafted", "tokens_per_round",
    "c", "v", "overhead", "baseline_step_ms", "round_ms", "round_draft_ms", "round_verify_ms", "round_accept_ms",
    "round_host_ms", "draft_token_ms", "draft_first_ms", "baseline_tokens_per_second", "tokens_per_second",
    "speedup", "speedup_low", "speedup_high", "speedup_geomean", "speedup_end_to_end", "break_even_batch", "rows_idle",
    "speedup_predicted", "speedup_calibrated", "speedup_ideal", "term_first_draft", "term_levels", "term_position",
    "term_verify", "term_sampling", "term_host", "term_truncated",
    "baseline_prefill_ms", "prefill_ms", "baseline_ready_seconds", "ready_seconds",
    "rounds", "drafted", "tested", "accepted", "drafted_per_round", "nodes_per_round",
    "draft_hit_rate", "law_distance", "tokens",
    "baseline_tokens", "outliers", "drift", "drift_p", "bimodality", "load_average",
    "lossless", "prompts_identical", "prompts_compared", "first_divergence", "top2_gap", "noise_floor",
)  # fmt: skip


def numbers(samples: Sequence[Sample], lookahead: int | None, rows: int = 1) -> dict[str, Any]:
    """Everything that is computed from the samples of a cell; the glossary in the README explains each name.

    `lookahead` is the K of a constant schedule, None of any other; `rows` were decoded together.
    """
    traces = [s.method for s in samples]
    rounds = [r for trace in traces for r in trace.rounds]
    counts, drafting, lookahead = metrics.acceptance(rounds), metrics.drafting(rounds), steady(traces, lookahead)
    baseline, method = timing([s.baseline for s in samples]), timing(traces)
    step = metrics.ratio(baseline.seconds, baseline.rounds)
    inner = nests.inner_levels(traces, step)
    drafts = nests.draft_costs(inner, traces, step, lookahead)
    speed, alpha = speedup_of(samples), alpha_of(samples)
    return {
        "prompts": len({s.prompt for s in samples}),
        "draws": len(by_prompt(samples)),
        "alpha": alpha.value,
        "alpha_low": alpha.low,
        "alpha_high": alpha.high,
        "alpha_tested": counts.alpha_tested,
        "accepted_per_drafted": counts.accepted_per_drafted,
        "tokens_per_round": counts.tokens_per_round,
        **cost_columns(samples, baseline, method),
        "speedup": speed.value,
        "speedup_low": speed.low,
        "speedup_high": speed.high,
        "speedup_geomean": statistics.geomean([_speedup(s) for s in samples]),
        "speedup_end_to_end": end_to_end(samples),
        "break_even_batch": break_even(samples, baseline, method, drafting.nodes, rows),
        "rows_idle": rows_idle(samples, rows),
        **explain(rounds, baseline, method, lookahead, speed.value, drafts, relayed(traces)).row(),
        **tallies(counts, drafting),
        "tokens": method.tokens,
        "baseline_tokens": baseline.tokens,
        **asdict(noise.diagnose(pooled(samples))),
        **{f"acceptance_at_{i}": a for i, a in enumerate(counts.by_position, start=1)},
        **nests.level_columns(inner),
    }


def tallies(counts: metrics.Acceptance, drafting: metrics.Drafting) -> dict[str, Any]:
    """What the rounds drafted, tested and accepted, in all and in the mean."""
    return {
        "rounds": counts.rounds,
        "drafted": counts.drafted,
        "tested": counts.tested,
        "accepted": counts.accepted,
        "drafted_per_round": drafting.levels,
        "nodes_per_round": drafting.nodes,
        "draft_hit_rate": drafting.hit_rate,
        "law_distance": drafting.distance,
    }
