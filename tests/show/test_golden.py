"""What every kind of table and figure looks like, against the files in golden/.

`REMAKE_GOLDEN=1 pytest tests/show/test_golden.py` writes them anew; then read their diff.
"""

import difflib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from specbench.results.cells import Cell
from specbench.show.engines import by_load
from specbench.show.report import figures_by_k, figures_methods, figures_why
from specbench.show.report.figure import Picture
from specbench.show.report.questions import questions
from specbench.show.text import by_batch, by_context
from tests.show import scenes

FOLDER = Path(__file__).parent / "golden"
PLAIN = ("data sets", "batches", "engines", "servers")  # also without --explain
DRAWN = {  # runs, and which of their figures are drawn
    "lookaheads": ("speedup-against-k", "time-against-k", "acceptance-against-k", "round-against-k", "waterfall",
                   "acceptance-by-position", "over-time"),
    "methods": ("by-speedup", "throughput", "latency-per-token", "memory-host", "phases", "acceptance-by-position",
                "intervals"),
    "methods over K": ("speedup-against-k", "round-against-k"),
    "batches": ("throughput-against-batch", "speedup-against-batch"),
    "contexts": ("speedup-by-context", "speedup-against-context"),
    "servers": ("per-user-against-all",),
    "schedules": ("reliability",),
    "methods by category": ("by-category", "tokens-by-category"),
}  # fmt: skip


def check(name: str, text: str) -> None:
    """The text is that of the golden file, or becomes it."""
    file = FOLDER / f"{name.replace(' ', '-')}.txt"
    if os.environ.get("REMAKE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    golden = file.read_text(encoding="utf-8")
    assert text == golden, "\n".join(difflib.unified_diff(golden.split("\n"), text.split("\n"), "golden", "now"))


def sections(texts: Mapping[str, str]) -> str:
    """Texts below each other, without the blanks that a screen has at the ends of lines."""
    parts = [f"=== {name}\n{text}" for name, text in texts.items()]
    return "\n".join(line.rstrip() for line in "\n".join(parts).split("\n"))


@pytest.mark.parametrize("name", [name for name in scenes.RUNS if name != "methods over K"])
def test_a_run_is_shown_as_before(name: str) -> None:
    cells = scenes.RUNS[name]()
    texts = {
        "on 80 columns": scenes.run_tables(cells, 80, terminal=True, explain=True),
        "markdown": scenes.run_text(cells, "md", explain=True),
    }
    if name in PLAIN:
        texts["in a pipe"] = scenes.run_tables(cells, 120, terminal=False, explain=False)
        texts["short markdown"] = scenes.run_text(cells, "md", explain=False)
    check(f"run {name}", sections(texts))


@pytest.mark.parametrize("name", scenes.DOCUMENTS)
def test_a_document_is_shown_as_before(name: str) -> None:
    what, markdown = scenes.DOCUMENTS[name]()
    check(name, sections({"on 80 columns": scenes.drawn(what, 80), "markdown": markdown}))


@pytest.mark.parametrize("name", DRAWN)
def test_figures_show_what_they_showed(name: str) -> None:
    found = {picture.name: picture for picture in reversed(pictures(scenes.RUNS[name]()))}
    check(f"figures {name}", "\n".join(described(found[one]) for one in DRAWN[name]))


def test_the_figures_of_a_calibration_show_what_they_showed() -> None:
    rows = [point for context in (128, 512) for point in scenes.level(context).target]
    found = [figures_why.cost_against_width([vars(row) for row in rows], "target")]
    check("figures calibration", "\n".join(described(picture) for picture in found if picture))


def pictures(cells: Sequence[Cell]) -> list[Picture]:
    """All figures of a run."""
    rows = [one.row() for one in cells]
    found = [picture for question in questions(cells, rows, "") for picture in question.pictures]
    found += [picture for some in by_batch(rows) for picture in figures_by_k.over_batches(some)]
    found += [picture for some in by_context(rows) for picture in figures_by_k.over_contexts(some)]
    found += [one for some in by_load(rows) if (one := figures_methods.per_user_against_all(some))]
    whole = figures_methods.intervals([("run", row["method"], row) for row in rows])
    return [*found, *([whole] if whole else [])]


def described(picture: Picture) -> str:
    """Every number and word of a figure."""
    lines = [f"=== {picture.name}: {picture.title}", picture.caption]
    for axes in picture.figure.axes:
        lines += [f"--- {axes.get_xlabel()} | {axes.get_ylabel()} | {axes.get_title(loc='left')}", *parts_of(axes)]
    lines += [f"legend: {text.get_text()}" for legend in picture.figure.legends for text in legend.get_texts()]
    return "\n".join([*lines, *picture.tips.values(), f"parts owned by cells: {len(picture.owners)}"]) + "\n"


def parts_of(axes: Axes) -> list[str]:
    """Lines, bars and tiles, texts and the ticks of an axis."""
    found = []
    for line in (line for line in axes.get_lines() if not str(line.get_label()).startswith("_child")):
        points = " ".join(f"({number(x)}, {number(y)})" for x, y in zip(*line.get_data(), strict=True))
        found.append(f"{line.get_label()} {line.get_color()} {line.get_linestyle()} {line.get_marker()}: {points}")
    bars = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    found += ["bar " + " ".join(map(number, bar.get_bbox().extents)) + f" {bar.get_hatch() or ''}" for bar in bars]
    for lines in axes.collections:
        segments = [one for one in lines.get_segments() if len(one)]  # type: ignore[attr-defined]
        ends = [" to ".join(f"{number(x)}, {number(y)}" for x, y in one) for one in segments]
        found.append(f"intervals ({'), ('.join(ends)})")
    ticks = [label.get_text().replace("\n", " ") for label in (*axes.get_xticklabels(), *axes.get_yticklabels())]
    return [*found, "texts: " + ", ".join(text.get_text() for text in axes.texts), f"ticks: {', '.join(ticks)}"]


def number(value: object) -> str:
    """Four digits; a place given in words as it is."""
    return f"{float(value):.4g}" if isinstance(value, int | float | np.number) else str(value)
