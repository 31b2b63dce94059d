"""How results look: the rich table of a run, and the same rows as CSV, JSON, JSON lines and Markdown.

The screen shows what a reader decides by and only those settings that vary; the CSV has every column.
"""

import io
import json
import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from specbench.judge.advice import costly_verification, losing
from specbench.judge.candidates import distance_of
from specbench.judge.settling import with_command
from specbench.judge.verdict import recommend
from specbench.results.noise import Diagnostics, warnings
from specbench.results.statistics import ENOUGH, FEWEST, Interval, half_width
from specbench.results.writing import json_rows, write_rows
from specbench.settings import part
from specbench.show.batch_table import batch_markdown, batch_table, by_batch
from specbench.show.fitting import Fitted, draw, sentence
from specbench.show.levels_table import levels_markdown, levels_table
from specbench.show.methods_table import by_method, methods_markdown, methods_table
from specbench.show.methods_table import name_of as name_of_method
from specbench.show.sweep_table import caveats, lookahead, series, sweep_markdown, sweep_table
from specbench.show.table_lines import lines_of
from specbench.show.verdict_lines import markdown_sentences as verdict_markdown
from specbench.show.verdict_lines import sentences
from specbench.show.why_table import why_table
from specbench.spec import RunSpec
from specbench.wording import Row, clean, counted, literal

FORMATS = ("table", "csv", "json", "jsonl", "md")
SETTINGS = tuple(setting.column for setting in part("heading", RunSpec))
IDLE = 0.1  # share of row passes without a prompt above which a reader is told
WIDEST = 4  # cells side by side; more of them stand below each other


def tables(rows: Sequence[Row]) -> Group:
    """Cells that differ in their lookahead alone as a sweep, many that differ in their method alone as lines of one
    table, the others side by side, a few at a time."""
    sweeps, methods, alone = arranged(rows)
    parts: list[RenderableType | None] = []
    for group in sweeps:
        names = [lookahead(row) for row in group]
        parts += [sweep_table(group, cell_text), levels_table(group, names, cell_text), why_table(group, names)]
    for group in methods:
        parts += [methods_table(group, cell_text), why_table(group, [name_of_method(row) for row in group])]
    for i in range(0, len(alone), WIDEST):
        some = alone[i : i + WIDEST]
        names = [name_of(row, some) for row in some]
        parts += [run_table(some), levels_table(some, names, cell_text), why_table(some, names)]
    parts += [batch_table(group, cell_text) for group in by_batch(rows)]
    return Group(*(part for part in parts if part is not None))


def arranged(rows: Sequence[Row]) -> tuple[list[list[Row]], list[list[Row]], list[Row]]:
    """(sweeps over the lookahead, groups of many methods, all other rows), each row once."""
    groups = series(rows)
    single = [group[0] for group in groups if len(group) == 1]
    methods = by_method(single)
    taken = {id(row) for group in methods for row in group}
    return [g for g in groups if len(g) > 1], methods, [row for row in single if id(row) not in taken]


def name_of(row: Row, rows: Sequence[Row]) -> str:
    """A cell among others: its data set, and the settings in which they differ."""
    varying = [s for s in SETTINGS if len({str(r.get(s)) for r in rows}) > 1]
    return clean(" ".join([title(row["dataset"]), *(f"{s} {row.get(s)}" for s in varying)]), 200)


def remarks(rows: Sequence[Row], command: str = "") -> list[str]:
    """What stands below the tables: notes, and the answer for every data set. `command` made the run."""
    answers = recommend(with_command(rows, command))
    return [*map(shown, notes(rows)), *(shown(line) for answer in answers for line in sentences(answer))]


def run_table(rows: Sequence[Row]) -> Group:
    """One column per cell, one line per number; what all cells share stands above the table."""
    varying = [s for s in SETTINGS if len({str(r.get(s)) for r in rows}) > 1]
    table = Table()
    table.add_column("")
    for row in rows:
        heading = [title(row["dataset"]), *(f"{s} {row.get(s)}" for s in varying)]
        table.add_column(Text("\n".join(map(shown, heading))), justify="right")
    table.add_column("", style="dim", overflow="fold")
    for label, column, meaning in lines_of(rows):
        style = "bold" if column == "speedup" else ""
        table.add_row(Text(label), *(Text(shown(cell_text(r, column))) for r in rows), Text(meaning), style=style)
    headings = [constants(rows, varying), *caveats(rows)]
    return Group(*(Text(shown(line)) for line in headings), Fitted(table))


def title(dataset: str) -> str:
    """A data set's name as the heading of a column: of a file only its name."""
    return dataset.rsplit("/", 1)[-1] if ":" in dataset else dataset


def shown(text: object) -> str:
    """Text of a data set, a model or an error as a terminal may have it: without control characters."""
    return clean(text, 2000)


def constants(rows: Sequence[Row], varying: Sequence[str]) -> str:
    """One line on what all cells share."""
    first = rows[0]
    shared = [f"{first['target']} ← {first['draft'] or 'no draft'}"] if "target" not in varying else []
    names = {"method": "", "k": "K ", "dtype_resolved": "", "temperature": "temperature ", "max_new_tokens": "tokens "}
    values = {**first, "k": lookahead(first)}
    shared += [f"{label}{values[s]}" for s, label in names.items() if s not in varying and values.get(s) is not None]
    return " · ".join(
        [
            *shared,
            str(first.get("tier_resolved") or first["tier"]),
            str(first.get("device_name") or first.get("device")),
        ]
    )


def notes(rows: Sequence[Row]) -> list[str]:
    """What a reader must know besides the numbers, each thing once."""
    found = [f"{r['dataset']}, K {lookahead(r)}: {r['status']}: {r['error']}" for r in rows if r["status"] != "ok"]
    found += [f"{r['dataset']}: left out {r['rejected']}" for r in rows if r.get("rejected")]
    for row in rows:
        found += [f"{row['dataset']}: {line}" for line in (*machine(row), *stopping(row))]
        if row.get("prompts") and row["prompts"] < ENOUGH:
            found.append(
                f"{row['dataset']}: {counted(row['prompts'], 'prompt')}: below {ENOUGH} a few unusual ones decide the "
                "interval"
            )
        if row.get("prompts") and row["batch"] > 1:
            found.append(shared_time(row))
        if row.get("lossless") == "lossy":
            found.append(f"{row['dataset']}, {row['method']}: {distance_of(row)}")
        found += [*costly_verification(row), *losing(row)]
        if row.get("lossless") == "numeric":
            found.append(
                f"{row['dataset']}: {row['prompts_compared'] - row['prompts_identical']} of {row['prompts_compared']} "
                "outputs part from the baseline's at near-ties "
                f"(top-2 gap {row['top2_gap']:.2g} ≤ 2 × noise {row['noise_floor']:.2g})"
            )
    return list(dict.fromkeys(found))


def shared_time(row: Row) -> str:
    """What the interval of a batch is over: prompts decoded together are one draw of a time."""
    draws = row["draws"]
    over = f"over {draws} turns" if draws > 1 else "unknown, as there was one turn"
    more = "" if draws >= FEWEST else f" (--limit {FEWEST * row['batch']} gives {FEWEST})"
    idle = row["rows_idle"]
    ends = f"; rows stood idle in {idle:.0%} of the passes: more prompts per turn (--limit)" if idle > IDLE else ""
    return (
        f"{row['dataset']}: prompts of a batch of {row['batch']} share their time: the interval is {over}{more}{ends}"
    )


def stopping(row: Row) -> list[str]:
    """Whether `--until-ci` got what it was asked for."""
    if not row.get("until_ci") or _absent(row.get("speedup_low")):
        return []
    reached = half_width(Interval(row["speedup"], row["speedup_low"], row["speedup_high"]))
    said = "stopped" if reached <= row["until_ci"] else "had no more prompts"
    asked = f"the speedup is known to ± {reached:.1%}, asked for ± {row['until_ci']:.1%}"
    return [f"{said} after {row['prompts']} prompts: {asked} (looked only after 20, 30, 45 …)"]


def machine(row: Row) -> list[str]:
    """What the machine did while a cell was measured; cells that share a baseline share most of it."""
    if not row.get("prompts"):
        return []
    found = Diagnostics(**{name: row[name] for name in Diagnostics.__dataclass_fields__})
    return warnings(found, row["prompts"] * row["repeat"], row.get("threads"))


def cell_text(row: Row, column: str) -> str:
    """A number as the table shows it; a dash where there is none."""
    if column.endswith("_interval"):
        name = column.removesuffix("_interval")
        low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
        return "–" if _absent(low) or _absent(high) else f"{low:.3f} – {high:.3f}"
    value = row.get(column)
    if _absent(value):
        return "–"
    if column == "speedup":
        return f"{value:.3f}×"
    if isinstance(value, float):
        return f"{value:.1f}" if value >= 100 else f"{value:.3f}"
    return str(value)


def _absent(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def rendered(rows: Sequence[Row], style: str, command: str = "") -> str:
    """The rows as csv, json, jsonl or md; `command` made the run."""
    if style == "csv":
        buffer = io.StringIO()
        write_rows(buffer, rows)
        return buffer.getvalue()
    if style == "json":
        return json.dumps(json_rows(rows), indent=2) + "\n"
    if style == "jsonl":
        return "".join(json.dumps(row) + "\n" for row in json_rows(rows))
    return markdown(rows, command)


def markdown(rows: Sequence[Row], command: str = "") -> str:
    """The tables as Markdown, and their notes and answers as a list."""
    sweeps, methods, alone = arranged(rows)
    parts = [sweep_markdown(group, cell_text) for group in sweeps]
    parts += [methods_markdown(group, cell_text) for group in methods]
    parts += [run_markdown(alone)] if alone else []
    parts += [table] if (table := levels_markdown(rows, [name_of(row, rows) for row in rows], cell_text)) else []
    parts += [batch_markdown(group, cell_text) for group in by_batch(rows)]
    answers = [verdict_markdown(answer) for answer in recommend(with_command(rows, command))]
    listed = "".join(f"- {literal(shown(note))}\n" for note in notes(rows))
    listed += "".join("- " + "\n  - ".join(answer) + "\n" for answer in answers)
    return "\n".join([*parts, listed] if listed else parts)


def run_markdown(rows: Sequence[Row]) -> str:
    """The run table as Markdown."""
    lines = [line for caveat in caveats(rows) for line in (literal(caveat), "")]
    lines += [
        "| | " + " | ".join(literal(shown(title(r["dataset"]))) for r in rows) + " |",
        "|---|" + "---:|" * len(rows),
    ]
    lines += [
        f"| {label.strip()} | " + " | ".join(cell_text(r, column) for r in rows) + " |"
        for label, column, _ in lines_of(rows)
    ]
    return "\n".join(lines) + "\n"


def show(rows: Sequence[Row], style: str, console: Console, command: str = "") -> None:
    """Print the rows on the console of stdout; `command` made the run."""
    if style == "table":
        draw(console, tables(rows))
        for line in remarks(rows, command):
            sentence(console, line)
    else:
        console.file.write(rendered(rows, style, command))
