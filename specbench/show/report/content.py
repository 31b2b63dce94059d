"""The content of a report on a run or a calibration, as data: questions, series, points, notes, certificates."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from jinja2 import Undefined
from markupsafe import Markup

from specbench.errors import UsageError
from specbench.presets import preset, presets
from specbench.results import named_runs
from specbench.results.cells import MEASURED, Cell
from specbench.results.documents import AUDITED, Certificate, TokenView, read_audit, read_certificate, read_trace
from specbench.results.machine import PEAKS
from specbench.results.named_runs import MOST, read_json, read_table
from specbench.results.reading import DESCRIPTION, edited, read_run
from specbench.show.documents import LINES, certificate_records, word
from specbench.show.engines import by_load, engines_table, published_table, served_tables
from specbench.show.report import figures_methods
from specbench.show.report.differences import Difference, Side, difference
from specbench.show.report.figure import Picture, float_in
from specbench.show.report.figures_by_k import over_batches, over_contexts
from specbench.show.report.figures_methods import GB, intervals
from specbench.show.report.figures_why import cost_against_width
from specbench.show.report.questions import Question, label, questions
from specbench.show.run_output import notes
from specbench.show.table import Table
from specbench.show.tables import BATCH, batch_table, by_speedup, context_table, is_lossy
from specbench.show.text import (
    NOTHING,
    by_batch,
    by_context,
    by_engine,
    cell_text,
    heading,
    is_number,
    one_line,
)
from specbench.wording import Row, clean, resume_command, text_in

T = TypeVar("T")
GPU = ("device_name", "gpu_driver", "gpu_watts_limit")
MACHINE = (*GPU, "cores", "threads", "platform", "fingerprint", "load_average")
VERSIONS = ("specbench", "torch", "transformers", "python", "cuda")
TRACES = 5  # shown traces of one run
CERTIFICATES = 5  # shown certificates of one run
POINTS, DOCUMENT = "calibration.csv", "calibration.json"


@dataclass(frozen=True)
class Series:
    """Cells that differ in one setting. name: the heading; place: the first part of the figures' names."""

    name: str
    place: str
    table: Table
    pictures: Sequence[Picture] = ()


@dataclass(frozen=True)
class RunPart:
    """One run: origin, questions, series, notes. published: a paper's numbers; edited: notes on edited tables."""

    name: str
    facts: Mapping[str, str]
    cells: Sequence[Cell]
    rows: Sequence[Row]
    questions: Sequence[Question]
    series: Sequence[Series]
    notes: Sequence[str]
    traces: Sequence[tuple[str, TokenView]]
    certificates: Sequence[tuple[str, Certificate]]
    published: Table | None
    edited: Sequence[str]


@dataclass(frozen=True)
class CalibrationPart:
    """A calibration: its points, derived values at each context, and the optimal K for a range of α."""

    name: str
    facts: Mapping[str, str]
    points: Sequence[Mapping[str, Any]]
    contexts: Sequence[Mapping[str, Any]]
    choices: Sequence[Mapping[str, Any]]
    pictures: Sequence[Picture]


def run_part(path: Path) -> RunPart:
    """The report part of a run folder. UsageError if it is not one."""
    run = read_run(path)
    if not run.cells:
        raise UsageError(f"no cell of {path} has begun: {resume_command(path)} starts them")
    rows = [cell.row() for cell in run.judged]
    views, unread = documents_in(run.path, "trace*.json", TRACES, read_trace)
    papers, foreign = documents_in(run.path, "certificate*.json", CERTIFICATES, partial(certificate_of, rows))
    name = text_in(run.description, "preset")
    return RunPart(
        name=run.path.resolve().name,
        facts=facts(run.description),
        cells=run.judged,
        rows=rows,
        questions=questions(run.judged, rows, text_in(run.description, "command")),
        series=list(series_of(rows)),
        notes=[*notes(rows), *unread, *foreign],
        traces=views,
        certificates=papers,
        published=published_table(preset(name), rows) if name in presets() else None,
        edited=edited(run),
    )


def series_of(rows: Sequence[Row]) -> Iterator[Series]:
    """Series of cells over prompt length, batch, and engine."""
    for number, some in enumerate(by_context(rows), start=1):
        table = replace(context_table(some), legend="")
        yield Series("Speedup by context", f"contexts-{number}", table, over_contexts(some))
    for number, some in enumerate(by_batch(rows), start=1):
        lines = [BATCH.line(row, measured) for row in some]
        table = replace(batch_table(some), title=heading(some), lines=lines)
        yield Series("Throughput by batch", f"batches-{number}", table, over_batches(some))
    for some in by_engine(rows):
        yield Series("Engines", "loads", engines_table(some))
    loads = [picture for some in by_load(rows) if (picture := figures_methods.per_user_against_all(some))]
    for number, table in enumerate(served_tables(rows)):
        yield Series("Requests", "loads", table, loads * (not number))


def calibration_part(path: Path) -> CalibrationPart:
    """The report part of a `specbench calibrate` folder. UsageError if its points cannot be read.

    The folder may have been edited: every value is text until it is parsed as a number.
    """
    points = [{name: row[name] for name in POINT} for row in read_table(path / POINTS, POINT, "calibrate again")]
    document, description = read_json(path / DOCUMENT), read_json(path / DESCRIPTION)
    models = dict.fromkeys(row["model"] for row in points)
    found = [cost_against_width(points, model) for model in list(models)[:4]]
    return CalibrationPart(
        name=path.resolve().name,
        facts=facts(description),
        points=points,
        contexts=mappings(document.get("contexts")),
        choices=mappings(document.get("choices")),
        pictures=[picture for picture in found if picture is not None],
    )


@dataclass(frozen=True)
class AuditPart:
    """An audit: its answer in sentences, what it found and what was not tried, its parts, tests and power."""

    name: str
    facts: Mapping[str, str]
    headline: Sequence[str]
    findings: Sequence[str]
    cells: Sequence[Mapping[str, Any]]
    tests: Sequence[Mapping[str, Any]]
    power: Sequence[Mapping[str, Any]]


def audit_part(path: Path) -> AuditPart:
    """The report part of a `specbench audit` folder. UsageError if its certificate cannot be read."""
    found = read_audit(path / AUDITED)
    known = {
        name: str(v) for one in mappings([found.get("arms"), found.get("settings")]) for name, v in one.items() if v
    }
    lines = {name: found[name] for name in ("headline", "sentences") if isinstance(found.get(name), list)}
    return AuditPart(
        path.resolve().name,
        {"started": when(text_in(found, "started")), "command": text_in(found, "command"), **known},
        [str(line) for line in lines.get("headline", [])[:MOST]],
        [str(line) for line in lines.get("sentences", [])[:MOST]],
        *(mappings(found.get(name)) for name in ("cells", "tests", "power")),
    )


def mappings(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value[:MOST] if isinstance(one, dict)] if isinstance(value, list) else []


def facts(description: Mapping[str, Any]) -> dict[str, str]:
    """When, with what command, where and with which versions: run.json in a few lines."""
    found = description.get("environment")
    known: Mapping[str, Any] = found if isinstance(found, dict) else {}

    def listed(names: Sequence[str]) -> str:
        values = {name: f"{v:.2f}" if isinstance(v, float) else v for name, v in known.items() if v is not None}
        return " · ".join(f"{name.replace('_', ' ')} {values[name]}" for name in names if name in values)

    names = MACHINE if known.get("cpu") == known.get("device_name") else ("cpu", *MACHINE)
    lines = {"started": when(text_in(description, "started")), "command": text_in(description, "command")}
    lines |= {"machine": listed(names), "versions": listed(VERSIONS)}
    return {name: value for name, value in lines.items() if value}


def when(stamp: str) -> str:
    """The time of a run in readable form; other text unchanged."""
    try:
        return datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").strftime("%Y-%m-%d %H:%M:%S UTC")
    except ValueError:
        return stamp


def documents_in(
    path: Path, pattern: str, most: int, read: Callable[[Path], T]
) -> tuple[list[tuple[str, T]], list[str]]:
    """The first files of a kind in the folder, each with its name; and why files could not be shown."""
    found, unread = list[tuple[str, T]](), list[str]()
    for file in sorted(path.glob(pattern))[:most]:
        try:
            found.append((file.name, read(file)))
        except UsageError as error:
            unread.append(str(error))
    return found, unread


def certificate_of(rows: Sequence[Row], file: Path) -> Certificate:
    """A certificate for the pair of any row. UsageError if invalid or for another pair."""
    found = read_certificate(file)
    if not any(found.is_of(row) for row in rows):
        raise UsageError(f"{clean(file.name)} certifies another pair, commit or dtype than this run measured")
    return found


def certificate_lines(found: Certificate) -> list[list[str]]:
    """Every check as a line of `LINES`."""
    return [[one_line(word(row[name])) for name in LINES] for row in certificate_records(found)]


def compared(parts: Sequence[RunPart]) -> Difference | None:
    """Two runs side by side; None for one run, or for more than two, where each pair would need a page."""
    sides = [Side(part.name, part.facts, part.cells, part.rows) for part in parts]
    return difference(*sides) if len(sides) == 2 else None


def side_by_side(parts: Sequence[RunPart]) -> Picture | None:
    """All cells of all runs with their intervals; None if the figures of a single question already show them."""
    if sum(len(part.questions) for part in parts) < 2:
        return None
    rows = [row for part in parts for row in part.rows]
    cells = [
        (part.name, f"{label(row, rows)}{' (lossy)' * is_lossy(row)}", row)
        for part in parts
        for row in by_speedup(part.rows)
    ]
    return intervals(cells)


# --- table cells: every number with its column, its cell and its exact value ------------------------------------------

POINT = ("model", "context", "width", "milliseconds", "low", "high", "v")  # columns of calibration.csv
BYTES = tuple(name for name in PEAKS if not name.startswith("baseline"))
LONGEST = 2000  # characters of one text on the page
CATEGORIES = (
    ("prompts", "prompts"), ("speedup", "speedup"), ("95 % interval", "speedup_interval"),
    ("mean of prompts (geometric)", "speedup_geomean"), ("tokens / round", "tokens_per_round"),
    ("95 % interval", "tokens_per_round_interval"), ("mean of prompts", "tokens_per_round_mean"),
    ("alpha", "alpha"), ("95 % interval", "alpha_interval"), ("mean of prompts", "alpha_mean"), ("c", "c"),
    ("mean of prompts", "c_mean"), ("v", "v"), ("mean of prompts", "v_mean"),
)  # fmt: skip
CATEGORY_LABELS = ("category", *(label for label, _ in CATEGORIES))
NUMBER = Markup('<data value="{0}" title="{0}" data-column="{1}" data-cell="{2}">{3}</data>')


def printable(value: object) -> object:
    """The value for a template: markup unchanged, everything else as one line of printable characters."""
    if isinstance(value, Markup | Undefined):
        return value
    whole = str(value)
    return clean(whole, LONGEST) + ("…" if len(whole) > LONGEST else "")


def measured(row: Row, column: str, cell: str = "") -> Markup:
    """A number or its bounds in the format of the tables; `cell` is its place, if not that of the row."""
    if cell_text(row, column) == NOTHING:
        return Markup(NOTHING)
    ends = [f"{column[:-9]}_{bound}" for bound in ("low", "high")] if column.endswith("_interval") else [column]
    place = cell or text_in(row, "cell")
    return Markup(" – ").join(data_element(row.get(name), cell_text(row, name), name, place) for name in ends)


def ranked(row: Row, column: str) -> str:
    """A number in a table with a line per cell, bytes as gigabytes; the cell's status if it has none."""
    if text_in(row, "status") not in MEASURED:
        return text_in(row, "status") if column == "speedup" else ""
    if column == "law_distance" and not is_lossy(row):
        return ""
    if column in BYTES and is_number(row.get(column)):
        return data_element(row[column], f"{float_in(row, column) / GB:.2f}", column, text_in(row, "cell"))
    return measured(row, column)


def exact(row: Row, column: str) -> Markup:
    """A column with more digits than in the tables, for the list of all columns."""
    value = row.get(column)
    text = f"{value:.6g}" if isinstance(value, float) else cell_text(row, column)
    return data_element(value, text, column, text_in(row, "cell"))


def point(row: Row, column: str) -> Markup:
    """A value of calibration.csv, whose rows are text."""
    value = float_in(row, column)
    place = "/".join(text_in(row, name) for name in POINT[:3])
    text = text_in(row, column) if column in POINT[:3] else f"{value:.3f}"
    return data_element(text_in(row, column) if math.isfinite(value) else None, text, column, place)


def category_cells(row: Row) -> list[str]:
    """A line by category: pooled values with their intervals, and the means of prompts."""
    place = f"{text_in(row, 'cell')}/{text_in(row, 'category')}"
    return [text_in(row, "category"), *(measured(row, column, place) for _, column in CATEGORIES)]


def data_element(value: Any, text: str, column: str, cell: str) -> Markup:
    """A number formatted as `text`, with its column, its cell and its exact value; other values as plain text."""
    exact = named_runs.csv_cell(value)
    if exact == "" or isinstance(value, bool) or (isinstance(value, str) and column not in POINT):
        return Markup("{}").format(printable(text))
    return NUMBER.format(*map(printable, (exact, column, cell, text)))
