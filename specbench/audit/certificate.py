"""The result of an audit: the answer, the likely cause of every fault, its numbers, and requests that show it."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specbench.audit.cells import NEUTRAL, NEUTRAL_CELL, share_of
from specbench.audit.course import Course, Floors
from specbench.audit.forks import Finding, Found, answered
from specbench.audit.statistics import BEST
from specbench.files import replace_text
from specbench.results.documents import AUDIT, LOSSY, worded
from specbench.show.table import Table
from specbench.show.text import markdown_table
from specbench.wording import formatted, literal

PAGE = "audit.md"
TIMED_OUT, INTERRUPTED = "its time was over", "interrupted"  # why an audit ended early, besides a lost server
NONE_SEEN = 3.0  # of n requests without a fault: 95 % sure that less than 3 ÷ n are faulty
LOSSLESS, NUMERIC, OPEN = "LOSSLESS as far as seen", "NUMERIC", "NOT REFUTED"
MEANING = {
    LOSSLESS: "greedy answers are equal, and sampled ones follow the baseline's distribution",
    NUMERIC: "answers differ only where rounding decides between the best tokens",
    LOSSY: "the text is not that of the target",
    OPEN: "no difference that proves a fault was found, and no log-probabilities could show a small one",
}
UNSAMPLED = "greedy answers are equal, and no sampled ones were tested"


@dataclass(frozen=True)
class CellSummary:
    """A cell of an audit: what was tried, with how many answered requests and tokens, and its outcome."""

    name: str
    about: str
    requests: int
    tokens: int
    outcome: str


@dataclass(frozen=True)
class Audit:
    """An audit: its arms, floors, cells, findings, and the settings and the machine that it ran with."""

    started: str
    command: str
    arms: Mapping[str, str]
    floors: Floors
    cells: Sequence[CellSummary]
    findings: Sequence[Finding]
    judged: bool  # by log-probabilities
    seconds: float
    settings: Mapping[str, Any]
    deployment: Mapping[str, str]  # what a run of the same servers has as well
    tests: Sequence[Mapping[str, Any]]  # of sampled text
    rate: float  # requests per second
    left: str = ""  # why it ended early
    acceptance: Mapping[str, float] | None = None

    @property
    def faults(self) -> list[Finding]:
        return [one for one in self.findings if one.kind == "fault"]

    @property
    def answer(self) -> str:
        """The answer in the fixed words."""
        if self.faults:
            return LOSSY
        if not self.judged or not self.requests:
            return OPEN
        return NUMERIC if any(one.kind == "numeric" for one in self.findings) else LOSSLESS

    @property
    def unfinished(self) -> bool:
        """Whether it can be continued: by an interrupt or the loss of a server, not by the end of its time."""
        return self.left not in ("", TIMED_OUT)

    @property
    def requests(self) -> int:
        return sum(cell.requests for cell in self.cells)

    @property
    def missed(self) -> float:
        """The share of faulty requests that such an audit misses in 1 of 20 cases."""
        return min(1.0, NONE_SEEN / self.requests) if self.requests else 1.0


def summaries(found: Sequence[Found], findings: Sequence[Finding]) -> list[CellSummary]:
    """One line for every cell; those of one name together."""
    made: dict[str, CellSummary] = {}
    for cell, trials in found:
        able = answered(trials)
        tokens = sum(one.audited.tokens or len(one.audited.ids) for one in able)
        before = made.get(cell.name)
        requests = len(able) + (before.requests if before else 0)
        about = before.about if before else cell.about
        outcome = outcome_of(cell.name, findings)
        outcome = outcome if requests or outcome == "FAULT" else "not tried"
        made[cell.name] = CellSummary(cell.name, about, requests, tokens + (before.tokens if before else 0), outcome)
    return list(made.values())


POWERS = (100, 200, 500, 1000, 2000, 5000)  # requests
SOON = 10  # minutes
SHIFT = "change of the best token's share"


def power(found: Audit) -> list[dict[str, float | None]]:
    """What audits with `--requests` see of faults, by the rate of this one and its test of the best token's share: one
    of `SOON` minutes, and others. The change of that share is found in 95 of 100 cases."""
    own = next((one for one in found.tests if (one["part"], one["test"]) == (NEUTRAL_CELL, BEST)), None)
    curve, tokens = list[dict[str, float | None]](), NEUTRAL[0] * NEUTRAL[1]  # of that cell, in a whole audit
    for many in sorted({*POWERS, round(60 * SOON * found.rate)} if found.rate else ()):
        shift = own["smallest"] * math.sqrt(own["tokens"] / (tokens * share_of(many))) if own else None
        minutes, share = round(many / found.rate / 60, 1), min(1.0, NONE_SEEN / max(many, 1))
        curve.append({"requests": many, "minutes": minutes, "share of faulty requests": share, SHIFT: shift})
    return curve


def outcome_of(cell: str, findings: Sequence[Finding]) -> str:
    """The worst outcome of a cell."""
    kinds = {one.kind for one in findings if one.cell == cell}
    words = {"fault": "FAULT", "draft": "draft", "not tried": "not tried", "report": "report", "numeric": "numeric"}
    return next((word for kind, word in words.items() if kind in kinds), "ok")


# --- documents --------------------------------------------------------------------------------------------------------


def audit_json(found: Audit) -> str:
    """The audit as ASCII JSON, with its answer."""
    derived = {"answer": found.answer, "unfinished": found.unfinished, "requests": found.requests,
               "missed_share": found.missed, "headline": headline(found), "sentences": sentences(found),
               "power": power(found)}  # fmt: skip
    return json.dumps({"schema": AUDIT, **derived, **worded(asdict(found))}, indent=1, allow_nan=False) + "\n"


def headline(found: Audit) -> list[str]:
    """The answer in a few sentences."""
    answer = found.answer
    lines = [f"{answer}: {UNSAMPLED if answer == LOSSLESS and not found.tests else MEANING[answer]}"]
    if answer != LOSSY:
        lines.append(f"{found.requests} requests were compared: a fault in {found.missed:.2%} of requests or more "
                     "would have been seen with 95 % certainty")  # fmt: skip
    if found.left:
        lines.append(f"{'unfinished, ' * found.unfinished}the audit ended early: {found.left}")
    if known := found.acceptance:
        length = f", acceptance length {known['acceptance_length']:.2f}" if "acceptance_length" in known else ""
        share, drafted = known["accepted_per_drafted"], known["drafted"]
        lines.append(f"drafts: {share:.0%} of {drafted:,.0f} drafted tokens were accepted{length}")
    if found.judged:
        lines.append(f"rounding moves the baseline's own log-probabilities by up to {found.floors.nats:.2g} nats "
                     f"({found.floors.positions} positions)")  # fmt: skip
    for one in (one for one in power(found) if one["requests"] == round(60 * SOON * found.rate)):
        shift = f", and a change of {one[SHIFT]:.2g} in the best token's share at temperature 1" if one[SHIFT] else ""
        lines.append(f"{SOON} minutes here compare {one['requests']} requests (--requests {one['requests']}), which "
                     f"show a fault in {one['share of faulty requests']:.2%} of them{shift}")  # fmt: skip
    if (floors := found.floors).repeated or floors.loaded:
        lines.append(f"requested again, the baseline changed {floors.again} of {floors.repeated} answers alone and "
                     f"{floors.load} of {floors.loaded} under load")  # fmt: skip
    return lines


ORDER = ("fault", "draft", "report", "numeric", "not tried")
SHOWN = 3  # cells of one finding that are named


def sentences(found: Audit) -> list[str]:
    """One sentence for each kind of finding, faults first: where it shows, its worst case, and its likely cause."""
    groups: dict[tuple[str, str, str, str], list[Finding]] = {}
    for one in found.findings:
        own = one.detail if one.kind == "not tried" else ""
        groups.setdefault((one.kind, one.what, one.cause, own), []).append(one)
    return [sentence(kind, some) for kind in ORDER for (own, *_), some in groups.items() if own == kind]


def sentence(kind: str, some: Sequence[Finding]) -> str:
    """Findings of one kind in several cells."""
    worst = max(some, key=lambda one: one.faulty / max(one.of, 1))
    names = [f"{one.cell} ({one.faulty} of {one.of})" if one.faulty else one.cell for one in some[:SHOWN]]
    others = len(some) - SHOWN
    more = f" and {others} other part{'s' * (others > 1)}" if others > 0 else ""
    chance = "" if worst.p is None else " (p < 1e-16)" if worst.p < 1e-16 else f" (p = {worst.p:.1g})"
    cause = f". Likely cause: {worst.cause}" if worst.cause else ""
    word = "FAULT" if kind == "fault" else kind
    return f"{word}: {worst.what} in {', '.join(names)}{more}: {worst.detail}{chance}{cause}"


def table(found: Audit) -> Table:
    """The cells of an audit."""
    lines = [(one.name, one.about, str(one.requests), str(one.tokens), one.outcome) for one in found.cells]
    return Table("What was tried", ("part", "looks for", "requests", "tokens", "outcome"), lines, left=2)


def page(found: Audit) -> str:
    """The audit in Markdown."""
    known = {**found.arms, **found.settings}.items()
    curve, forms = power(found), (",.0f", ".1f", ".2%", ".3f")
    shown = [[formatted(*one) for one in zip(line.values(), forms, strict=True)] for line in curve]
    facts = [[literal(str(name)), literal(str(value))] for name, value in known if value is not None]
    return "\n".join([
        "# Audit of a speculating server", "",
        *(line for text in headline(found) for line in (f"{literal(text[:1].upper() + text[1:])}.", "")),
        *(f"- {literal(line)}" for line in sentences(found)), "",
        table(found).markdown(),
        *(["## What more requests show", "", *markdown_table(tuple(curve[0]), shown, "rrrr"), ""] if curve else []),
        "## What it is of", "", *markdown_table(("", ""), facts, "ll"), "",
        f"Command: `{found.command}`, {found.started}, {found.seconds:.0f} seconds.", "",
    ])  # fmt: skip


def write_reproductions(folder: Path, found: Audit, course: Course) -> None:
    """For each fault the smallest request as two curl lines, and both answers."""
    for number, one in enumerate((one for one in found.faults if one.trial is not None), 1):
        assert one.trial is not None
        lines = [
            f"# {one.cell}: {one.what}: {one.detail}", "# without a draft:", course.baseline.curl(one.trial.ask),
            "# with a draft:", course.audited.curl(one.trial.ask),
            f"# without: {json.dumps(asdict(one.trial.baseline))}", f"# with: {json.dumps(asdict(one.trial.audited))}",
        ]  # fmt: skip
        replace_text(folder / f"fault-{number}.sh", "\n".join(lines) + "\n")
