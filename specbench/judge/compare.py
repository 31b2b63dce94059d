"""Runs side by side: what was asked for, and what every tier says of every cell that both sides have.

Knows records and verdicts; must not know the command line or how a table looks. `gates` has the test for what is noisy,
`counts` the comparison of what is not.

What is noisy is judged like this: the i-th NEW belongs to the i-th BASE (to the last where there are fewer). All pairs
together must be worse by more than the margin, their bound must exclude zero at the confidence after Holm's correction
over all tests of the tier, and each pair alone must be worse by more than half the margin.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from specbench.errors import NotComparableError
from specbench.judge.compare_input import Record
from specbench.judge.counts import compare_counts
from specbench.judge.evidence import PLAIN, evidence_of
from specbench.judge.holm_test import METRICS, Criterion, Outcome, Trial, Verdict, judge, relative
from specbench.judge.matching import Match, Pair, matched
from specbench.wording import clean

Tier = Literal["deterministic", "ratios", "absolute"]
TIERS: tuple[Tier, ...] = ("deterministic", "ratios", "absolute")
RATIOS: tuple[tuple[str, Literal[-1, 1]], ...] = (("speedup", -1), ("alpha", -1), ("c", 1), ("v", 1))
ABSOLUTES: tuple[tuple[str, Literal[-1, 1]], ...] = (("tokens_per_second", -1), ("baseline_tokens_per_second", -1))
RATIO_MARGIN, ABSOLUTE_MARGIN, CONFIDENCE = 0.025, 0.05, 0.99


@dataclass(frozen=True)
class Asked:
    """What decides. With `gates`, they alone; else the tiers. Margins are shares, confidence is one-sided."""

    tiers: tuple[Tier, ...] = TIERS
    gates: tuple[Criterion, ...] = ()
    ratio_margin: float = RATIO_MARGIN
    absolute_margin: float = ABSOLUTE_MARGIN
    confidence: float = CONFIDENCE


@dataclass(frozen=True)
class Row:
    """One verdict on one cell. base, change and bounds are those of all pairs together; `new` has one value per run."""

    cell: str
    tier: str
    metric: str
    outcome: Outcome
    detail: str = ""
    base: float | None = None
    new: tuple[float, ...] = ()
    change: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    smallest: float | None = None


@dataclass(frozen=True)
class Comparison:
    """Every row that was asked for, sentences on the cells that only one side has, and the tables without a journal."""

    rows: tuple[Row, ...]
    missing: tuple[str, ...]
    unverified: tuple[str, ...] = ()

    def having(self, *outcomes: Outcome) -> list[Row]:
        return [row for row in self.rows if row.outcome in outcomes]

    @property
    def unjudged(self) -> list[Row]:
        """What was asked for and could not be compared."""
        return self.having("not comparable", "not judged")

    @property
    def code(self) -> int:
        """The exit code: 3 where anything regressed, else 7 where anything could not be compared, else 0."""
        return 3 if self.having("REGRESSION") else 7 if self.unjudged else 0


def compare(bases: Sequence[Sequence[Record]], news: Sequence[Sequence[Record]], asked: Asked) -> Comparison:
    """Compare the cells that both sides have; NotComparableError if there is none."""
    matches, missing = matched(bases, news)
    if not matches:
        raise NotComparableError(f"no cell is in both runs: {'; '.join(missing[:4])}{'; …' * (len(missing) > 4)}")
    if asked.gates:
        rows = _tested("gate", matches, asked.gates, asked.confidence)
        mute = [gate.metric for gate in asked.gates if not any(row.metric == gate.metric for row in rows)]
        rows += [Row("all cells", "gate", name, "not judged", "no cell has this number") for name in mute]
        return Comparison((*_lost(missing), *rows), tuple(missing))
    rows = [*_lost(missing), *_statuses(matches)]
    sound = [match for match in matches if all(r.measured for pair in match.pairs for r in pair)]
    if not sound:
        rows.append(Row("all cells", "status", "status", "not comparable", "no cell has numbers on both sides"))
    if "deterministic" in asked.tiers:
        rows += [_counted(match) for match in sound]
    for tier, metrics, margin in (
        ("ratios", RATIOS, asked.ratio_margin),
        ("absolute", ABSOLUTES, asked.absolute_margin),
    ):
        if tier in asked.tiers:
            criteria = [Criterion(name, worse, margin) for name, worse in metrics]
            rows += _tested(tier, sound, criteria, asked.confidence)
    return Comparison(tuple(rows), tuple(missing))


def _lost(missing: Sequence[str]) -> list[Row]:
    """A row for every cell that NEW lacks: a gate must not pass because what it watched is gone."""
    names = [line.split(": only in BASE")[0] for line in missing if ": only in BASE" in line]
    return [Row(name, "status", "status", "not comparable", "NEW lacks this cell") for name in names]


def _statuses(matches: Sequence[Match]) -> Iterator[Row]:
    """A row for every cell of which a run has no numbers, or not all; the worst of its pairs."""
    order = ("REGRESSION", "not comparable", "better", "ok")
    for match in matches:
        found = [(outcome, pair) for pair in match.pairs if (outcome := _status(*pair))]
        if found:
            outcome, (base, new) = min(found, key=lambda one: order.index(one[0]))
            detail = f"{base['status']} → {new['status']} {clean(new['error'], 200)}".rstrip()
            yield Row(match.cell, "status", "status", outcome, clean(detail, 260))


def _status(base: Record, new: Record) -> Outcome | None:
    if not base.measured:
        return "better" if new.measured else "ok"  # nothing was lost, and nothing can be judged
    if not new.measured:
        return "REGRESSION"
    return "not comparable" if (base["status"], new["status"]) == ("ok", "partial") else None


def _counted(match: Match) -> Row:
    """The worst of all pairs: what has no noise needs no second run to be believed."""
    found = [compare_counts(base, new) for base, new in match.pairs]
    order = ("REGRESSION", "not judged", "ok")
    outcome, detail = min(found, key=lambda one: order.index(one[0]))
    return Row(match.cell, "deterministic", "counts", outcome, detail)


def _tested(tier: str, matches: Sequence[Match], criteria: Sequence[Criterion], confidence: float) -> list[Row]:
    """One row per cell and metric. All trials of a tier are one family: Holm's correction runs over them together."""
    asked = [(match.cell, one, _trial(match.pairs, one)) for match in matches for one in criteria]
    verdicts = iter(judge([trial for *_, trial in asked if isinstance(trial, Trial)], 1 - confidence))
    rows = []
    for cell, criterion, trial in asked:
        if isinstance(trial, Trial):
            rows.append(_row(cell, tier, trial, next(verdicts)))
        elif trial is not None:
            rows.append(Row(cell, tier, criterion.metric, *trial))
    return rows


def _trial(pairs: Sequence[Pair], criterion: Criterion) -> Trial | tuple[Outcome, str] | None:
    for record in (record for pair in pairs for record in pair):
        if not record.measured:
            return "not comparable", f"no numbers: status {clean(record['status'])}"
    if criterion.metric.endswith(("_ms", "_per_second")):
        for base, new in pairs:
            if base["fingerprint"] != new["fingerprint"] or not base["fingerprint"]:
                return "not comparable", "another machine or other versions"
    found = evidence_of(criterion, pairs)
    return ("not judged", found) if isinstance(found, str) else found


def _row(cell: str, tier: str, trial: Trial, verdict: Verdict) -> Row:
    noisy = trial.criterion.metric in METRICS
    return Row(
        cell,
        tier,
        trial.criterion.metric,
        verdict.outcome,
        verdict.detail or ("" if noisy else PLAIN),
        trial.pooled.base,
        tuple(run.new for run in trial.runs),
        relative(trial.pooled.log),
        verdict.low,
        verdict.high,
        verdict.p,
        verdict.smallest if noisy else None,
    )
