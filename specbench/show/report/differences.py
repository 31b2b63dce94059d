"""Two runs side by side: differing conditions, numbers, and the tests of `specbench compare`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specbench.errors import UsageError
from specbench.judge.compare import Comparison, Finding, Policy, compare_runs
from specbench.judge.matching import COMPARED, FURTHER, Record, matched
from specbench.results.cells import MEASURED, Cell
from specbench.results.machine import PEAKS
from specbench.results.named_runs import as_text
from specbench.show.compare import HEADER, cells_of, percent
from specbench.show.report.figure import INK, Picture, Sheet, float_in, in_view, interval_tip, look, short, spread
from specbench.show.report.figures_methods import GB
from specbench.show.tables import by_speedup
from specbench.show.text import cell_text, lookahead, one_line, short_dataset
from specbench.spec import BASELINE
from specbench.wording import Row, clean, text_in

ALIKE = ("temperature", "batch", "context")  # named with data set, method and lookahead
NUMBERS = (
    ("speedup", "speedup"), ("alpha", "alpha"), ("c", "c"), ("v", "v"), ("tokens/s", "tokens_per_second"),
    ("tokens/s baseline", "baseline_tokens_per_second"), ("ms / token", "per_token_median_ms"),
    ("first token ms", "ttft_median_ms"), ("GB of device", "peak_memory_device"),
    ("GB of process", "peak_memory_host"),
)  # fmt: skip
UNTESTED = (
    "The two runs measured different things, so their difference is not tested: cells with the same data set, method "
    "and lookahead are shown side by side, and what else was different is listed above."
)


RowPair = tuple[Row, Row]


@dataclass(frozen=True)
class Side:
    """One of the runs: its name, its facts, and its cells with their rows."""

    name: str
    facts: Mapping[str, str]
    cells: Sequence[Cell]
    rows: Sequence[Row]

    def records(self) -> list[Record]:
        """The cells from the journal, as `specbench compare` reads them."""
        rows = as_text(self.rows)
        return [Record(Path(self.name), row, cell.sample_rows()) for row, cell in zip(rows, self.cells, strict=True)]


@dataclass(frozen=True)
class Difference:
    """Two runs: differing conditions, numbers by cell, findings; untested: the reason for no tests."""

    names: Sequence[str]
    apart: Sequence[tuple[str, str, str]]
    header: Sequence[str]
    lines: Sequence[Sequence[str]]
    findings: Sequence[Sequence[str]]
    missing: Sequence[str]
    untested: str
    picture: Picture | None
    tests: Sequence[str] = HEADER


def difference(one: Side, other: Side) -> Difference:
    names = [one.name, other.name] if one.name != other.name else [f"{one.name} (first)", f"{other.name} (second)"]
    before, after = one.records(), other.records()
    try:
        pairs, missing = matched([before], [after])
    except UsageError:  # a run has a question twice, distinguished only by names
        pairs, missing = [], []
    first, second = ({text_in(row, "cell"): row for row in side.rows} for side in (one, other))
    both = [(m.cell, (first[a["cell"]], second[b["cell"]])) for m in pairs for a, b in m.pairs[:1]]
    tested = compare_runs([before], [after], Policy()) if pairs else Comparison((), ())
    if not pairs:
        both, missing = alike(one.rows, other.rows)
    changes = {(found.cell, found.metric): found for found in tested.findings}
    lines = [line for name, pair in both for line in lines_of(name, pair, changes)]
    return Difference(
        names=names,
        apart=apart(one, other),
        header=("cell", "number", *names, "change", "tested"),
        lines=lines,
        findings=list(map(cells_of, tested.findings)),
        missing=[clean(text, 400) for text in missing],
        untested="" if pairs else UNTESTED,
        picture=two_runs(names, both),
    )


def alike(before: Sequence[Row], after: Sequence[Row]) -> tuple[list[tuple[str, RowPair]], list[str]]:
    """The cells with equal common names, if unique in each run; and the remaining ones."""
    keyed = [by_name(rows) for rows in (before, after)]
    both = [(name, (row, keyed[1][name])) for name, row in keyed[0].items() if name in keyed[1]]
    left = [
        f"{name}: only in {where}"
        for here, there, where in ((*keyed, "BASE"), (*keyed[::-1], "NEW"))
        for name in here
        if name not in there
    ]
    return both, left


def by_name(rows: Sequence[Row]) -> dict[str, Row]:
    """The cells by name, fastest first; ambiguous names are left out."""
    found: dict[str, list[Row]] = {}
    for row in by_speedup(rows):
        parts = [short_dataset(text_in(row, "dataset")), text_in(row, "method"), f"K {lookahead(row)}"]
        parts += [f"{name} {text_in(row, name)}" for name in ALIKE if text_in(row, name)]
        found.setdefault(one_line(" · ".join(parts)), []).append(row)
    return {name: some[0] for name, some in found.items() if len(some) == 1}


def apart(one: Side, other: Side) -> list[tuple[str, str, str]]:
    """Differing conditions: where and when the runs were made, and the settings that all cells of each share."""
    facts = [(name, one.facts.get(name, "–"), other.facts.get(name, "–")) for name in {**one.facts, **other.facts}]
    shared = [(name, *(shared_value(side.rows, name) for side in (one, other))) for name in (*COMPARED, *FURTHER)]
    return [(name.replace("_", " "), a or "–", b or "–") for name, a, b in (*facts, *shared) if a != b]


def shared_value(rows: Sequence[Row], name: str) -> str:
    """All values of a setting in a run."""
    values = dict.fromkeys(text_in(row, name) for row in rows if text_in(row, "method") != BASELINE)
    return clean(", ".join(values), 200)


def lines_of(name: str, pair: RowPair, changes: Mapping[tuple[str, str], Finding]) -> list[list[str]]:
    """Every number of one cell in both runs, with its change; the status if it has none."""
    if any(text_in(row, "status") not in MEASURED for row in pair):
        return [[name, "status", *(text_in(row, "status") for row in pair), "", ""]]
    found = []
    for label, column in NUMBERS:
        before, after = (float_in(row, column) for row in pair)
        texts = [cell_text(row, column) for row in pair]
        if column in PEAKS:
            texts = [f"{value / GB:.2f}" for value in (before, after)]
        if before == before and after == after:
            change = percent(after / before - 1) if before else "–"
            found.append([name, label, *texts, change, outcome_of(changes.get((name, column)))])
    return found


def outcome_of(finding: Finding | None) -> str:
    """The test result of a change."""
    if finding is None:
        return ""
    bounds = "" if finding.low is None else f" ({percent(finding.low)} … {percent(finding.high)})"
    return clean(f"{finding.outcome}{bounds}", 200)


# --- figure -----------------------------------------------------------------------------------------------------------
# The speedup of every cell in both runs, one below the other.

MOST_PAIRS = 40  # maximum number of cells
OFFSETS = (-0.16, 0.16)
SHEET = Sheet(
    "two-runs",
    "Speedup in both runs",
    "Measured speedup of every cell that both runs have, with its 95 % interval over prompts. Two intervals that "
    "overlap may still differ: the table tests the difference.",
    "speedup over the baseline",
)


def two_runs(names: Sequence[str], cells: Sequence[tuple[str, RowPair]]) -> Picture | None:
    """The cells as (name, rows of both runs); None if no cell has a speedup in both."""
    shown = [one for one in cells if all(math.isfinite(float_in(row, "speedup")) for row in one[1])][:MOST_PAIRS]
    if not shown:
        return None
    with replace(SHEET, height=1.6 + 0.34 * len(shown)).drawing() as panel:
        panel.axes.axvline(1, color=INK, linewidth=1)
        for place, (name, offset) in enumerate(zip(names, OFFSETS, strict=True)):
            rows, own = [pair[place] for _, pair in shown], look(place)
            heights = [at + offset for at in range(len(shown))]
            x = panel.across(rows, heights, color=own["color"], elinewidth=1.4, capsize=2.5)
            panel.axes.plot([], [], linestyle="none", label=short(name, 60), **own)
            tips = [f"{cell}, {name}: {interval_tip(pair[place])}" for cell, pair in shown]
            panel.points(x, heights, tips, **own)
        panel.axes.set_yticks(range(len(shown)), [short(cell) for cell, _ in shown])
        panel.axes.set_ylim(len(shown) - 0.5, -0.5)
        panel.axes.set_xlim(spread([v for _, pair in shown for row in pair for v in in_view(row)], 1.0))
        panel.cut_ends(
            (at + off, row) for at, (_, pair) in enumerate(shown) for off, row in zip(OFFSETS, pair, strict=True)
        )
        panel.axes.grid(visible=False, axis="y")
        panel.legend(1)
    return panel.picture
