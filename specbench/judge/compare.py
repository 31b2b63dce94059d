"""Comparison of runs: the findings of every tier on every cell that both sides have.

Noisy numbers are judged like this: the i-th NEW belongs to the i-th BASE (to the last if there are fewer). All pairs
together must be worse by more than the margin, their bound must exclude zero at the confidence after Holm's correction
over all tests of the tier, and each pair alone must be worse by more than half the margin.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from specbench.errors import NotComparableError
from specbench.judge.matching import Match, Record, RecordPair, compare_counts, matched
from specbench.judge.significance import (
    METRICS,
    TOTALLED,
    Criterion,
    Decision,
    Estimate,
    Outcome,
    Trial,
    decide,
    estimate,
    noiseless,
    relative,
)
from specbench.results.cells import UNFINISHED
from specbench.results.noise import other_load, other_pace
from specbench.wording import clean

Tier = Literal["deterministic", "ratios", "absolute"]
TIERS: tuple[Tier, ...] = ("deterministic", "ratios", "absolute")
RATIOS: tuple[tuple[str, Literal[-1, 1]], ...] = (("speedup", -1), ("alpha", -1), ("c", 1), ("v", 1))
ABSOLUTES: tuple[tuple[str, Literal[-1, 1]], ...] = (("tokens_per_second", -1), ("baseline_tokens_per_second", -1))
CLOCKED = ("_ms", "_seconds", "_per_second")  # suffixes of columns in seconds or derived from them
RATIO_MARGIN, ABSOLUTE_MARGIN, CONFIDENCE = 0.025, 0.05, 0.99
NO_INTERVAL = "a plain number, no interval"


@dataclass(frozen=True)
class Policy:
    """The decision rule: only the `gates` if given, else the tiers. Margins are shares, the confidence is one-sided."""

    tiers: tuple[Tier, ...] = TIERS
    gates: tuple[Criterion, ...] = ()
    ratio_margin: float = RATIO_MARGIN
    absolute_margin: float = ABSOLUTE_MARGIN
    confidence: float = CONFIDENCE


@dataclass(frozen=True)
class Finding:
    """The result for one number of one cell.

    base, change and bounds are over all pairs together; `new` has one value per run.
    """

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
    """Every finding, and sentences on the cells that only one side has."""

    findings: tuple[Finding, ...]
    missing: tuple[str, ...]

    def having(self, *outcomes: Outcome) -> list[Finding]:
        return [row for row in self.findings if row.outcome in outcomes]

    @property
    def unjudged(self) -> list[Finding]:
        """The requested findings that could not be compared."""
        return self.having("not comparable", "not judged")

    @property
    def code(self) -> int:
        """The exit code: 3 if anything regressed, else 7 if anything could not be compared, else 0."""
        return 3 if self.having("REGRESSION") else 7 if self.unjudged else 0


def compare_runs(bases: Sequence[Sequence[Record]], news: Sequence[Sequence[Record]], policy: Policy) -> Comparison:
    """Compare the cells that both sides have. NotComparableError without common cells."""
    matches, missing = matched(bases, news)
    if not matches:
        raise NotComparableError(f"no cell is in both runs: {'; '.join(missing[:4])}{'; …' * (len(missing) > 4)}")
    if policy.gates:  # a gate without numbers in any cell must not pass
        found = _tested("gate", matches, policy.gates, policy.confidence)
        mute = [gate.metric for gate in policy.gates if not any(one.metric == gate.metric for one in found)]
        found += [Finding("all cells", "gate", name, "not judged", "no cell has this number") for name in mute]
    else:
        found = [*_statuses(matches), *_by_tiers(matches, policy)]
    # a gate must not pass because NEW lacks its cell
    names = [line.split(": only in BASE")[0] for line in missing if ": only in BASE" in line]
    lost = [Finding(name, "status", "status", "not comparable", "NEW lacks this cell") for name in names]
    return Comparison((*lost, *_without_unfinished(found, matches)), tuple(missing))


def _without_unfinished(found: Sequence[Finding], matches: Sequence[Match]) -> Iterator[Finding]:
    """The findings, with no regressions for cells that a run did not finish."""
    unfinished = {m.cell for m in matches for pair in m.pairs if any(r["status"] in UNFINISHED for r in pair)}
    for one in found:
        if one.outcome == "REGRESSION" and one.tier != "status" and one.cell in unfinished:
            detail = f"the cell was not measured to its end; {one.detail}".removesuffix("; ")
            yield replace(one, outcome="not comparable", detail=detail)
        else:
            yield one


def _by_tiers(matches: Sequence[Match], policy: Policy) -> Iterator[Finding]:
    """The requested tiers, on the cells that have numbers on both sides."""
    sound = [match for match in matches if all(r.measured for pair in match.pairs for r in pair)]
    if not sound:
        yield Finding("all cells", "status", "status", "not comparable", "no cell has numbers on both sides")
    if "deterministic" in policy.tiers:
        order = ("REGRESSION", "not judged", "ok")
        for match in sound:  # the worst pair counts: a number without noise needs no second run
            found = [compare_counts(base, new) for base, new in match.pairs]
            outcome, detail = min(found, key=lambda one: order.index(one[0]))
            yield Finding(match.cell, "deterministic", "counts", outcome, detail)
    margins = {"ratios": (RATIOS, policy.ratio_margin), "absolute": (ABSOLUTES, policy.absolute_margin)}
    for tier, (metrics, margin) in margins.items():
        if tier in policy.tiers:
            criteria = [Criterion(name, worse, margin) for name, worse in metrics]
            yield from _tested(tier, sound, criteria, policy.confidence)


def _statuses(matches: Sequence[Match]) -> Iterator[Finding]:
    """A row for every cell with missing numbers, by the worst pair; a regression if it failed, not if unmeasured."""
    order = ("REGRESSION", "not comparable", "better", "ok")
    for match in matches:
        found = [(outcome, pair) for pair in match.pairs if (outcome := _status(*pair))]
        if found:
            outcome, (base, new) = min(found, key=lambda one: order.index(one[0]))
            detail = f"{base['status']} → {new['status']} {clean(new['error'], 200)}".rstrip()
            yield Finding(match.cell, "status", "status", outcome, clean(detail, 260))


def _status(base: Record, new: Record) -> Outcome | None:
    if base["status"] in UNFINISHED or new["status"] in UNFINISHED:
        return "not comparable"
    if not base.measured:
        return "better" if new.measured else "ok"  # nothing was lost, and nothing can be judged
    return None if new.measured else "REGRESSION"


def _tested(tier: str, matches: Sequence[Match], criteria: Sequence[Criterion], confidence: float) -> list[Finding]:
    """One row per cell and metric. All trials of a tier form one family for Holm's correction."""
    tried = [(match.cell, one, _trial(match.pairs, one)) for match in matches for one in criteria]
    decisions = iter(decide([trial for *_, trial in tried if isinstance(trial, Trial)], 1 - confidence))
    rows = []
    for cell, criterion, trial in tried:
        if isinstance(trial, Trial):
            rows.append(_finding(cell, tier, trial, next(decisions)))
        elif trial is not None:
            rows.append(Finding(cell, tier, criterion.metric, *trial))
    return rows


def _trial(pairs: Sequence[RecordPair], criterion: Criterion) -> Trial | tuple[Outcome, str] | None:
    for record in (record for pair in pairs for record in pair):
        if not record.measured:
            return "not comparable", f"no numbers: status {clean(record['status'])}"
    if criterion.metric.endswith(CLOCKED):
        for base, new in pairs:
            if base["fingerprint"] != new["fingerprint"] or not base["fingerprint"]:
                return "not comparable", "another machine or other versions"
            if reason := next(chain(other_load(base.row, new.row), other_pace(base.row, new.row)), ""):
                return "not comparable", reason
    found = evidence_of(criterion, pairs)
    return ("not judged", found) if isinstance(found, str) else found


def _finding(cell: str, tier: str, trial: Trial, decision: Decision) -> Finding:
    noisy = trial.criterion.metric in METRICS
    return Finding(
        cell,
        tier,
        trial.criterion.metric,
        decision.outcome,
        decision.detail or ("" if noisy else NO_INTERVAL),
        trial.pooled.base,
        tuple(run.new for run in trial.runs),
        relative(trial.pooled.log),
        decision.low,
        decision.high,
        decision.p,
        decision.smallest if noisy else None,
    )


# --- the evidence -----------------------------------------------------------------------------------------------------


Totals = Mapping[str, NDArray[np.float64]]  # one vector of `TOTALLED` per draw


def evidence_of(criterion: Criterion, pairs: Sequence[RecordPair]) -> Trial | str | None:
    """A trial, the reason against one, or None if no run has the number (for instance, nothing was drafted).

    Ratios of totals are compared over prompts, paired if both runs had the same; other numbers as they are.
    """
    name = criterion.metric
    values = [[record.number(name) for record in pair] for pair in pairs]
    if all(math.isnan(value) for pair in values for value in pair):
        return None
    for before, after in values:
        if math.isnan(before) or math.isnan(after):
            return f"no {name} in {'BASE' if math.isnan(before) else 'NEW'}"
    if name in METRICS:
        return _from_totals(criterion, pairs)
    runs = [noiseless(*pair) for pair in values]
    with np.errstate(over="ignore", invalid="ignore"):  # a change from 0 is infinite, and two may cancel
        base, new, log = (float(np.mean([getattr(run, name) for run in runs])) for name in ("base", "new", "log"))
    whole = Estimate(base, new, log, max(run.error for run in runs), min(run.df for run in runs))
    if math.isnan(whole.log):
        return f"{name} changed in opposite directions from or to 0"
    return Trial(criterion, whole, tuple(runs))


def _from_totals(criterion: Criterion, pairs: Sequence[RecordPair]) -> Trial | str:
    paired = all(base["prompts_sha256"] == new["prompts_sha256"] != "" for base, new in pairs)
    totals: list[tuple[Totals, Totals]] = [(base.totals, new.totals) for base, new in pairs]
    if paired:
        totals = [_common(*pair) for pair in totals]
    if min(len(run) for pair in totals for run in pair) < 2:
        return "fewer than two prompts to compare"
    bases, news = zip(*totals, strict=True)
    pooled = (_sum(bases), _sum(news))
    if paired:  # a prompt missing in one pair is left out on both sides
        pooled = _common(*pooled)
    runs = tuple(_estimate(criterion.metric, base, new, paired) for base, new in totals)
    whole = _estimate(criterion.metric, *pooled, paired)
    if whole.base == 0 or whole.new == 0:  # 0 has no logarithm, but no noise either
        return Trial(criterion, noiseless(whole.base, whole.new), tuple(noiseless(run.base, run.new) for run in runs))
    if not math.isfinite(whole.log) or math.isnan(whole.error):
        return f"{criterion.metric} depends on a single prompt, or lacks a time"
    return Trial(criterion, whole, runs)


def _common(base: Totals, new: Totals) -> tuple[Totals, Totals]:
    """The common draws of both, in the order of the first."""
    names = [name for name in base if name in new]
    return {name: base[name] for name in names}, {name: new[name] for name in names}


def _sum(runs: Sequence[Totals]) -> Totals:
    """The sum of all runs, draw by draw."""
    return {name: np.sum([run[name] for run in runs if name in run], axis=0) for run in runs for name in run}


def _estimate(metric: str, base: Totals, new: Totals, paired: bool) -> Estimate:
    before, after = (dict(zip(TOTALLED, np.array(list(one.values())).T, strict=True)) for one in (base, new))
    return estimate(METRICS[metric], before, after, paired)
