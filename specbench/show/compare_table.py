"""How a comparison looks: the rich table of a terminal, Markdown for a job summary, JSON.

Knows rows and verdicts; must not know how they were reached. Names come from files of results and are hostile: no
terminal command, no markup and no link of theirs gets through.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from specbench.judge.compare import Comparison, Finding
from specbench.show.fitting import Fitted
from specbench.wording import clean

HEADER = ("cell", "metric", "base", "new", "change", "bounds", "visible", "outcome")
STYLES = {"REGRESSION": "bold red", "better": "green", "inconclusive": "yellow", "ok": ""}
LEGEND = (
    "bounds: one-sided, at {confidence:g} % each · visible: the smallest worsening that would have been called a "
    "regression 19 times in 20 (noise between prompts only)"
)


def cells_of(row: Finding) -> tuple[str, ...]:
    """A row as text, in the order of HEADER."""
    return (
        clean(row.cell, 300),
        row.metric,
        four_digits(row.base),
        " / ".join(map(four_digits, row.new)) or "–",
        percent(row.change),
        "–" if row.low is None else f"{percent(row.low)} … {percent(row.high)}",
        percent(row.smallest).lstrip("+-"),
        row.outcome + (f": {clean(row.detail, 400)}" if row.detail else ""),
    )


def sentence_of(row: Finding) -> str:
    """A row as part of a sentence."""
    change = "" if row.change is None else percent(row.change)
    return " ".join(filter(None, (clean(row.cell, 300), row.metric, change, clean(row.detail, 400))))


def four_digits(value: float | None) -> str:
    """Four digits, or a dash."""
    return "–" if value is None or math.isnan(value) else f"{value:.4g}"


def percent(share: float | None) -> str:
    """A share as signed percent with one decimal, or a dash."""
    return "–" if share is None or math.isnan(share) else f"{100 * share:+.1f} %"


def summary(result: Comparison) -> str:
    """One line: how many rows ended how."""
    counts = {row.outcome: 0 for row in result.findings}
    for row in result.findings:
        counts[row.outcome] += 1
    return f"{len(result.findings)} compared: " + ", ".join(f"{n} {outcome}" for outcome, n in counts.items())


def table(result: Comparison, confidence: float) -> Group:
    """For the terminal; `confidence` as a share."""
    drawn = Table()
    for name in HEADER:
        text = name in {"cell", "metric", "outcome"}
        drawn.add_column(name, justify="left" if text else "right", overflow="fold" if text else "ellipsis")
    for row in result.findings:
        drawn.add_row(*map(Text, cells_of(row)), style=STYLES.get(row.outcome, "dim"))
    lines = [*result.missing, LEGEND.format(confidence=100 * confidence), summary(result)]
    return Group(Fitted(drawn, keys=2), *(Text(clean(line, 2000)) for line in lines))


def markdown(result: Comparison, confidence: float) -> str:
    """For a job summary: every text that comes from a file stands in a code span, where nothing is markup or a link."""
    lines = ["### specbench compare", "", f"**{summary(result)}**", ""]
    lines += ["| " + " | ".join(HEADER) + " |", "|---|---|---:|---:|---:|---:|---:|---|"]
    for row in result.findings:
        cell, *middle, _ = cells_of(row)
        outcome = f"**{row.outcome}**" if row.outcome == "REGRESSION" else row.outcome
        outcome += f": {code(row.detail)}" if row.detail else ""
        lines.append("| " + " | ".join([code(cell), *middle, outcome]) + " |")
    lines += ["", *(f"- {code(line)}" for line in result.missing), "", LEGEND.format(confidence=100 * confidence)]
    return "\n".join(lines) + "\n"


def code(text: str) -> str:
    """A code span that nothing in the text can end, nor the cell of a table."""
    return "`" + clean(text, 400).replace("`", "'").replace("|", "¦").replace("\\", "/") + "`"


def as_json(result: Comparison) -> str:
    """Every row with all its fields; a number that is not finite is null."""
    rows = [{key: _finite(value) for key, value in asdict(row).items()} for row in result.findings]
    content = {"exit_code": result.code, "summary": summary(result), "rows": rows, "missing": list(result.missing)}
    return json.dumps(content, indent=2) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
