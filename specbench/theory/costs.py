"""What a round costs: measured from seconds by phase (c, v, overhead), and by its parts, as a schedule reads it.

Knows seconds and counts; must not know how they were taken. Costs are in units of one baseline decode step.
"""

from dataclasses import dataclass

from specbench.metrics import ratio


@dataclass(frozen=True)
class Costs:
    """What the parts of a round cost, in baseline decode steps; measured before a run, never inside one.

    first, later: the first drafted token of a round (it feeds two tokens) and every other one; verify[K]: the target's
    pass over K + 1 tokens; overhead: everything else of a round.
    """

    first: float
    later: float
    verify: tuple[float, ...]
    overhead: float

    def rounds(self, k: int) -> tuple[float, ...]:
        """The cost of a round with a lookahead of 1..k; beyond its last entry `verify` goes on as a line."""
        known = self.verify
        slope = known[-1] - known[-2] if len(known) > 1 else 0.0
        beyond = [known[-1] + slope * n for n in range(1, k + 2 - len(known))]
        verify = [*known, *beyond][1 : k + 1]
        return tuple(self.first + n * self.later + v + self.overhead for n, v in enumerate(verify))


@dataclass(frozen=True)
class Timing:
    """Decode seconds of one arm over some prompts, by phase, with the rounds and tokens they bought.

    `drafted` counts every drafted level, also those that a round cut short could not use: they are part of `draft`.
    `draft_first` is the part of `draft` spent on the first drafted token of each round; 0 where it was not timed.
    `update` is spent on what a draft learns; 0 where it learns nothing.
    """

    seconds: float
    draft: float
    verify: float
    rounds: int
    drafted: int
    tokens: int
    accept: float = 0.0
    draft_first: float = 0.0
    update: float = 0.0


@dataclass(frozen=True)
class Phases:
    """Mean seconds of a round by phase; they add up to the round. `host` is what no other phase covers.

    update: what a draft that learns takes between the prompts, spread over all rounds.
    """

    draft: float
    verify: float
    accept: float
    host: float
    update: float = 0.0


def phases(timing: Timing) -> Phases:
    """The mean round of an arm. The time of empty drafts counts as host; NaN without rounds."""
    draft = timing.draft if timing.drafted else 0.0
    rest = timing.seconds - draft - timing.verify - timing.accept - timing.update
    parts = (draft, timing.verify, timing.accept, rest, timing.update)
    return Phases(*(ratio(part, timing.rounds) for part in parts))


@dataclass(frozen=True)
class MeasuredCosts:
    """Costs of a round in units of one baseline decode step.

    Kc + v + overhead is the measured cost of a round, with K the mean number of drafted tokens. In the ideal of
    Leviathan's formula v is 1 and overhead is 0: a round costs its draft and one baseline step, sampling included.
    """

    baseline_step_seconds: float
    round_seconds: float
    c: float
    v: float
    overhead: float


def measured_costs(baseline: Timing, method: Timing) -> MeasuredCosts:
    """The costs of the mean round, both arms from one run.

    c = draft seconds per drafted token ÷ baseline step; v = verify pass ÷ the baseline's pass over one token;
    overhead = what the round costs beyond its draft and v baseline steps ÷ baseline step.
    """
    step = ratio(baseline.seconds, baseline.rounds)
    per_round = ratio(method.seconds, method.rounds)
    c = ratio(ratio(method.draft, method.drafted), step) if method.drafted else 0.0
    v = ratio(ratio(method.verify, method.rounds), ratio(baseline.verify, baseline.rounds))
    drafting = c * ratio(method.drafted, method.rounds)
    return MeasuredCosts(step, per_round, c, v, ratio(per_round, step) - drafting - v)
