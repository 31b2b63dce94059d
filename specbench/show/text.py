"""How results read: digits, names of cells, headings, which cells share a table, Markdown, and records."""

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import typer

from specbench.judge.advice import SYNTHETIC, drafting, precision
from specbench.results.named_runs import write_rows
from specbench.settings import declared, part
from specbench.spec import CHOOSING, RunSpec
from specbench.wording import Row, clean, grouped, literal, text_in, tokens_said

if TYPE_CHECKING:
    from specbench.show.fitting import Fitted

NOTHING = "–"
LONGEST = 2000  # characters of one line


LOSSLESS = {"identical": "yes", "numeric": "yes", "MISMATCH": "NO"}


def same_output(lossless: object, identical: Any, compared: Any) -> str:
    """Whether the greedy output was the baseline's, in words; empty where it was not compared."""
    words = LOSSLESS.get(str(lossless))
    if not words or is_absent(compared) or not int(compared):
        return ""
    others = int(compared) - int(identical or 0)
    kind = "differ" if words == "NO" else f"differ{'s' * (others == 1)} by rounding"
    return f"{words} ({identical} of {compared} outputs identical" + f", {others} {kind}" * bool(others) + ")"


def cell_text(row: Row, column: str, digits: int = 3) -> str:
    """A column as tables show it; `<name>_interval` is the interval of `name`, and `c_round` what a round drafts."""
    if column.endswith("_interval"):
        name = column.removesuffix("_interval")
        low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
        return NOTHING if is_absent(low) or is_absent(high) else f"{low:.3f} – {high:.3f}"
    value = drafting(row) if column == "c_round" else row.get(column)
    if is_absent(value):
        return NOTHING
    if column == "speedup":
        return f"{value:.3f}×"
    if column == "break_even_batch" and isinstance(value, float):
        return "never" if math.isinf(value) else "1" if value <= 1 else f"{math.ceil(value):,}"
    if isinstance(value, float):
        return f"{value:.{max(digits - 2, 0)}f}" if value >= 100 else f"{value:.{digits}f}"
    return LOSSLESS.get(str(value), str(value)) if column == "lossless" else str(value)


def is_absent(value: Any) -> bool:
    """Whether a cell of a table is blank, or NaN."""
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def is_number(value: Any) -> bool:
    """Whether a value is a finite number: a clock without phases and a failed cell leave none."""
    return isinstance(value, int | float) and math.isfinite(value)


def one_line(text: object) -> str:
    """Text of a data set, a model or an error without control characters, fit for a terminal."""
    return clean(text, LONGEST)


def lookahead(row: Row) -> str:
    """A cell's lookahead: its K, or how K is chosen and its ceiling."""
    if row.get("method") == CHOOSING:
        return "chosen"
    schedule = row.get("schedule") or "constant"
    if schedule == "confidence":
        schedule += f" {row.get('confidence')}"
    return str(row["k"]) if schedule == "constant" else f"{schedule} ≤ {row['k']}"


def short_dataset(dataset: str) -> str:
    """A data set's name as the heading of a column: of a file only its name."""
    return dataset.rsplit("/", 1)[-1] if ":" in dataset else dataset


def pair_name(row: Row) -> str:
    return f"{text_in(row, 'target')} ← {text_in(row, 'draft') or 'no draft'}"


def method_name(row: Row) -> str:
    return clean(str(row["method"]), 200)


# --- headings ---------------------------------------------------------------------------------------------------------


SETTINGS = tuple(setting.column for setting in part("heading", RunSpec))
NAMES = {"temperature": "T ", "dtype_resolved": "", "tier": "", "draft": "draft "}
PREFIXES = {"method": "", "k": "K ", "dtype_resolved": "", "temperature": "temperature ", "max_new_tokens": "tokens "}


def varying(rows: Sequence[Row]) -> list[str]:
    """The settings in which rows differ."""
    return [setting for setting in SETTINGS if len({str(row.get(setting)) for row in rows}) > 1]


def name_among(row: Row, rows: Sequence[Row]) -> str:
    """A cell among others: its data set, and the settings in which they differ."""
    settings = (f"{setting} {row.get(setting)}" for setting in varying(rows))
    return clean(" ".join([short_dataset(row["dataset"]), *settings]), 200)


def cell_name(row: Row, rows: Sequence[Row]) -> str:
    """A cell among others as notes name it: its data set, its method and lookahead, and what else distinguishes it."""
    of_rounds = {"method", "k", "schedule", "confidence"}
    apart = [name for name in varying(rows) if name not in of_rounds]
    others = (f"{NAMES.get(name, name.replace('_', ' ') + ' ')}{text_in(row, name)}" for name in apart)
    parts = [short_dataset(text_in(row, "dataset")), text_in(row, "method"), f"K {lookahead(row)}", *others]
    return clean(", ".join(part for part in parts if part), 200)


def cell_names(some: Sequence[Row], rows: Sequence[Row]) -> str:
    """Several cells of a run in a few words: a data set where they are all of its cells."""
    sets = list(dict.fromkeys(text_in(row, "dataset") for row in some))
    if len(some) == sum(text_in(row, "dataset") in sets for row in rows):
        return clean(", ".join(map(short_dataset, sets)), 200)
    more = f" and {len(some) - 1} more of its cells" if len(some) > 1 else ""
    return cell_name(some[0], rows) + more


def shared_settings(rows: Sequence[Row], differing: Sequence[str]) -> str:
    """One line on what all cells share; `differing` are the settings that they do not."""
    first = rows[0]
    values = {**first, "k": lookahead(first)}
    parts = [pair_name(first)] if "target" not in differing else []
    shared = [name for name in PREFIXES if name not in differing and values.get(name) is not None]
    parts += [f"{PREFIXES[name]}{values[name]}" for name in shared]
    tier = first.get("tier_resolved") or first["tier"]
    return " · ".join([*parts, str(tier), str(first.get("device_name") or first.get("device"))])


def heading(rows: Sequence[Row], choice: str = "") -> str:
    """The title of a table of one series: its data set, pair, method (or `choice` instead), precision and prompts."""
    first = rows[0]
    parts = [dataset_name(first), pair_name(first), choice or str(first["method"])]
    parts += [f"temperature {first['temperature']}", precision(first)]
    return clean(" · ".join([*parts, *prompts_of(rows)]), 300)


def prompts_of(rows: Sequence[Row]) -> list[str]:
    """How many prompts the cells were measured on, as a part of a title."""
    found = sorted({row["prompts"] for row in rows if row.get("prompts")})
    return [f"{'/'.join(map(str, found))} prompt{'s' * (found != [1])}"] if found else []


def dataset_name(row: Row) -> str:
    """A data set, and how long its prompts were made."""
    return text_in(row, "dataset") + (f", {tokens_said(row['context'])} tokens" if row.get("context") else "")


def caveats(rows: Sequence[Row]) -> list[str]:
    """The lines that every table carries whose rows come from scale models, quantised ones or synthetic acceptance."""
    return [line for line in (scale_model(rows), quantised(rows), synthetic(rows)) if line]


def scale_model(rows: Sequence[Row]) -> str | None:
    """That models are scale models, by name; None where no model is one."""
    named = list(dict.fromkeys(str(row["scale_model"]) for row in rows if row.get("scale_model")))
    if not named:
        return None
    meaning = "the function of the small model at the cost of the shape; acceptance is the small pair's"
    return clean(f"scale model: {'; '.join(named)}: {meaning}", 600)


def quantised(rows: Sequence[Row]) -> str | None:
    """That weights were quantised after loading, and what lossless means then; None where none were."""
    named = list(dict.fromkeys(precision(row).partition(", ")[2] for row in rows))
    if not any(named):
        return None
    meaning = "lossless means with respect to the quantised target, not to the checkpoint as it is stored"
    return clean(f"quantised after loading: {'; '.join(one or 'nothing' for one in named)}: {meaning}", 600)


def synthetic(rows: Sequence[Row]) -> str | None:
    """That acceptance is synthetic, with its rates; None where all acceptance is the pair's own."""
    sources = ((row, text_in(row, "acceptance_source")) for row in rows if row.get("acceptance"))
    rates = dict.fromkeys(text_in(row, "acceptance") + f" ({source})" * bool(source) for row, source in sources)
    return clean(f"synthetic acceptance {'; '.join(rates)}: {SYNTHETIC}", 600) if rates else None


# --- which cells share a table ----------------------------------------------------------------------------------------


IDENTITY = tuple(setting.name for setting in part("identity", RunSpec))
LOOKAHEAD = tuple(name for name in declared(RunSpec) if name not in IDENTITY)
FEW = 4  # more cells than these are lines of a table, not columns


@dataclass(frozen=True)
class Arrangement:
    """The rows of a run by the kind of table that shows them, each row once."""

    sweeps: Sequence[Sequence[Row]]
    methods: Sequence[Sequence[Row]]
    alone: Sequence[Row]


def arranged(rows: Sequence[Row]) -> Arrangement:
    """Sweeps over the lookahead, groups of many methods, and all other rows."""
    groups = series(rows)
    single = [group[0] for group in groups if len(group) == 1]
    methods = by_method(single)
    taken = {id(row) for group in methods for row in group}
    sweeps = [group for group in groups if len(group) > 1]
    return Arrangement(sweeps, methods, [row for row in single if id(row) not in taken])


def series(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows that differ in their lookahead alone together."""
    return alike(rows, IDENTITY)


def by_method(rows: Sequence[Row]) -> list[list[Row]]:
    """Groups of more than a few rows that differ in their method alone."""
    same = [name for name in (*IDENTITY, *LOOKAHEAD) if name != "method"]
    return [group for group in alike(rows, same) if len(group) > FEW]


def by_batch(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of every series that has several batches, by lookahead and then by batch."""
    return [sorted(some, key=lambda r: (r["k"], lookahead(r), r["batch"])) for some in over(rows, "batch")]


def by_context(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of every series that has several prompt lengths, by length and then by lookahead."""
    several = [some for some in over(rows, "context") if len({row.get("context") for row in some} - {None, ""}) > 1]
    return [sorted(some, key=lambda r: (r["context"] or 0, r["k"], lookahead(r))) for some in several]


def by_engine(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of every series that was measured on several engines, by lookahead."""
    return [sorted(some, key=lambda r: (r["k"], lookahead(r))) for some in over(rows, "backend")]


def over(rows: Sequence[Row], setting: str) -> list[list[Row]]:
    """Groups of rows that differ in one setting, and maybe in their lookahead."""
    groups = alike(rows, [name for name in IDENTITY if name != setting])
    return [group for group in groups if len({row.get(setting) for row in group}) > 1]


def alike(rows: Sequence[Row], settings: Sequence[str]) -> list[list[Row]]:
    """Rows with equal settings together."""
    return grouped(rows, lambda row: tuple(row.get(name) for name in settings))


# --- Markdown ---------------------------------------------------------------------------------------------------------


def markdown_table(header: Sequence[str], lines: Sequence[Sequence[str]], align: str) -> list[str]:
    """The lines of a table; `align` has one letter per column, l or r. Texts are escaped by the caller."""
    rule = "|" + "".join("---|" if letter == "l" else "---:|" for letter in align)
    found = ["|" + "|".join(f" {cell} " if cell else " " for cell in line) + "|" for line in (header, *lines)]
    return [found[0], rule, *found[1:]]


def paragraphs(texts: Sequence[str]) -> list[str]:
    """The texts as lines, each with a blank one after it."""
    return [line for text in texts for line in (text, "")]


# --- records ----------------------------------------------------------------------------------------------------------


Format = Literal["table", "csv", "json", "jsonl", "md"]
Records = Sequence[Mapping[str, Any]]
PIPED = 160  # columns where stdout is no terminal: few names and sentences are folded


def print_records(rows: Records, tables: Mapping[str, Records], output: Format) -> None:
    """Print the rows for programs, or the tables, which have titles, for readers."""
    if print_data(rows, output):
        return
    for title, some in tables.items():
        (print_markdown if output == "md" else print_table)(title, some)


def print_data(rows: Records, output: Format) -> bool:
    """Print the rows as csv, json or jsonl; false for the formats for readers, which are left to the caller."""
    if output == "csv":
        write_rows(sys.stdout, rows)
    elif output == "json":
        typer.echo(json.dumps(rows, indent=2))
    elif output == "jsonl":
        typer.echo("\n".join(map(json.dumps, rows)))
    return output in ("csv", "json", "jsonl")


def print_table(title: str, rows: Records) -> None:
    """One line per row, or a block where the terminal is too narrow for it."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from specbench.show.fitting import Fitted, draw, screen

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name, value in rows[0].items():
        right = isinstance(value, int | float)
        label = name.replace("_", " ")
        table.add_column(label, justify="right" if right else "left", overflow="ellipsis" if right else "fold")
    for row in rows:
        table.add_row(*(Text(record_text(value)) for value in row.values()))
    draw(screen(PIPED), Fitted(table, records=True))


def print_markdown(title: str, rows: Records) -> None:
    lines = [[literal(record_text(value)) for value in row.values()] for row in rows]
    found = [f"**{literal(title)}**", "", *markdown_table(list(rows[0]), lines, "l" * len(rows[0]))]
    typer.echo("\n".join(found) + "\n")


def record_text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else clean(value, 200)


@dataclass(frozen=True)
class Numbers:
    """A table of numbers of a prediction or a calibration: text only. A row that ends in "best" is bold.

    keys: columns that say what a row is about; together: columns that stay side by side, see `Fitted`.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    summary: str | None = None
    keys: int = 1
    together: int = 1

    def drawn(self) -> "Fitted":
        """For a terminal."""
        from rich import box
        from rich.table import Column, Table
        from rich.text import Text

        from specbench.show.fitting import Fitted

        columns = [Column(name, justify="right") for name in self.header]
        table = Table(*columns, title=self.title, title_justify="left", box=box.SIMPLE_HEAD)
        for row in self.rows:
            table.add_row(*map(Text, row), style="bold" if row[-1] == "best" else None)
        return Fitted(table, self.keys, self.together)

    def print(self) -> None:
        from specbench.show.fitting import draw, screen, sentence

        draw(screen(PIPED), self.drawn())
        if self.summary is not None:
            sentence(screen(), self.summary + "\n" * bool(self.summary))

    def markdown(self, escape: Callable[[str], str] = literal) -> str:
        lines = [list(map(escape, row)) for row in self.rows]
        body = "\n".join(markdown_table(self.header, lines, "r" * len(self.header)))
        return "\n\n".join(filter(None, (f"**{self.title}**", body, self.summary))) + "\n"
