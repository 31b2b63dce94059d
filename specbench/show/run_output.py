"""The results of a run on stdout: its answer and tables, and the same rows as CSV, JSON, JSON lines and Markdown.

A terminal shows the answer, then the numbers that readers decide by and only the settings that vary; what explains them
is shown to those who ask, and the CSV has every column.

Must not know how a cell was measured.
"""

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import get_args

from rich.console import Console, Group, RenderableType
from rich.text import Text

from specbench.judge.settling import with_command
from specbench.judge.verdict import Recommendation, recommend
from specbench.results.cells import Cell
from specbench.results.writing import json_rows, write_rows
from specbench.show.batch_table import batch_table
from specbench.show.category_table import cell_tables, method_tables
from specbench.show.cell_text import lookahead, method_name, one_line
from specbench.show.cells_table import cells_tables
from specbench.show.context_table import context_table
from specbench.show.engines_table import engines_table
from specbench.show.fitting import draw, sentence
from specbench.show.grouping import FEW, arranged, by_batch, by_context, by_engine
from specbench.show.headings import name_among
from specbench.show.k_by_batch_table import k_by_batch_tables
from specbench.show.levels_table import levels_table
from specbench.show.methods_table import fastest, methods_table
from specbench.show.number_table import NumberTable
from specbench.show.records import Format
from specbench.show.reliability_table import Beliefs, reliability_tables
from specbench.show.run_notes import brief, notes
from specbench.show.run_table import run_markdown, run_table
from specbench.show.served_table import served_tables
from specbench.show.sweep_table import acceptance_table, sweep_table
from specbench.show.verdict_figures import details
from specbench.show.verdict_lines import paragraphs, together
from specbench.show.why_table import why_table
from specbench.wording import Row, literal

FORMATS: tuple[Format, ...] = get_args(Format)
ANSWERS = ("YES", "NO", "PROVISIONAL", "UNCLEAR")


@dataclass(frozen=True)
class Shown:
    """What is shown of a run besides its rows.

    command, run: the command line that made it, and its folder as it is named in commands; categories, beliefs:
    the rows of these tables; explain: with every table that explains the numbers, and all notes.
    """

    command: str = ""
    run: str = ""
    categories: Sequence[Row] = ()
    beliefs: Beliefs = field(default_factory=dict)
    explain: bool = False

    @staticmethod
    def of(cells: Sequence[Cell], command: str, run: str, *, explain: bool) -> "Shown":
        """What is shown of a run besides the rows of its cells."""
        categories = [row for cell in cells for row in cell.category_rows()]
        beliefs = {cell.spec.key: cell.belief_rows() for cell in cells}
        return Shown(command, run, categories, beliefs, explain)


SHOWN = Shown()


def print_run(rows: Sequence[Row], style: str, console: Console, shown: Shown = SHOWN) -> None:
    """Print the rows on the console of stdout: the answer, one table of the cells, and what a reader must know."""
    if style != "table":
        console.file.write(rendered(rows, style, shown))
        return
    found = answers(rows, shown)
    for line in map(one_line, together(found)):
        sentence(console, line, "bold" if line.startswith(ANSWERS) else "")
    console.print()
    draw(console, Group(*(table.drawn() for table in cells_tables(rows))))
    draw(console, explanation(rows, shown) if shown.explain else Group(*_sought(rows)))
    for line in remarks(rows, found, shown.explain):
        sentence(console, line)


def explanation(rows: Sequence[Row], shown: Shown = SHOWN) -> Group:
    """The tables that explain the numbers: costs, acceptance, the waterfall, levels, categories, beliefs."""
    return Group(*_tables(rows), *(table.drawn() for table in _further(rows, shown)))


def _further(rows: Sequence[Row], shown: Shown) -> list[NumberTable]:
    """What is not in the rows of the cells alone."""
    return [*category_tables(rows, shown.categories), *reliability_tables(rows, shown.beliefs)]


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


def _sought(rows: Sequence[Row]) -> Iterator[Group]:
    """Engines beside each other, the best K by batch, waits for servers: nobody measures these for anything else."""
    engines = map(engines_table, by_engine(rows))
    yield from (t.drawn() for t in (*engines, *k_by_batch_tables(by_batch(rows)), *served_tables(rows)))


def _series_tables(rows: Sequence[Row]) -> Iterator[NumberTable]:
    """Over the lengths of prompts, over batches, and over engines; what servers did with requests."""
    yield from (context_table(group) for group in by_context(rows))
    yield from (batch_table(group) for group in by_batch(rows))
    yield from k_by_batch_tables(by_batch(rows))
    yield from map(engines_table, by_engine(rows))
    yield from served_tables(rows)


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


def remarks(rows: Sequence[Row], found: Sequence[Recommendation], explain: bool) -> list[str]:
    """What stands below the tables: what a reader must know, and to `explain`, all notes and the figures of answers."""
    if not explain:
        return list(map(one_line, brief(rows, [reason for one in found for reason in one.reasons])))
    figures = [line for one in found for line in details(one)]
    return list(map(one_line, [*notes(rows), *figures]))


def answers(rows: Sequence[Row], shown: Shown) -> list[Recommendation]:
    return recommend(with_command(rows, shown.command, shown.run))


def rendered(rows: Sequence[Row], style: str, shown: Shown = SHOWN) -> str:
    """The rows as csv, json, jsonl or md."""
    if style == "csv":
        buffer = io.StringIO()
        write_rows(buffer, rows)
        return buffer.getvalue()
    if style == "json":
        return json.dumps(json_rows(rows), indent=2) + "\n"
    if style == "jsonl":
        return "".join(json.dumps(row) + "\n" for row in json_rows(rows))
    return markdown(rows, shown)


def markdown(rows: Sequence[Row], shown: Shown = SHOWN) -> str:
    """The answers as paragraphs, the tables as Markdown, and the notes as a list."""
    found = answers(rows, shown)
    parts = paragraphs(found, shown.explain)
    parts += [table.markdown() for table in cells_tables(rows)]
    sought = [table.markdown() for table in (*k_by_batch_tables(by_batch(rows)), *served_tables(rows))]
    parts += further_markdown(rows, shown) if shown.explain else sought
    told = notes(rows) if shown.explain else brief(rows, [reason for one in found for reason in one.reasons])
    listed = "".join(f"- {literal(one_line(note))}\n" for note in told)
    return "\n".join([*parts, listed] if listed else parts)


def further_markdown(rows: Sequence[Row], shown: Shown) -> list[str]:
    """The tables that explain the numbers."""
    found, names = arranged(rows), [name_among(row, rows) for row in rows]
    levels, why = levels_table(rows, names), why_table(rows, names)
    tables = [
        *(table for group in found.sweeps for table in (sweep_table(group), acceptance_table(group))),
        *map(methods_table, found.methods),
        *(table for table in (levels, why) if table),
        *_series_tables(rows),
        *_further(rows, shown),
    ]
    return [*([run_markdown(found.alone)] if found.alone else []), *(table.markdown() for table in tables)]
