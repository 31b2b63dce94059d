"""What is measured, as data: samples of prompts, and a cell's result, whose `row()` is the only list of CSV columns."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from specbench import metrics, theory
from specbench.bench import statistics
from specbench.bench.lossless import Losslessness
from specbench.decoding.decode import Trace
from specbench.spec import RunSpec

SCHEMA_VERSION = 1
Arm = Literal["baseline", "method"]
Status = Literal["ok", "partial", "nan", "oom", "error"]


@dataclass(frozen=True)
class Sample:
    """One prompt decoded once by both arms, one after the other; `first` says which arm led."""

    prompt: str
    category: str
    repeat: int
    prompt_tokens: int
    first: Arm
    baseline: Trace
    method: Trace

    def row(self) -> dict[str, Any]:
        """One line of samples.csv: seconds, tokens and counts of both arms."""
        counts = metrics.acceptance(self.method.rounds)
        return {
            "prompt": self.prompt,
            "category": self.category,
            "repeat": self.repeat,
            "first": self.first,
            "prompt_tokens": self.prompt_tokens,
            "baseline_tokens": len(self.baseline.tokens),
            "tokens": len(self.method.tokens),
            "baseline_seconds": self.baseline.seconds,
            "seconds": self.method.seconds,
            "baseline_prefill_seconds": self.baseline.prefill_seconds,
            "prefill_seconds": self.method.prefill_seconds,
            "speedup": metrics.ratio(_per_token(self.baseline), _per_token(self.method)),
            "identical": self.baseline.tokens == self.method.tokens,
            "rounds": counts.rounds,
            "drafted": counts.drafted,
            "tested": counts.tested,
            "accepted": counts.accepted,
            "alpha": counts.alpha,
        }

    def round_rows(self) -> list[dict[str, Any]]:
        """The lines of rounds.parquet: one per round of the method."""
        where = {"prompt": self.prompt, "repeat": self.repeat}
        return [
            {**where, "round": i, **asdict(r)}
            for i, r in enumerate(self.method.rounds)
        ]  # fmt: skip


def _per_token(trace: Trace) -> float:
    return metrics.ratio(trace.seconds, len(trace.tokens))


@dataclass(frozen=True)
class Cell:
    """One cell of a run: its spec, what it resolved to, the samples, and how it ended."""

    spec: RunSpec
    resolved: Mapping[str, Any]
    samples: Sequence[Sample] = ()
    status: Status = "ok"
    error: str = ""
    lossless: Losslessness = field(default_factory=Losslessness)

    def row(self) -> dict[str, Any]:
        """The columns of results.csv, in their order. A cell that ended without numbers has none."""
        row: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "status": self.status, "error": self.error}
        row |= {"cell": self.spec.key, **self.spec.model_dump(mode="json"), **self.resolved}
        row |= dict.fromkeys(NUMBERS)
        if self.samples and self.status in {"ok", "partial"}:
            row |= numbers(self.samples) | self.lossless.row()
        return row


def timing(traces: Sequence[Trace]) -> metrics.Timing:
    """The totals of one arm; a span counts where it is outermost, its inner spans are part of it."""
    return metrics.Timing(
        seconds=math.fsum(t.seconds for t in traces),
        draft=math.fsum(t.spans.get("draft", 0.0) for t in traces),
        verify=math.fsum(t.spans.get("verify", 0.0) for t in traces),
        rounds=sum(len(t.rounds) for t in traces),
        drafted=sum(r.drafted for t in traces for r in t.rounds),
        tokens=sum(len(t.tokens) for t in traces),
    )


def by_prompt(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Repetitions of a prompt belong together: they are one draw of the bootstrap."""
    groups: dict[str, list[Sample]] = {}
    for sample in samples:
        groups.setdefault(sample.prompt, []).append(sample)
    return list(groups.values())


def end_to_end(samples: Sequence[Sample]) -> float:
    """Speedup per token with the prefill of both arms."""
    return metrics.speedup(
        (s.baseline.seconds + s.baseline.prefill_seconds for s in samples),
        (len(s.baseline.tokens) for s in samples),
        (s.method.seconds + s.method.prefill_seconds for s in samples),
        (len(s.method.tokens) for s in samples),
    )


def speedup_of(samples: Sequence[Sample]) -> statistics.Interval:
    """The headline: paired by prompt, from totals."""
    groups = by_prompt(samples)
    return statistics.speedup(
        [math.fsum(s.baseline.seconds for s in g) for g in groups],
        [sum(len(s.baseline.tokens) for s in g) for g in groups],
        [math.fsum(s.method.seconds for s in g) for g in groups],
        [sum(len(s.method.tokens) for s in g) for g in groups],
    )


def alpha_of(samples: Sequence[Sample]) -> statistics.Interval:
    """α with a cluster bootstrap over prompts."""
    counts = [metrics.acceptance([r for s in g for r in s.method.rounds]) for g in by_prompt(samples)]
    tested = [c.tested for c in counts]
    return statistics.ratio_of_totals([c.alpha * c.tested if c.tested else 0.0 for c in counts], tested)


NUMBERS = (
    "prompts", "alpha", "alpha_low", "alpha_high", "alpha_tested", "accepted_per_drafted", "tokens_per_round", "c", "v",
    "overhead", "baseline_step_ms", "round_ms", "draft_token_ms", "baseline_tokens_per_second", "tokens_per_second",
    "speedup", "speedup_low", "speedup_high", "speedup_end_to_end", "speedup_predicted", "speedup_calibrated",
    "baseline_prefill_ms", "prefill_ms", "rounds", "drafted", "tested", "accepted", "tokens", "baseline_tokens",
    "lossless", "prompts_identical", "prompts_compared", "first_divergence", "top2_gap", "noise_floor",
)  # fmt: skip


def numbers(samples: Sequence[Sample]) -> dict[str, Any]:
    """Everything that is computed from the samples of a cell; the glossary in the README explains each name."""
    counts = metrics.acceptance([r for s in samples for r in s.method.rounds])
    baseline, method = timing([s.baseline for s in samples]), timing([s.method for s in samples])
    cost = metrics.costs(baseline, method)
    speed, alpha = speedup_of(samples), alpha_of(samples)
    found: dict[str, Any] = {
        "prompts": len(by_prompt(samples)),
        "alpha": alpha.value,
        "alpha_low": alpha.low,
        "alpha_high": alpha.high,
        "alpha_tested": counts.alpha_tested,
        "accepted_per_drafted": counts.accepted_per_drafted,
        "tokens_per_round": counts.tokens_per_round,
        "c": cost.c,
        "v": cost.v,
        "overhead": cost.overhead,
        "baseline_step_ms": 1000 * cost.baseline_step_seconds,
        "round_ms": 1000 * cost.round_seconds,
        "draft_token_ms": 1000 * cost.c * cost.baseline_step_seconds,
        "baseline_tokens_per_second": metrics.ratio(baseline.tokens, baseline.seconds),
        "tokens_per_second": metrics.ratio(method.tokens, method.seconds),
        "speedup": speed.value,
        "speedup_low": speed.low,
        "speedup_high": speed.high,
        "speedup_end_to_end": end_to_end(samples),
        "baseline_prefill_ms": 1000 * math.fsum(s.baseline.prefill_seconds for s in samples) / len(samples),
        "prefill_ms": 1000 * math.fsum(s.method.prefill_seconds for s in samples) / len(samples),
        "rounds": counts.rounds,
        "drafted": counts.drafted,
        "tested": counts.tested,
        "accepted": counts.accepted,
        "tokens": method.tokens,
        "baseline_tokens": baseline.tokens,
    }
    found |= predictions(counts, cost)
    return found | {f"acceptance_at_{i}": a for i, a in enumerate(counts.by_position, start=1)}


def predictions(counts: metrics.Acceptance, cost: metrics.Costs) -> dict[str, float]:
    """Leviathan's formula from this run's α and c; the calibrated one adds acceptance by position, v and overhead."""
    reached = [
        0.0 if math.isnan(a) else a for a in counts.by_position
    ]  # a position that was never reached adds nothing
    if not counts.tested:  # nothing was drafted: the method is the baseline
        return {"speedup_predicted": 1.0, "speedup_calibrated": metrics.ratio(1.0, cost.v + cost.overhead)}
    if not all(map(math.isfinite, (cost.c, cost.v, cost.overhead))):  # a clock or an engine that tells no phases
        return {"speedup_predicted": math.nan, "speedup_calibrated": math.nan}
    return {
        "speedup_predicted": theory.speedup(counts.alpha, len(reached), cost.c),
        "speedup_calibrated": theory.speedup_calibrated(reached, len(reached), cost.c, cost.v, cost.overhead),
    }
