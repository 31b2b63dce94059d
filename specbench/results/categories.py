"""The numbers of a cell by the category of its prompts: the rows of categories.csv.

The columns have the names and definitions of results.csv, over the prompts of one category; `<name>_mean` is
the mean of the prompts' own values, with equal weights.
"""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from specbench import metrics
from specbench.results import statistics
from specbench.results.numbers import (
    LEARNING,
    acceptance_columns,
    cost_columns,
    decodes,
    explanation,
    output_columns,
    speedup_columns,
    timing,
)
from specbench.results.samples import Sample, by_prompt
from specbench.theory.optimum import measured_costs
from specbench.wording import grouped

COSTS = ("c", "v", "overhead", "baseline_tokens_per_second", "tokens_per_second")
PREDICTED = ("speedup_predicted", "speedup_calibrated")
TIMED = (*COSTS, "c_mean", "v_mean", "speedup", "speedup_low", "speedup_high", "speedup_geomean",
         "speedup_end_to_end", *LEARNING, *PREDICTED)  # fmt: skip


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
