"""The questions that a run answers, as data for its report: one pair on one data set under one distribution each.

Knows cells, verdicts and figures; must not know HTML. The cells of a question differ in method, schedule and K.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specbench.judge.advice import QUESTION
from specbench.judge.settling import with_command
from specbench.judge.verdict import Recommendation, recommend
from specbench.results.cells import MEASURED, Cell
from specbench.show.category_table import several
from specbench.show.cell_text import lookahead, short_dataset
from specbench.show.grouping import LOOKAHEAD
from specbench.show.headings import SETTINGS, caveats, shared_settings
from specbench.show.report import (
    plots_category,
    plots_methods,
    plots_positions,
    plots_prompts,
    plots_reliability,
    plots_round,
    plots_sweep,
    plots_why,
)
from specbench.show.report.plots import Picture, float_in
from specbench.show.report.ranked import Ranked, ranked
from specbench.spec import BASELINE, RunSpec
from specbench.wording import Row, grouped, text_in


@dataclass(frozen=True)
class Question:
    """The cells that answer one question, what they say, and their figures.

    The waterfall and the figures of prompts are of `best`, the cell that the verdict names; `ranked` are many cells as
    lines. `categories` are the lines by category of every cell that has several, by the cell's name.
    """

    heading: str
    settings: str
    verdict: Recommendation | None
    rows: Sequence[Row]
    ranked: Ranked | None
    best: Row | None
    pictures: Sequence[Picture]
    categories: Sequence[tuple[str, Sequence[Row]]]


def questions(cells: Sequence[Cell], rows: Sequence[Row], command: str) -> list[Question]:
    """The cells by question, each with its verdict; `command` made the run."""
    groups = grouped(zip(cells, rows, strict=True), lambda pair: key(pair[1]))
    asked = dict.fromkeys(key(r) for r in rows if text_in(r, "method") != BASELINE)
    verdicts = dict(zip(asked, recommend(with_command(rows, command)), strict=True))
    apart = [name for name in QUESTION if name in SETTINGS and varies(rows, name)]  # besides the data set
    return [question([c for c, _ in g], [r for _, r in g], verdicts.get(key(g[0][1])), apart) for g in groups]


def key(row: Row) -> tuple[str, ...]:
    return tuple(text_in(row, name) for name in QUESTION)


def question(
    cells: Sequence[Cell], rows: Sequence[Row], found: Recommendation | None, apart: Sequence[str]
) -> Question:
    """One question; `apart` are the settings that distinguish it from the others on the same data set."""
    varying = [s for s in SETTINGS if varies(rows, s)]
    best = best_of(cells, rows, found)
    return Question(
        heading=" · ".join([short_dataset(rows[0]["dataset"]), *(setting(rows[0], name) for name in apart)]),
        settings=" · ".join([shared_settings(rows, varying), *caveats(rows)]),
        verdict=found,
        rows=rows,
        ranked=ranked(rows),
        best=best[1] if best else None,
        pictures=list(pictures(cells, rows, best)),
        categories=by_category(cells, rows),
    )


def best_of(cells: Sequence[Cell], rows: Sequence[Row], found: Recommendation | None) -> tuple[Cell, Row] | None:
    """The cell that the verdict names; without a verdict, the fastest."""
    pairs = [(c, r) for c, r in zip(cells, rows, strict=True) if math.isfinite(float_in(r, "speedup"))]
    chosen = [p for p in pairs if found and named(p[0].spec) == named(found)]
    return max(chosen or pairs, key=lambda p: p[1]["speedup"], default=None)


def named(found: Recommendation | RunSpec) -> tuple[str, str, float | None, int | None]:
    """What distinguishes the cells of a question."""
    return found.method, found.schedule, found.confidence, found.k


def pictures(cells: Sequence[Cell], rows: Sequence[Row], best: tuple[Cell, Row] | None) -> Iterator[Picture]:
    """The figures of a question, those that its cells have the numbers for."""
    lines = plots_sweep.by_method(rows)
    found = [
        plots_methods.ranking(rows),
        plots_sweep.speedup_against_k(lines),
        plots_sweep.time_against_k(lines),
        plots_sweep.acceptance_against_k(lines),
        plots_round.round_against_k(lines),
        plots_round.phases(lines),
        plots_positions.acceptance_by_position(lines, tested(cells)),
        plots_reliability.reliability(curves(cells, rows)),
        *plots_methods.quantities(rows),
    ]
    if best is not None:
        cell, row = best
        categories = fastest_of_methods(cells, rows)
        found += [
            plots_why.waterfall(row),
            *(plots_category.by_category(categories, column) for column in plots_category.SHEETS),
            plots_prompts.over_time(cell.sample_rows()),
        ]
    yield from (picture for picture in found if picture is not None)


def curves(cells: Sequence[Cell], rows: Sequence[Row]) -> list[plots_reliability.Curve]:
    """What the schedules of the cells believed, the fastest cell first; none of those that believe nothing."""
    ordered = sorted(zip(rows, cells, strict=True), key=lambda one: -float_in(one[0], "speedup"))
    return [
        plots_reliability.Curve(
            label(row, rows), cell.spec.key, row["belief_ece"], row["belief_ece_if_exact"], cell.belief_rows()
        )
        for row, cell in ordered
        if row["belief_tests"]
    ]


def tested(cells: Sequence[Cell]) -> list[int]:
    """How often each position of a draft was tested, over all cells."""
    counts = [r.tested for c in cells if c.status in MEASURED for s in c.samples for r in s.method.rounds]
    return [sum(count >= i for count in counts) for i in range(1, max(counts, default=0) + 1)]


def by_category(cells: Sequence[Cell], rows: Sequence[Row]) -> list[tuple[str, Sequence[Row]]]:
    """The cells with several categories: what distinguishes each among them, and its lines by category.

    A category with one prompt has no line.
    """
    found = [(label(row, rows), several(cell.category_rows())) for cell, row in zip(cells, rows, strict=True)]
    return [(name, lines) for name, lines in found if lines]


def fastest_of_methods(cells: Sequence[Cell], rows: Sequence[Row]) -> dict[str, Sequence[Row]]:
    """The lines by category of the fastest cell of every method, the fastest method first."""
    measured = [pair for pair in zip(cells, rows, strict=True) if math.isfinite(float_in(pair[1], "speedup"))]
    ordered = sorted(measured, key=lambda pair: -float_in(pair[1], "speedup"))
    best = [group[0] for group in grouped(ordered, lambda pair: text_in(pair[1], "method"))]
    return {label(row, rows): cell.category_rows() for cell, row in best}


def setting(row: Row, name: str) -> str:
    """A setting with its value."""
    return f"{'T' if name == 'temperature' else name.replace('_', ' ')} {text_in(row, name) or '–'}"


def varies(rows: Sequence[Row], setting: str) -> bool:
    """Whether rows differ in a setting; a cell that failed early has nothing resolved, which does not count."""
    found = {text_in(row, setting) for row in rows}
    return len(found - {""} if setting.endswith("_resolved") else found) > 1


def label(row: Row, rows: Sequence[Row]) -> str:
    """What distinguishes the cell of a row among `rows`: its lookahead, and the settings that vary."""
    names = {
        "dataset": short_dataset(text_in(row, "dataset")),
        "method": text_in(row, "method"),
        "target": text_in(row, "target"),
    }
    first = [name for setting, name in names.items() if varies(rows, setting)]
    others = [s for s in SETTINGS if s not in (*LOOKAHEAD, *names) and varies(rows, s)]
    return " · ".join([*first, f"K {lookahead(row)}", *(setting(row, name) for name in others)])
