"""A comparison as terminal table, Markdown for a job summary, JSON, and formats of other tools.

Those are JUnit XML for test reports and JSON for github-action-benchmark. Names come from result files and
are untrusted: terminal commands, markup and links in them are neutralised.
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any
from xml.etree import ElementTree

from rich.console import Group
from rich.text import Text

from specbench.judge.compare import Comparison, Finding
from specbench.judge.matching import Record, matched
from specbench.show.table import framed
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
    change = "" if row.change is None else percent(row.change)
    return " ".join(filter(None, (clean(row.cell, 300), row.metric, change, clean(row.detail, 400))))


def four_digits(value: float | None) -> str:
    """Four digits, or a dash."""
    return "–" if value is None or math.isnan(value) else f"{value:.4g}"


def percent(share: float | None) -> str:
    """A share as signed percent with one decimal, or a dash."""
    return "–" if share is None or math.isnan(share) else f"{100 * share:+.1f} %"


def summary(result: Comparison) -> str:
    """One line: the number of rows by outcome."""
    counts = {row.outcome: 0 for row in result.findings}
    for row in result.findings:
        counts[row.outcome] += 1
    return f"{len(result.findings)} compared: " + ", ".join(f"{n} {outcome}" for outcome, n in counts.items())


def table(result: Comparison, confidence: float) -> Group:
    texts = [number for number, name in enumerate(HEADER) if name in {"cell", "metric", "outcome"}]
    styles = [STYLES.get(row.outcome, "dim") for row in result.findings]
    drawn = framed(HEADER, list(map(cells_of, result.findings)), texts, texts, styles, keys=2)
    lines = [*result.missing, LEGEND.format(confidence=100 * confidence), summary(result)]
    return Group(drawn, *(Text(clean(line, 2000)) for line in lines))


def markdown(result: Comparison, confidence: float) -> str:
    """For a job summary: every text from a file is in a code span, which disables markup and links."""
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
    """A code span that no text can end, nor the cell of a table."""
    return "`" + clean(text, 400).replace("`", "'").replace("|", "¦").replace("\\", "/") + "`"


def as_json(result: Comparison) -> str:
    """Every row with all its fields; non-finite numbers are null."""
    rows = [{key: _finite(value) for key, value in asdict(row).items()} for row in result.findings]
    content = {"exit_code": result.code, "summary": summary(result), "rows": rows, "missing": list(result.missing)}
    return json.dumps(content, indent=2) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# --- for other tools --------------------------------------------------------------------------------------------------

HISTORY = (("speedup", "x"), ("tokens_per_second", "tokens/s"), ("alpha", "share"))


def junit(result: Comparison) -> str:
    """One test case per row: a failure for a regression, skipped if nothing could be judged."""
    count = {"failures": len(result.having("REGRESSION")), "skipped": len(result.unjudged), "errors": 0}
    totals = {"tests": str(len(result.findings)), **{name: str(n) for name, n in count.items()}}
    root = ElementTree.Element("testsuites", totals)
    suite = ElementTree.SubElement(root, "testsuite", {"name": "specbench compare", **totals})
    for row in result.findings:
        cell, metric, *_, outcome = cells_of(row)  # clean: XML 1.0 forbids only unprintable characters
        case = ElementTree.SubElement(suite, "testcase", classname=f"specbench.{row.tier}", name=f"{cell} {metric}")
        if row.outcome == "REGRESSION":
            ElementTree.SubElement(case, "failure", type="regression", message=outcome).text = _told(cells_of(row))
        elif row in result.unjudged:
            ElementTree.SubElement(case, "skipped", message=outcome)
        else:
            ElementTree.SubElement(case, "system-out").text = _told(cells_of(row))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _told(cells: Sequence[str]) -> str:
    _, _, base, new, change, bounds, visible, outcome = cells
    return f"{outcome}; base {base}, new {new}, change {change} ({bounds}), smallest visible change {visible}"


def history(run: Sequence[Record]) -> str:
    """The numbers of one run as customBiggerIsBetter of github-action-benchmark, which renders names as markup."""
    points = []
    for match in matched([run], [run])[0]:
        record = match.pairs[0][1]
        for metric, unit in HISTORY if record.measured else ():
            value = record.number(metric)
            if math.isfinite(value):
                point = {"name": f"{_harmless(match.cell)} {metric}", "unit": unit, "value": value}
                low, high = (record.number(metric + end) for end in ("_low", "_high"))
                points.append(
                    {
                        **point,
                        **({"range": f"± {(high - low) / 2:.3g}"} if math.isfinite(high - low) else {}),
                        "extra": f"prompts {_harmless(record['prompts'])}",
                    }
                )
    return json.dumps(points, indent=2) + "\n"


def _harmless(text: str) -> str:
    return re.sub(r"[^\w .,·:+=/-]|(?<=\w)://|(?<![^\W_])www\.", "_", clean(text, 200))
