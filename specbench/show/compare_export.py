"""A comparison in the formats of other tools: JUnit XML for test reports, JSON for github-action-benchmark.

Knows those formats; must not know how a finding was reached. Names from files of results are hostile.
"""

import json
import math
import re
from collections.abc import Sequence
from xml.etree import ElementTree

from specbench.judge.compare import Comparison
from specbench.judge.matching import Record, matched
from specbench.show.compare_table import cells_of
from specbench.wording import clean

HISTORY = (("speedup", "x"), ("tokens_per_second", "tokens/s"), ("alpha", "share"))


def junit(result: Comparison) -> str:
    """One test case per row: a failure for a regression, skipped where nothing could be judged."""
    count = {"failures": len(result.having("REGRESSION")), "skipped": len(result.unjudged), "errors": 0}
    totals = {"tests": str(len(result.findings)), **{name: str(n) for name, n in count.items()}}
    root = ElementTree.Element("testsuites", totals)
    suite = ElementTree.SubElement(root, "testsuite", {"name": "specbench compare", **totals})
    for row in result.findings:
        cell, metric, *_, outcome = cells_of(row)  # clean: what XML 1.0 forbids is not printable
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
    """The numbers of one run as customBiggerIsBetter of github-action-benchmark, which prints the names as markup."""
    points = []
    for match in matched([run], [run])[0]:
        record = match.pairs[0][1]
        for metric, unit in HISTORY if record.measured else ():
            value = record.number(metric)
            if math.isfinite(value):
                point = {"name": f"{_harmless(match.cell)} {metric}", "unit": unit, "value": value}
                points.append({**point, **_range(record, metric), "extra": f"prompts {_harmless(record['prompts'])}"})
    return json.dumps(points, indent=2) + "\n"


def _range(record: Record, metric: str) -> dict[str, str]:
    low, high = (record.number(metric + end) for end in ("_low", "_high"))
    return {"range": f"± {(high - low) / 2:.3g}"} if math.isfinite(high - low) else {}


def _harmless(text: str) -> str:
    return re.sub(r"[^\w .,·:+=/-]|(?<=\w)://|(?<![^\W_])www\.", "_", clean(text, 200))
