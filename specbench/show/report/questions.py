"""The questions of a run: each is of one pair on one data set under one sampling distribution."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specbench.judge.advice import QUESTION
from specbench.judge.settling import with_command
from specbench.judge.verdict import Recommendation, recommend
from specbench.results.cells import MEASURED, Cell
from specbench.show.details import several
from specbench.show.report import figures_by_k, figures_methods, figures_why
from specbench.show.report.figure import Picture, bounds, float_in, in_view, spread
from specbench.show.tables import LABELS, by_speedup, is_lossy, named, naming
from specbench.show.text import (
    FEW,
    LOOKAHEAD,
    SETTINGS,
    caveats,
    lookahead,
    method_name,
    shared_settings,
    short_dataset,
)
from specbench.spec import BASELINE, RunSpec
from specbench.wording import Row, grouped, text_in

COLUMNS = (
    ("speedup", "speedup"), ("95 % interval", "speedup_interval"), ("predicted", "speedup_predicted"),
    ("calibrated", "speedup_calibrated"), ("tokens / round", "tokens_per_round"), ("alpha", "alpha"), ("c", "c"),
    ("v", "v"), ("tokens/s", "tokens_per_second"), ("ms / token, median", "per_token_median_ms"),
    ("ms / token, 95 %", "per_token_p95_ms"), ("first token ms, median", "ttft_median_ms"),
    ("first token ms, 95 %", "ttft_p95_ms"), ("answer ms, median", "latency_median_ms"),
    ("answer ms, 95 %", "latency_p95_ms"), ("within limits", "slo_share"), ("goodput, requests/s", "goodput"),
    ("prefill ms, median", "prefill_median_ms"),
    ("GB of device", "peak_memory_device"), ("GB of process", "peak_memory_host"), ("lossy by", "law_distance"),
)  # fmt: skip


@dataclass(frozen=True)
class Line:
    """A cell: its row, its name, and the style of its mark. unit: the group it is hidden with."""

    row: Row
    names: Sequence[str]
    unit: str
    lossy: bool
    mark: str


@dataclass(frozen=True)
class Ranked:
    """The cells of a question as lines: labels of the naming columns, and labels and columns of numbers."""

    keys: Sequence[str]
    columns: Sequence[tuple[str, str]]
    lines: Sequence[Line]


@dataclass(frozen=True)
class Question:
    """The cells of one question, their verdict, and their figures.

    The waterfall and the figures of prompts are of `best`, the cell that the verdict names; `ranked` has many
    cells as lines. `categories` are the lines by category of every cell with several, by the cell's name.
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
    measured = dict.fromkeys(key(r) for r in rows if text_in(r, "method") != BASELINE)
    verdicts = dict(zip(measured, recommend(with_command(rows, command)), strict=True))
    apart = [name for name in QUESTION if name in SETTINGS and varies(rows, name)]  # in addition to the data set
    return [question([c for c, _ in g], [r for _, r in g], verdicts.get(key(g[0][1])), apart) for g in groups]


def key(row: Row) -> tuple[str, ...]:
    return tuple(text_in(row, name) for name in QUESTION)


def question(
    cells: Sequence[Cell], rows: Sequence[Row], found: Recommendation | None, apart: Sequence[str]
) -> Question:
    """One question; `apart` are the settings that distinguish it from others on the same data set."""
    varying = [s for s in SETTINGS if varies(rows, s)]
    pairs = [(c, r) for c, r in zip(cells, rows, strict=True) if math.isfinite(float_in(r, "speedup"))]
    chosen = [p for p in pairs if found and identity(p[0].spec) == identity(found)]
    best = max(chosen or pairs, key=lambda p: p[1]["speedup"], default=None)
    return Question(
        heading=" · ".join([short_dataset(rows[0]["dataset"]), *(setting(rows[0], name) for name in apart)]),
        settings=" · ".join([shared_settings(rows, varying), *caveats(rows)]),
        verdict=found,
        rows=rows,
        ranked=ranked(rows),
        best=best[1] if best else None,
        pictures=list(pictures(cells, rows, pairs, best)),
        categories=by_category(cells, rows),
    )


def identity(found: Recommendation | RunSpec) -> tuple[str, str, float | None, int | None]:
    """What distinguishes the cells of a question."""
    return found.method, found.schedule, found.confidence, found.k


def pictures(
    cells: Sequence[Cell], rows: Sequence[Row], measured: Sequence[tuple[Cell, Row]], best: tuple[Cell, Row] | None
) -> Iterator[Picture]:
    """The figures of a question for which its cells have data."""
    lines = figures_by_k.by_method(rows)
    found = [
        figures_methods.ranking(rows),
        *figures_by_k.against_k(lines),
        figures_methods.phases(lines),
        figures_methods.acceptance_by_position(lines, tested(cells)),
        figures_why.reliability(curves(cells, rows)),
        *figures_methods.quantities(rows),
    ]
    if best is not None:
        cell, row = best
        ordered = sorted(measured, key=lambda pair: -pair[1]["speedup"])
        fastest = [group[0] for group in grouped(ordered, lambda pair: text_in(pair[1], "method"))]
        categories = {label(row, rows): cell.category_rows() for cell, row in fastest}
        found += [
            figures_why.waterfall(row),
            *(figures_why.by_category(categories, column) for column in figures_why.CATEGORIES),
            figures_why.over_time(cell.sample_rows()),
        ]
    yield from (picture for picture in found if picture is not None)


def curves(cells: Sequence[Cell], rows: Sequence[Row]) -> list[figures_why.Curve]:
    """Predicted acceptance of the cells, fastest first; without cells that predict none."""
    ordered = sorted(zip(rows, cells, strict=True), key=lambda one: -float_in(one[0], "speedup"))
    return [(label(row, rows), row, cell.belief_rows()) for row, cell in ordered if row["belief_tests"]]


def tested(cells: Sequence[Cell]) -> list[int]:
    """The number of tests of each draft position, over all cells."""
    counts = [r.tested for c in cells if c.status in MEASURED for s in c.samples for r in s.method.rounds]
    return [sum(count >= i for count in counts) for i in range(1, max(counts, default=0) + 1)]


def by_category(cells: Sequence[Cell], rows: Sequence[Row]) -> list[tuple[str, Sequence[Row]]]:
    """The cells with several categories, each with its label and its lines by category."""
    found = [(label(row, rows), several(cell.category_rows())) for cell, row in zip(cells, rows, strict=True)]
    return [(name, lines) for name, lines in found if lines]


def setting(row: Row, name: str) -> str:
    return f"{'T' if name == 'temperature' else name.replace('_', ' ')} {text_in(row, name) or '–'}"


def varies(rows: Sequence[Row], setting: str) -> bool:
    """Whether rows differ in a setting; early failures, which resolved nothing, do not count."""
    found = {text_in(row, setting) for row in rows}
    return len(found - {""} if setting.endswith("_resolved") else found) > 1


def label(row: Row, rows: Sequence[Row]) -> str:
    """The distinguishing label of a row among `rows`: its lookahead, and the settings that vary."""
    names = {
        "dataset": short_dataset(text_in(row, "dataset")),
        "method": text_in(row, "method"),
        "target": text_in(row, "target"),
    }
    first = [name for setting, name in names.items() if varies(rows, setting)]
    others = [s for s in SETTINGS if s not in (*LOOKAHEAD, *names) and varies(rows, s)]
    return " · ".join([*first, f"K {lookahead(row)}", *(setting(row, name) for name in others)])


def ranked(rows: Sequence[Row]) -> Ranked | None:
    """The cells of a question by speedup; None for few cells, which are shown side by side."""
    shown = by_speedup(rows)
    if len(shown) <= FEW:
        return None
    several = len(set(map(method_name, shown))) > 1
    # the groups to hide and show: methods if there are several, else lookaheads
    units = {text_in(row, "cell"): method_name(row) if several else f"K {lookahead(row)}" for row in shown}
    keys = naming(shown)
    columns = [(label, name) for label, name in COLUMNS if any(known(row, name) for row in shown)]
    ends = spread([v for row in shown for v in in_view(row)], 1.0, 0.03)
    lines = [
        Line(row, [named(row, key) for key in keys], units[text_in(row, "cell")], is_lossy(row), mark(row, ends))
        for row in shown
    ]
    return Ranked([LABELS.get(key, key.replace("_", " ")) for key in keys], columns, lines)


def known(row: Row, name: str) -> bool:
    """Whether a cell has the number; the distance only for lossy methods."""
    if name == "law_distance" and not is_lossy(row):
        return False
    return math.isfinite(float_in(row, name.replace("_interval", "_low")))


def mark(row: Row, ends: tuple[float, float]) -> str:
    """Positions of the speedup, its interval and 1 in the range of all cells, as CSS; empty without a speedup."""
    low, value, high = bounds(row)
    if not math.isfinite(value):
        return ""
    found = {"one": 1.0, "at": value, "low": low if math.isfinite(low) else value}
    found["high"] = high if math.isfinite(high) else value
    shares = {name: min(max((v - ends[0]) / (ends[1] - ends[0]), 0.0), 1.0) for name, v in found.items()}
    return ";".join(f"--{name}:{100 * share:.1f}%" for name, share in shares.items())
