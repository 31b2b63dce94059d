"""A certificate for readers: what was checked of the pair, and one line per method; on a page, every check.

Knows checks; must not know how they were made. What is not as it should be stands in a sentence of its own.
"""

import math
from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from specbench.results.documents import GREEDY, LEANING, PROOF, RESCORED, SURPRISE, Certificate, Check
from specbench.show import markdown
from specbench.show.cell_text import NOTHING, one_line
from specbench.show.fitting import Fitted
from specbench.wording import literal

COLUMNS = {  # a heading for every check of a method
    PROOF: "proof", GREEDY: "greedy", RESCORED: "re-\nscored", SURPRISE: "z sur-\nprise", LEANING: "z lean-\ning",
}  # fmt: skip
LINES = ("check", "method", "outcome", "found", "limit", "detail")


def tables(found: Certificate) -> list[Fitted]:
    """The checks of the pair, and those of the methods; each fits 80 columns."""
    own = [check for check in found.checks if not check.method or check.name not in COLUMNS]
    names = list(dict.fromkeys(check.method for check in found.checks if check.method))
    shown = {(check.method, check.name): check for check in found.checks}
    columns = [name for name in COLUMNS if any((method, name) in shown for method in names)]
    lines = [
        [name, *(short(shown.get((name, column))) for column in columns), outcome_of(found, name)] for name in names
    ]
    header = ["method", *(COLUMNS[name] for name in columns), "outcome"]
    made = [table(["check", "found", "limit", "outcome"], [control(check) for check in own])] if own else []
    return [*made, *([table(header, lines)] if names else [])]


def table(header: Sequence[str], lines: Sequence[Sequence[str]]) -> Fitted:
    made = Table()
    for number, name in enumerate(header):
        made.add_column(Text(name), justify="right" if 0 < number < len(header) - 1 else "left", overflow="fold")
    for line in lines:
        made.add_row(*(Text(one_line(cell)) for cell in line))
    return Fitted(made)


def control(check: Check) -> list[str]:
    name = f"{check.name} ({check.method})" if check.method else check.name
    return [name, number(check.found), number(check.limit), check.outcome]


def short(check: Check | None) -> str:
    """A check as one cell: of a comparison how it came out, else its number."""
    if check is None or check.outcome == "not checked":
        return NOTHING
    if check.name == GREEDY:
        return "equal" if check.found is None and check.outcome != "error" else check.outcome
    if check.found is None:
        return check.outcome
    return f"{check.found:.2f}" if check.name in (SURPRISE, LEANING) else number(check.found)


def outcome_of(found: Certificate, method: str) -> str:
    """The worst of a method's outcomes."""
    order = ("FAILED", "error", "lossy", "numeric", "ok", "not checked")
    return min((check.outcome for check in found.checks if check.method == method), key=order.index)


def number(value: float | None) -> str:
    """Small errors by their magnitude, z and counts as they are read."""
    if value is None:
        return NOTHING
    if not math.isfinite(value) or value == int(value):
        return f"{value:g}"
    return f"{value:.2f}" if 0.05 <= abs(value) < 1000 else f"{value:.1e}"


def notes(found: Certificate) -> list[str]:
    """What is not as it should be, or could not be looked at, one sentence each; equal reasons once."""
    reasons: dict[str, list[str]] = {}
    for check in found.checks:
        if check.outcome == "not checked":
            reasons.setdefault(check.detail, []).append(check.method)
    said = [f"not checked: {', '.join(dict.fromkeys(names))}: {reason}" for reason, names in reasons.items()]
    broken = [check for check in found.checks if check.outcome in ("FAILED", "error")]
    return [*said, *(f"{check.outcome}: {sentence(check)}" for check in broken)]


def sentence(check: Check) -> str:
    """A check with everything it says."""
    numbers = f": {number(check.found)}, limit {number(check.limit)}" if check.found is not None else ""
    return f"{check.name}{f' of {check.method}' if check.method else ''}{numbers} ({check.detail})"


def records(found: Certificate) -> list[dict[str, Any]]:
    """One row per check, for programs."""
    return [{"check": c.name, **{name: getattr(c, name) for name in LINES[1:]}} for c in found.checks]


def page(found: Certificate) -> str:
    """The certificate in Markdown: what it is of, and every check with its statistic and threshold."""
    lines = [[literal(word(row[name])) for name in LINES] for row in records(found)]
    facts = {**found.pair, **found.settings, **found.environment}
    known = [[literal(str(name)), literal(str(value))] for name, value in facts.items() if value is not None]
    return "\n".join([
        "# Certificate of losslessness", "",
        summary(found), "",
        *markdown.paragraphs([literal(note) for note in notes(found)]),
        *markdown.table(LINES, lines, "lllrrl"), "",
        "## What it is of", "",
        *markdown.table(("", ""), known, "ll"), "",
        f"Command: `{found.command}`, {found.started}.", "",
    ])  # fmt: skip


def word(value: object) -> str:
    return number(value) if isinstance(value, float | int) else str(value or "")


def summary(found: Certificate) -> str:
    """The answer in one sentence."""
    counts = {name: sum(check.outcome == name for check in found.checks) for name in ("ok", "numeric", "lossy")}
    fine = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    if found.failed:
        return f"NOT LOSSLESS: {len(found.failed)} of {len(found.checks)} checks failed ({fine or 'none passed'})"
    return f"{'INCOMPLETE' if found.broken else 'LOSSLESS'} as far as was checked: {fine}"
