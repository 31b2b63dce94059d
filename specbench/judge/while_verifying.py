"""What drafting while verifying should give: for given numbers, and for cells that were measured one after another.

Knows the formulas, columns of results.csv and counts of traced rounds; must not know how a prediction is shown.
Loads nothing heavy: the command answers at once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specbench.errors import UsageError
from specbench.judge.drafts import drafting
from specbench.judge.predictions import accepted_by_position, number
from specbench.theory import formulas
from specbench.theory.while_verifying import always_ready, by_hits, hit_of_one, one_after_another
from specbench.wording import clean

NEEDED = ("k", "c", "v", "overhead", "speedup")
FANS = (1, 2, 4, 8)  # guesses for the token after every number of accepted drafts


@dataclass(frozen=True)
class Hits:
    """How often the next draft was already made for the right text.

    prepared: what the draft goes on with meanwhile, in words.
    """

    prepared: str
    share: float


@dataclass(frozen=True)
class Counted:
    """What traced rounds say, all but the last of each text, which nothing is drafted after: E, and hits."""

    method: str
    k: int
    rounds: int
    expected_tokens: float
    hits: Sequence[Hits]


@dataclass(frozen=True)
class WhileVerifying:
    """One K by the formulas, in baseline steps; alpha None where the acceptance was counted, not given.

    speedup: one after another; speedup_ready: every draft ready in time; speedup_parallel: `hit` of them.
    """

    alpha: float | None
    c: float
    v: float
    k: int
    expected_tokens: float
    prepared: str
    hit: float
    speedup: float
    speedup_parallel: float
    speedup_ready: float


@dataclass(frozen=True)
class MeasuredCell:
    """A cell of a run, measured one after another, and what it should give with the draft at work meanwhile."""

    dataset: str
    method: str
    k: int
    expected_tokens: float
    c: float
    v: float
    overhead: float
    prepared: str
    hit: float
    speedup: float
    speedup_calibrated: float
    speedup_parallel: float
    speedup_ready: float


def of_rates(alpha: float, c: float, v: float, k: int, hit: float | None, at_once: bool) -> WhileVerifying:
    """From plain numbers; without a share of hits that of a draft that goes on by itself. ValueError out of range."""
    formulas.check_cost("c", c)
    tokens = formulas.expected_tokens(alpha, k)
    hits = Hits("one text", hit_of_one(alpha, k)) if hit is None else Hits("given", hit)
    return row_of(alpha, c, v, k, tokens, hits, at_once)


def of_traces(counted: Counted, c: float, v: float, at_once: bool) -> list[WhileVerifying]:
    """From counted rounds, one row for each way to prepare. ValueError out of range."""
    formulas.check_cost("c", c)
    return [row_of(None, c, v, counted.k, counted.expected_tokens, hits, at_once) for hits in counted.hits]


def row_of(alpha: float | None, c: float, v: float, k: int, tokens: float, hits: Hits, at_once: bool) -> WhileVerifying:
    cost = formulas.drafting(k, c, at_once)
    return WhileVerifying(
        *(alpha, c, v, k, tokens, hits.prepared, hits.share),
        speedup=one_after_another(tokens, cost, v),
        speedup_parallel=by_hits(tokens, cost, v, hits.share),
        speedup_ready=always_ready(tokens, cost, v),
    )


def of_cell(row: Mapping[str, str], where: str, given: Sequence[Hits]) -> list[MeasuredCell]:
    """One row of results.csv, for every given share of hits; without any for what the run itself can say of it.

    That is how often all drafts of a round were accepted: a draft that goes on by itself is right no more often than
    that, as it must guess the token after them, too. UsageError, naming the place, if a value makes no sense.
    """
    try:
        numbers = [number(row, name) or 0.0 for name in NEEDED]
        k, c, v, overhead, speedup = int(numbers[0]), *numbers[1:]
        accepted = accepted_by_position(row, k)
        if accepted is None:
            raise ValueError("the acceptance of some position is missing (acceptance_at_1 to K)")
        tokens, cost = formulas.expected_tokens_by_position(accepted), drafting(row) or k * c
        return [
            MeasuredCell(
                clean(row.get("dataset", ""), 300),
                clean(row.get("method", "")),
                *(k, tokens, c, v, overhead, hits.prepared, hits.share, speedup),
                speedup_calibrated=one_after_another(tokens, cost, v, overhead),
                speedup_parallel=by_hits(tokens, cost, v, hits.share, overhead),
                speedup_ready=always_ready(tokens, cost, v, overhead),
            )
            for hits in given or [Hits("at most, of one text", accepted_whole(accepted))]
        ]
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from error


def accepted_whole(accepted: Sequence[float]) -> float:
    """The share of rounds whose drafts are all accepted, from the acceptance at every position."""
    share = 1.0
    for one in accepted:
        share *= one
    return share
