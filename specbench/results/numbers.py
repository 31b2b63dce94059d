"""The numbers of a cell: everything in results.csv that is computed from its samples.

Knows samples and the modules that each compute a part; must not know how a cell ended or where its row is written.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from specbench import metrics
from specbench.results import noise, statistics
from specbench.results.batches import pooled
from specbench.results.chosen import COLUMNS as CHOSEN
from specbench.results.chosen import chosen_columns
from specbench.results.costs import break_even, cost_columns, rows_idle, timing
from specbench.results.latency import COLUMNS as LATENCY
from specbench.results.latency import latency
from specbench.results.nests import draft_costs, inner_levels, level_columns, relayed, steady
from specbench.results.outputs import OUTPUTS
from specbench.results.peaks import COLUMNS as PEAKS
from specbench.results.reliability import COLUMNS as BELIEF
from specbench.results.reliability import belief_columns
from specbench.results.samples import (  # fmt: skip
    Sample,
    alpha_of,
    by_prompt,
    end_to_end,
    speedup_of,
    speedup_per_token,
    without_updates,
)
from specbench.results.served import COLUMNS as SERVED
from specbench.results.served import served
from specbench.results.steadiness import Steadiness, steadiness
from specbench.theory.costs import Timing
from specbench.theory.waterfall import explain

LEARNING = ("speedup_elsewhere", "speedup_elsewhere_low", "speedup_elsewhere_high", "update_share")
STEADINESS = tuple(one.name for one in fields(Steadiness))
NUMBERS = (
    "prompts", "draws", "turns", "turns_cut", "alpha", "alpha_low", "alpha_high", "alpha_tested",
    "accepted_per_drafted", "tokens_per_round", "c", "v", "v_low", "v_high", "overhead", "baseline_step_ms",
    "round_ms", "round_draft_ms", "round_verify_ms", "round_accept_ms", "round_host_ms", "round_update_ms",
    "draft_token_ms", "draft_first_ms", "baseline_tokens_per_second", "tokens_per_second", "speedup", "speedup_low",
    "speedup_high", "speedup_geomean", "speedup_end_to_end", "break_even_batch", "rows_idle", "baseline_rows_idle",
    *LEARNING, "speedup_predicted", "speedup_calibrated", "speedup_ideal", "term_first_draft", "term_levels",
    "term_position", "term_verify", "term_sampling", "term_host", "term_update", "term_truncated",
    "baseline_prefill_ms", "prefill_ms", *LATENCY, *SERVED, "baseline_ready_seconds", "ready_seconds", *PEAKS,
    *CHOSEN, "rounds", "drafted", "tested", "accepted", "drafted_per_round", "nodes_per_round", "draft_hit_rate",
    "law_distance", *BELIEF, "tokens", "baseline_tokens", "outliers", "drift", "drift_p", "bimodality",
    "load_average", *STEADINESS, *OUTPUTS, "lossless", "prompts_identical", "prompts_compared", "first_divergence",
    "top2_gap", "noise_floor",
)  # fmt: skip


def numbers(samples: Sequence[Sample], lookahead: int | None, rows: int = 1) -> dict[str, Any]:
    """Everything that is computed from the samples of a cell, by column.

    `lookahead` is the K of a constant schedule, None for any other; `rows` is the number of rows decoded together.
    """
    traces = [s.method for s in samples]
    rounds = [r for trace in traces for r in trace.rounds]
    counts, drafting = metrics.acceptance(rounds), metrics.drafting(rounds)
    baseline, method = timing([s.baseline for s in samples]), timing(traces)
    return {
        "prompts": len({s.prompt for s in samples}),
        "draws": len(by_prompt(samples)),
        **turn_columns(samples),
        **acceptance_columns(samples, counts),
        **cost_columns(samples, baseline, method),
        **latency([s.baseline for s in samples], traces, rows),
        **served([s.baseline for s in samples], traces),
        **speedup_columns(samples),
        "break_even_batch": break_even(samples, baseline, method, drafting.nodes, rows),
        "rows_idle": rows_idle(samples, rows),
        "baseline_rows_idle": rows_idle(samples, rows, baseline=True),
        **chosen_columns(samples),
        **tallies(counts, drafting),
        **belief_columns(rounds),
        "tokens": method.tokens,
        "baseline_tokens": baseline.tokens,
        **asdict(noise.diagnose(pooled(samples))),
        **asdict(steadiness(pooled(samples))),
        **{f"acceptance_at_{i}": a for i, a in enumerate(counts.by_position, start=1)},
        **explanation(samples, baseline, method, lookahead),
        **({} if learns(samples) else {"round_update_ms": None}),
    }


def learns(samples: Sequence[Sample]) -> bool:
    """Whether the draft of the method learns from one prompt to the next."""
    return any("update" in one.method.spans for one in samples)


def turn_columns(samples: Sequence[Sample]) -> dict[str, int | None]:
    """How many turns were decoded, and how many not, of the conversations that began; None without conversations."""
    began = {s.prompt: s.conversation[1] for s in samples}
    if max(began.values()) == 1:
        return {"turns": None, "turns_cut": None}
    turns = len({(s.prompt, s.conversation[0]) for s in samples})
    return {"turns": turns, "turns_cut": sum(began.values()) - turns}


def acceptance_columns(samples: Sequence[Sample], counts: metrics.Acceptance) -> dict[str, float]:
    """α with its interval over prompts, and the other acceptance numbers."""
    alpha = alpha_of(samples)
    return {
        "alpha": alpha.value,
        "alpha_low": alpha.low,
        "alpha_high": alpha.high,
        "alpha_tested": counts.alpha_tested,
        "accepted_per_drafted": counts.accepted_per_drafted,
        "tokens_per_round": counts.tokens_per_round,
    }


def speedup_columns(samples: Sequence[Sample]) -> dict[str, float | None]:
    """The measured speedup with its interval over prompts, and other means of it."""
    speedup = speedup_of(samples)
    return {
        "speedup": speedup.value,
        "speedup_low": speedup.low,
        "speedup_high": speedup.high,
        "speedup_geomean": statistics.geomean([speedup_per_token(s) for s in samples]),
        "speedup_end_to_end": end_to_end(samples),
        **learning_columns(samples),
    }


def learning_columns(samples: Sequence[Sample]) -> dict[str, float | None]:
    """What the speedup would be if what a draft learns were computed elsewhere, and the share of the time that it takes
    here; None of methods that learn nothing."""
    if not learns(samples):
        return dict.fromkeys(LEARNING)
    found = speedup_of([without_updates(s) for s in samples])
    updating, seconds = math.fsum(s.method.updating for s in samples), math.fsum(s.method.seconds for s in samples)
    return dict(zip(LEARNING, (found.value, found.low, found.high, metrics.ratio(updating, seconds)), strict=True))


def explanation(samples: Sequence[Sample], baseline: Timing, method: Timing, lookahead: int | None) -> dict[str, float]:
    """The terms between the predicted and the measured speedup, and the numbers of each inner level of a nest."""
    traces = [s.method for s in samples]
    rounds = [r for trace in traces for r in trace.rounds]
    lookahead = steady(traces, lookahead)
    step = metrics.ratio(baseline.seconds, baseline.rounds)
    inner = inner_levels(traces, step)
    drafts = draft_costs(inner, traces, step, lookahead)
    found = explain(rounds, baseline, method, lookahead, speedup_of(samples).value, drafts, relayed(traces))
    return {**found.row(), **level_columns(inner)}


def tallies(counts: metrics.Acceptance, drafting: metrics.Drafting) -> dict[str, Any]:
    """What the rounds drafted, tested and accepted, in total and per round."""
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
