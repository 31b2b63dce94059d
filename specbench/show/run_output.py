"""The results of a run on stdout: its tables for readers, and the same rows as CSV, JSON, JSON lines and Markdown.

A terminal shows the numbers that readers decide by and only the settings that vary; the CSV has every column.

Must not know how a cell was measured.
"""

import io
import json
from collections.abc import Iterator, Sequence
from typing import get_args

from rich.console import Console, Group, RenderableType
from rich.text import Text

from specbench.judge.settling import with_command
from specbench.judge.verdict import Recommendation, recommend
from specbench.results.writing import json_rows, write_rows
from specbench.show.batch_table import batch_table
from specbench.show.category_table import cell_tables, method_tables
from specbench.show.cell_text import lookahead, method_name, one_line
from specbench.show.context_table import context_table
from specbench.show.engines_table import engines_table
from specbench.show.fitting import draw, sentence
from specbench.show.grouping import FEW, arranged, by_batch, by_context, by_engine
from specbench.show.headings import name_among
from specbench.show.levels_table import levels_table
from specbench.show.methods_table import fastest, methods_table
from specbench.show.number_table import NumberTable
from specbench.show.records import Format
from specbench.show.run_notes import notes
from specbench.show.run_table import run_markdown, run_table
from specbench.show.stretches_table import Stretches, stretches_tables
from specbench.show.sweep_table import acceptance_table, sweep_table
from specbench.show.verdict_lines import markdown_sentences, sentences
from specbench.show.why_table import why_table
from specbench.wording import Row, literal

FORMATS: tuple[Format, ...] = get_args(Format)
NONE: Stretches = {}


def print_run(
    rows: Sequence[Row],
    style: str,
    console: Console,
    command: str = "",
    categories: Sequence[Row] = (),
    stretches: Stretches = NONE,
) -> None:
    """Print the rows on the console of stdout, those by category and by stretch in tables alone; `command` made the
    run."""
    if style == "table":
        draw(console, run_tables(rows, categories, stretches))
        for line in remarks(rows, command):
            sentence(console, line)
    else:
        console.file.write(rendered(rows, style, command, categories, stretches))


def run_tables(rows: Sequence[Row], categories: Sequence[Row] = (), stretches: Stretches = NONE) -> Group:
    """Cells that differ in their lookahead alone as a sweep, many that differ in their method alone as the lines of
    one table, the others side by side, a few at a time."""
    further = [*category_tables(rows, categories), *stretches_tables(rows, stretches)]
    return Group(*_tables(rows), *(table.drawn() for table in further))


def _tables(rows: Sequence[Row]) -> Iterator[RenderableType]:
    found = arranged(rows)
    for group in found.sweeps:
        names = [lookahead(row) for row in group]
        yield from (sweep_table(group).drawn(), Text(), acceptance_table(group).drawn())
        yield from _by_level(group, names)
        yield from _reasons(group, names)
    for group in found.methods:
        yield methods_table(group).drawn()
        yield from _reasons(group, [method_name(row) for row in group])
    for some in (found.alone[i : i + FEW] for i in range(0, len(found.alone), FEW)):
        names = [name_among(row, some) for row in some]
        yield run_table(some)
        yield from _by_level(some, names)
        yield from _reasons(some, names)
    yield from (table.drawn() for table in _series_tables(rows))


def _series_tables(rows: Sequence[Row]) -> Iterator[NumberTable]:
    """Over the lengths of prompts, over batches, and over engines."""
    yield from (context_table(group) for group in by_context(rows))
    yield from (batch_table(group) for group in by_batch(rows))
    yield from (engines_table(group) for group in by_engine(rows))


def _by_level(rows: Sequence[Row], names: Sequence[str]) -> Iterator[Group]:
    if table := levels_table(rows, names):
        yield table.drawn()


def _reasons(rows: Sequence[Row], names: Sequence[str]) -> Iterator[Group]:
    if table := why_table(rows, names):
        yield table.drawn()


def category_tables(rows: Sequence[Row], categories: Sequence[Row]) -> Iterator[NumberTable]:
    """By category: the best lookahead of every sweep, all methods of a list, and cells that stand alone."""
    found = arranged(rows)
    for group in found.methods:
        yield from method_tables(group, [method_name(row) for row in group], categories)
    best = [group[place] for group in found.sweeps if (place := fastest(group)) is not None]
    yield from cell_tables([*best, *found.alone], categories)


def remarks(rows: Sequence[Row], command: str = "") -> list[str]:
    """What stands below the tables: notes, and the answer for every data set. `command` made the run."""
    lines = [*notes(rows), *(line for answer in answers(rows, command) for line in sentences(answer))]
    return list(map(one_line, lines))


def answers(rows: Sequence[Row], command: str) -> list[Recommendation]:
    return recommend(with_command(rows, command))


def rendered(
    rows: Sequence[Row], style: str, command: str = "", categories: Sequence[Row] = (), stretches: Stretches = NONE
) -> str:
    """The rows as csv, json, jsonl or md; `command` made the run."""
    if style == "csv":
        buffer = io.StringIO()
        write_rows(buffer, rows)
        return buffer.getvalue()
    if style == "json":
        return json.dumps(json_rows(rows), indent=2) + "\n"
    if style == "jsonl":
        return "".join(json.dumps(row) + "\n" for row in json_rows(rows))
    return markdown(rows, command, categories, stretches)


def markdown(
    rows: Sequence[Row], command: str = "", categories: Sequence[Row] = (), stretches: Stretches = NONE
) -> str:
    """The tables as Markdown, and their notes and answers as a list."""
    found = arranged(rows)
    levels = levels_table(rows, [name_among(row, rows) for row in rows])
    parts = [sweep_table(group).markdown() for group in found.sweeps]
    parts += [methods_table(group).markdown() for group in found.methods]
    parts += [run_markdown(found.alone)] if found.alone else []
    parts += [levels.markdown()] if levels else []
    parts += [table.markdown() for table in _series_tables(rows)]
    further = [*category_tables(rows, categories), *stretches_tables(rows, stretches)]
    parts += [table.markdown() for table in further]
    listed = "".join(f"- {literal(one_line(note))}\n" for note in notes(rows))
    listed += "".join("- " + "\n  - ".join(markdown_sentences(answer)) + "\n" for answer in answers(rows, command))
    return "\n".join([*parts, listed] if listed else parts)
