"""What a report says of a run, as data: where it comes from, its questions, batches, notes and traces.

Knows folders of runs; must not know HTML.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from specbench.errors import UsageError
from specbench.presets import preset, presets
from specbench.results import documents
from specbench.results.cells import Cell
from specbench.results.documents import TokenView
from specbench.results.reading import edited, read_run
from specbench.show import context_table, run_notes
from specbench.show.cells_table import by_speedup
from specbench.show.engines_table import engines_table
from specbench.show.grouping import by_batch, by_context, by_engine
from specbench.show.headings import caveats, heading
from specbench.show.methods_table import is_lossy
from specbench.show.number_table import NumberTable, unbroken
from specbench.show.published import published_table
from specbench.show.report import plots_batch, plots_context, plots_prompts
from specbench.show.report.certificates import CertificatePart, certificates
from specbench.show.report.differences import Difference, Side, difference
from specbench.show.report.plots import Picture
from specbench.show.report.questions import Question, label, questions
from specbench.wording import Row, resume_command, text_in

GPU = ("device_name", "gpu_driver", "gpu_watts_limit")
MACHINE = (*GPU, "cores", "threads", "platform", "fingerprint", "load_average")
VERSIONS = ("specbench", "torch", "transformers", "python", "cuda")
TRACES = 5  # traces of one run that are shown


@dataclass(frozen=True)
class Batches:
    """The cells of one series over several batches, across questions, and their figures."""

    heading: str
    caveats: Sequence[str]
    rows: Sequence[Row]
    pictures: Sequence[Picture]


@dataclass(frozen=True)
class Contexts:
    """The cells of one series over several lengths of prompts, as the lines of a table, and their figures."""

    heading: str
    caveats: Sequence[str]
    labels: Sequence[str]
    lines: Sequence[Sequence[str]]
    pictures: Sequence[Picture]


@dataclass(frozen=True)
class RunPart:
    """One run: where it comes from, its questions, its lengths of prompts, its batches, and notes on them; published:
    of a preset, the numbers of its paper; edited: notes on tables that are not those of the journal."""

    name: str
    facts: Mapping[str, str]
    cells: Sequence[Cell]
    rows: Sequence[Row]
    questions: Sequence[Question]
    contexts: Sequence[Contexts]
    batches: Sequence[Batches]
    engines: Sequence[NumberTable]
    notes: Sequence[str]
    traces: Sequence[tuple[str, TokenView]]
    certificates: Sequence[CertificatePart]
    published: NumberTable | None
    edited: Sequence[str]


def run_part(path: Path) -> RunPart:
    """A run's folder as a part of a report; UsageError if it is not one."""
    run = read_run(path)
    if not run.cells:
        raise UsageError(f"no cell of {path} has begun: {resume_command(path)} begins with them")
    rows = [cell.row() for cell in run.cells]
    views, unread = traces(run.path)
    papers, foreign = certificates(run.path, rows)
    return RunPart(
        name=run.path.resolve().name,
        facts=facts(run.description),
        cells=run.cells,
        rows=rows,
        questions=questions(run.cells, rows, text_in(run.description, "command")),
        contexts=list(map(contexts_of, by_context(rows))),
        batches=[Batches(heading(b), caveats(b), b, plots_batch.figures(b)) for b in by_batch(rows)],
        engines=[labelled(engines_table(group)) for group in by_engine(rows)],
        notes=[*run_notes.notes(rows), *unread, *foreign],
        traces=views,
        certificates=papers,
        published=published(text_in(run.description, "preset"), rows),
        edited=edited(run),
    )


def published(name: str, rows: Sequence[Row]) -> NumberTable | None:
    """What the paper of the preset that made a run reports, beside what was measured."""
    return published_table(preset(name), rows) if name in presets() else None


def labelled(table: NumberTable) -> NumberTable:
    """A table whose labels need not be broken."""
    return replace(table, header=list(map(unbroken, table.header)))


def contexts_of(rows: Sequence[Row]) -> Contexts:
    """The part of one series over the lengths of prompts."""
    table = context_table.context_table(rows)
    labels = list(map(unbroken, table.header))
    return Contexts(table.title, table.above, labels, table.lines, plots_context.figures(rows))


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
    """The time of a run as people write it; anything else as it stands."""
    try:
        return datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").strftime("%Y-%m-%d %H:%M:%S UTC")
    except ValueError:
        return stamp


def traces(path: Path) -> tuple[list[tuple[str, TokenView]], list[str]]:
    """The traces in the folder, and a note for each file that cannot be read as one."""
    views, notes = [], []
    for file in sorted(path.glob("trace*.json"))[:TRACES]:
        try:
            views.append((file.name, documents.read_trace(file)))
        except UsageError as error:
            notes.append(str(error))
    return views, notes


def compared(parts: Sequence[RunPart]) -> Difference | None:
    """Two runs side by side; None of one, and of more, of which each pair would be a page."""
    sides = [Side(part.name, part.facts, part.cells, part.rows) for part in parts]
    return difference(*sides) if len(sides) == 2 else None


def side_by_side(parts: Sequence[RunPart]) -> Picture | None:
    """All cells of all runs with their intervals; None where one question's own figures show them already."""
    if sum(len(part.questions) for part in parts) < 2:
        return None
    rows = [row for part in parts for row in part.rows]
    cells = [
        (part.name, f"{label(row, rows)}{' (lossy)' * is_lossy(row)}", row)
        for part in parts
        for row in by_speedup(part.rows)
    ]
    return plots_prompts.intervals(cells)
