"""From rounds to the numbers of a run: acceptance, tokens per round, costs. Pure: counts in, numbers out."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RoundCounts:
    """One round of one sequence: drafted, tested and accepted levels, emitted tokens (correction or bonus included).

    `overlap[i]` is the chance that the verifier accepts level i + 1 given that it is tested: Σ min(p, q) for
    `Rejection`, Σ p·q for `TokenMatch`.
    """

    drafted: int
    tested: int
    accepted: int
    emitted: int
    overlap: tuple[float, ...]


def ratio(part: float, whole: float) -> float:
    """part ÷ whole; NaN where there is nothing to divide by, never a made-up number."""
    return part / whole if whole else math.nan


@dataclass(frozen=True)
class Acceptance:
    """What many rounds say about acceptance; the names are those of the CSV (glossary in the README)."""

    rounds: int
    drafted: int
    tested: int
    accepted: int
    emitted: int
    alpha: float
    alpha_tested: float
    accepted_per_drafted: float
    tokens_per_round: float
    by_position: tuple[float, ...]


def acceptance(rounds: Sequence[RoundCounts]) -> Acceptance:
    """α as the mean overlap over tested positions, beside the counts from which the other acceptance numbers follow."""
    drafted, tested = sum(r.drafted for r in rounds), sum(r.tested for r in rounds)
    accepted, emitted = sum(r.accepted for r in rounds), sum(r.emitted for r in rounds)
    return Acceptance(
        rounds=len(rounds),
        drafted=drafted,
        tested=tested,
        accepted=accepted,
        emitted=emitted,
        alpha=min(ratio(math.fsum(x for r in rounds for x in r.overlap), tested), 1.0),  # float32 rows sum to 1 ± 1e-7
        alpha_tested=ratio(accepted, tested),
        accepted_per_drafted=ratio(accepted, drafted),
        tokens_per_round=ratio(emitted, len(rounds)),
        by_position=acceptance_by_position(rounds),
    )


def acceptance_by_position(rounds: Sequence[RoundCounts]) -> tuple[float, ...]:
    """Conditional acceptance at positions 1..K: accepted at i ÷ tested at i, clipped rounds included."""
    longest = max((r.drafted for r in rounds), default=0)
    return tuple(
        ratio(sum(r.accepted >= i for r in rounds), sum(r.tested >= i for r in rounds)) for i in range(1, longest + 1)
    )


@dataclass(frozen=True)
class Timing:
    """Decode seconds of one arm over some prompts, by phase, with the rounds and tokens they bought.

    `draft_first` is the part of `draft` that the first drafted token of each round took; 0 where nobody timed it.
    """

    seconds: float
    draft: float
    verify: float
    rounds: int
    drafted: int
    tokens: int
    accept: float = 0.0
    draft_first: float = 0.0


@dataclass(frozen=True)
class Phases:
    """Mean seconds of a round by phase; they add up to the round. `host` is what no other phase covers."""

    draft: float
    verify: float
    accept: float
    host: float


def phases(timing: Timing) -> Phases:
    """The mean round of an arm. Where nothing was drafted, what an empty draft took counts as host; NaN if no round."""
    draft = timing.draft if timing.drafted else 0.0
    rest = timing.seconds - draft - timing.verify - timing.accept
    return Phases(*(ratio(part, timing.rounds) for part in (draft, timing.verify, timing.accept, rest)))


@dataclass(frozen=True)
class Costs:
    """Costs of a round in units of one baseline decode step (design: c, v, overhead).

    Kc + v + overhead is the measured cost of a round, with K the mean number of drafted tokens. In the ideal of
    Leviathan's formula v is 1 and overhead is 0: a round costs its draft and one baseline step, sampling included.
    """

    baseline_step_seconds: float
    round_seconds: float
    c: float
    v: float
    overhead: float


def costs(baseline: Timing, method: Timing) -> Costs:
    """c = draft seconds per drafted token ÷ baseline step; v = verify pass ÷ the baseline's pass over one token;
    overhead = what the round costs beyond its draft and v baseline steps ÷ baseline step. Both arms from one run.
    """
    step = ratio(baseline.seconds, baseline.rounds)
    per_round = ratio(method.seconds, method.rounds)
    c = ratio(ratio(method.draft, method.drafted), step) if method.drafted else 0.0
    v = ratio(ratio(method.verify, method.rounds), ratio(baseline.verify, baseline.rounds))
    drafting = c * ratio(method.drafted, method.rounds)
    return Costs(step, per_round, c, v, ratio(per_round, step) - drafting - v)


def speedup(
    baseline_seconds: Iterable[float], baseline_tokens: Iterable[int], seconds: Iterable[float], tokens: Iterable[int]
) -> float:
    """Ratio of totals, per token: (Σ baseline seconds ÷ Σ tokens) ÷ (Σ method seconds ÷ Σ tokens).

    With equal token counts (greedy decoding) this is Σ baseline seconds ÷ Σ method seconds.
    """
    return ratio(ratio(math.fsum(baseline_seconds), sum(baseline_tokens)), ratio(math.fsum(seconds), sum(tokens)))
