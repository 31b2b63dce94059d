"""What drafts of many shapes cost beside their target, in the tier asked for; they need not have learned anything.

Every turn decodes the same random tokens with the target alone, with a chain from every draft, and with chains of
other lookaheads, in a random order, so that a change of the machine's speed meets all of them. Knows networks and
decodes; must not know shapes or training.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

import numpy as np

from specbench.backends.base import Decode, Networks
from specbench.measure.calibrate import QUICK_CONTEXT, TOKENS, WARMUP, fitting, in_random_order
from specbench.metrics import Trace, ratio
from specbench.results.numbers import timing
from specbench.spec import BASELINE, RunSpec
from specbench.theory.costs import measured_costs
from specbench.theory.design import Spread, Target

LOOKAHEAD = 4  # drafted tokens of a round in which a draft is timed

Row = Mapping[str, Any]
Arm = tuple[str, int]  # (draft, lookahead)


@dataclass(frozen=True)
class DraftLatency:
    """Seconds per drafted token of one draft with their spread over turns, and of first and later tokens of a round;
    c: in steps of the target, turn by turn."""

    token: Spread
    first: float
    later: float
    c: Spread


@dataclass(frozen=True)
class Latencies:
    """The target's step with its spread, in seconds, what else of a round is the target's, and every draft.

    v: by lookahead, the target's pass over K + 1 tokens ÷ that over one.
    """

    step: Spread
    target: Target
    drafts: Mapping[str, DraftLatency]
    v: Mapping[int, float]


def lookaheads(k_max: int) -> list[int]:
    """The lookaheads at which the target's pass is measured: powers of two, and the largest."""
    return sorted({1 << n for n in range(k_max.bit_length())} | {k_max})


def timed_turns(
    networks: Networks,
    spec: RunSpec,
    methods: Mapping[str, str],
    k_max: int,
    repeat: int,
    watch: Callable[[int], None] = lambda turn: None,
) -> list[dict[str, Any]]:
    """One row per turn, draft and lookahead; `methods`: the method of every draft, whose networks are held.

    spec: target, tier and how is decoded. `watch` hears the number of every turn, 0 while arms are made ready.
    """
    order = random.Random(spec.seed)
    (context,) = fitting([QUICK_CONTEXT], max(TOKENS, k_max) + TOKENS, networks)
    prompt = [order.randrange(networks.width) for _ in range(context)]
    watch(0)
    decodes = arms_of(networks, spec, methods, k_max, prompt)
    found: list[dict[str, Any]] = []
    for turn in range(-WARMUP, repeat):
        if turn >= 0:
            watch(turn + 1)
        traces = in_random_order(decodes, order)
        alone = traces.pop((BASELINE, 0))
        found += [row_of(turn, arm, alone, trace) for arm, trace in sorted(traces.items()) if turn >= 0]
    return found


def arms_of(
    networks: Networks, spec: RunSpec, methods: Mapping[str, str], k_max: int, prompt: Sequence[int]
) -> dict[Arm, Callable[[], Trace]]:
    """The baseline, every draft at one lookahead, and the first draft at the other ones."""
    base = spec.with_(max_new_tokens=TOKENS, ignore_eos=True, batch=1, schedule="constant")
    first = next(iter(methods))
    arms = dict.fromkeys(
        [*((name, min(LOOKAHEAD, k_max)) for name in methods), *((first, k) for k in lookaheads(k_max))]
    )
    specs = {(name, k): base.with_(method=methods[name], k=k) for name, k in arms}

    def arm(one: RunSpec) -> Callable[[], Trace]:
        run: Decode = networks.prepare(one, len(prompt))
        return lambda: run([prompt], [spec.seed % 2**63])[0]

    return {(BASELINE, 0): arm(base.baseline)} | {name: arm(one) for name, one in specs.items()}


def row_of(turn: int, arm: Arm, alone: Trace, chain: Trace) -> dict[str, Any]:
    """What a turn says of a draft and of the target's pass over its tokens; times in seconds.

    verify: a step with that pass in it; overhead: what else a round adds to a step; both in steps.
    """
    baseline, method = timing([alone]), timing([chain])
    cost = measured_costs(baseline, method)
    token = ratio(method.draft, method.drafted)
    later = method.drafted - method.rounds
    wider = ratio(method.verify, method.rounds) - ratio(baseline.verify, baseline.rounds)
    verify = 1 + wider / cost.baseline_step_seconds
    return {
        "draft": arm[0],
        "k": arm[1],
        "turn": turn,
        "step": cost.baseline_step_seconds,
        "token": token,
        "first": ratio(method.draft_first, method.rounds),
        "later": ratio(method.draft - method.draft_first, later) if later else token,
        "c": cost.c,
        "v": cost.v,
        "verify": verify,
        "overhead": cost.v + cost.overhead - verify,
    }


def latencies(rows: Sequence[Row]) -> Latencies:
    """What the rows of all turns say: medians, with quartiles."""
    drafts = dict.fromkeys(str(row["draft"]) for row in rows)
    steps = {row["turn"]: row["step"] for row in rows}
    step = spread(list(steps.values()))
    ks = sorted({int(row["k"]) for row in rows})
    v = {k: median([row["v"] for row in rows if row["k"] == k]) for k in ks}
    return Latencies(step, target_of(rows, step.value), {name: latency(rows, name) for name in drafts}, v)


def latency(rows: Sequence[Row], name: str) -> DraftLatency:
    """One draft at the lookahead that all drafts have."""
    common = min(LOOKAHEAD, max(row["k"] for row in rows))
    own = [row for row in rows if row["draft"] == name and row["k"] == common]
    token, first, later, c = ([row[key] for row in own] for key in ("token", "first", "later", "c"))
    return DraftLatency(spread(token), median(first), median(later), spread(c))


def target_of(rows: Sequence[Row], step: float) -> Target:
    """The target's costs by lookahead; those that were not measured lie on a line between their neighbours.

    The pass of a lookahead does not depend on who drafted: all drafts that were timed at it count.
    """
    ks = sorted({row["k"] for row in rows})
    passes = [median([row["verify"] for row in rows if row["k"] == k]) for k in ks]
    verify = np.interp(range(ks[-1] + 1), [0, *ks], [1.0, *passes])
    return Target(step, tuple(max(0.0, float(one)) for one in verify), median([row["overhead"] for row in rows]))


def spread(values: Sequence[float]) -> Spread:
    low, _, high = quantiles(values, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return Spread(median(values), low, high)
