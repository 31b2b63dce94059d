"""Formatting of results: digits, names of cells, headings, grouping into tables, and Markdown."""

import math
from collections.abc import Sequence
from typing import Any, Literal

from specbench.judge.advice import SYNTHETIC, drafting, precision
from specbench.settings import declared, part
from specbench.spec import CHOOSING, RunSpec, drafted_by
from specbench.wording import Row, clean, grouped, text_in, tokens_said

Format = Literal["table", "csv", "json", "jsonl", "md"]
NOTHING = "–"
LONGEST = 2000  # characters of one line


LOSSLESS = {"identical": "yes", "numeric": "yes", "MISMATCH": "NO"}


def same_output(lossless: object, identical: Any, compared: Any) -> str:
    """Whether the greedy output equals the baseline's, in words; empty if not compared."""
    words = LOSSLESS.get(str(lossless))
    if not words or is_absent(compared) or not int(compared):
        return ""
    others = int(compared) - int(identical or 0)
    kind = "differ" if words == "NO" else f"differ{'s' * (others == 1)} by rounding"
    return f"{words} ({identical} of {compared} outputs identical" + f", {others} {kind}" * bool(others) + ")"


def cell_text(row: Row, column: str, digits: int = 3) -> str:
    """A column as in tables; `<name>_interval` is the interval of `name`, and `c_round` the draft cost of a round."""
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
    """Whether a table cell is blank or NaN."""
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))


def is_number(value: Any) -> bool:
    """Whether a value is a finite number: missing phases and failed cells have none."""
    return isinstance(value, int | float) and math.isfinite(value)


def one_line(text: object) -> str:
    """Text of a data set, a model or an error without control characters, fit for a terminal."""
    return clean(text, LONGEST)


def lookahead(row: Row) -> str:
    """A cell's lookahead: its K, or its schedule and ceiling."""
    if row.get("method") == CHOOSING:
        return "chosen"
    schedule = row.get("schedule") or "constant"
    if schedule == "confidence":
        schedule += f" {row.get('confidence')}"
    return str(row["k"]) if schedule == "constant" else f"{schedule} ≤ {row['k']}"


def short_dataset(dataset: str) -> str:
    """A data set's name as a column heading; for a file, only its name."""
    return dataset.rsplit("/", 1)[-1] if ":" in dataset else dataset


def pair_name(row: Row) -> str:
    return f"{text_in(row, 'target')} ← {text_in(row, 'draft') or 'no draft'}"


def method_name(row: Row) -> str:
    """The method, or what a server drafts with."""
    return clean(drafted_by(text_in(row, "spec_config"), text_in(row, "spec_args"), str(row["method"])), 200)


# --- headings ---------------------------------------------------------------------------------------------------------


SETTINGS = tuple(setting.column for setting in part("heading", RunSpec))
NAMES = {"temperature": "T ", "dtype_resolved": "", "tier": "", "draft": "draft "}
PREFIXES = {"method": "", "k": "K ", "dtype_resolved": "", "temperature": "temperature ", "max_new_tokens": "tokens "}


def varying(rows: Sequence[Row]) -> list[str]:
    """The settings in which rows differ."""
    return [setting for setting in SETTINGS if len({str(row.get(setting)) for row in rows}) > 1]


def name_among(row: Row, rows: Sequence[Row]) -> str:
    """The name of a cell among others: its data set, and the settings that differ."""
    settings = (f"{setting} {row.get(setting)}" for setting in varying(rows))
    return clean(" ".join([short_dataset(row["dataset"]), *settings]), 200)


def cell_name(row: Row, rows: Sequence[Row]) -> str:
    """The name of a cell among others in notes: data set, method, lookahead, and other distinguishing settings."""
    method = method_name(row)
    said = {"method", "k", "schedule", "confidence", *(["spec_config"] if row.get("spec_config") == method else [])}
    apart = [name for name in varying(rows) if name not in said]
    others = (f"{NAMES.get(name, name.replace('_', ' ') + ' ')}{text_in(row, name)}" for name in apart)
    parts = [short_dataset(text_in(row, "dataset")), method, f"K {lookahead(row)}", *others]
    return clean(", ".join(part for part in parts if part), 200)


def cell_names(some: Sequence[Row], rows: Sequence[Row]) -> str:
    """Several cells of a run in a few words: a data set if they are all of its cells."""
    sets = list(dict.fromkeys(text_in(row, "dataset") for row in some))
    if len(some) == sum(text_in(row, "dataset") in sets for row in rows):
        return clean(", ".join(map(short_dataset, sets)), 200)
    more = f" and {len(some) - 1} more of its cells" if len(some) > 1 else ""
    return cell_name(some[0], rows) + more


def shared_settings(rows: Sequence[Row], differing: Sequence[str]) -> str:
    """One line on the common settings of all cells; `differing` are the others."""
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
    parts = [dataset_name(first), pair_name(first), choice or method_name(first)]
    parts += [f"temperature {first['temperature']}", precision(first)]
    return clean(" · ".join([*parts, *prompts_of(rows)]), 300)


def prompts_of(rows: Sequence[Row]) -> list[str]:
    """The number of prompts of the cells, for a title."""
    found = sorted({row["prompts"] for row in rows if row.get("prompts")})
    return [f"{'/'.join(map(str, found))} prompt{'s' * (found != [1])}"] if found else []


def dataset_name(row: Row) -> str:
    """A data set, with its prompt length."""
    return text_in(row, "dataset") + (f", {tokens_said(row['context'])} tokens" if row.get("context") else "")


def caveats(rows: Sequence[Row]) -> list[str]:
    """Caveats for every table with scale models, quantised models or synthetic acceptance."""
    return [line for line in (scale_model(rows), quantised(rows), synthetic(rows)) if line]


def scale_model(rows: Sequence[Row]) -> str | None:
    """A note on scale models, by name; None without any."""
    named = list(dict.fromkeys(str(row["scale_model"]) for row in rows if row.get("scale_model")))
    if not named:
        return None
    meaning = "the function of the small model at the cost of the shape; acceptance is the small pair's"
    return clean(f"scale model: {'; '.join(named)}: {meaning}", 600)


def quantised(rows: Sequence[Row]) -> str | None:
    """A note on weights quantised after loading, and the meaning of lossless then; None without any."""
    named = list(dict.fromkeys(precision(row).partition(", ")[2] for row in rows))
    if not any(named):
        return None
    meaning = "lossless means with respect to the quantised target, not to the checkpoint as it is stored"
    return clean(f"quantised after loading: {'; '.join(one or 'nothing' for one in named)}: {meaning}", 600)


def synthetic(rows: Sequence[Row]) -> str | None:
    """A note on synthetic acceptance, with its rates; None if all acceptance is the pair's own."""
    sources = ((row, text_in(row, "acceptance_source")) for row in rows if row.get("acceptance"))
    rates = dict.fromkeys(text_in(row, "acceptance") + f" ({source})" * bool(source) for row, source in sources)
    return clean(f"synthetic acceptance {'; '.join(rates)}: {SYNTHETIC}", 600) if rates else None


# --- grouping into tables ---------------------------------------------------------------------------------------------


IDENTITY = tuple(setting.name for setting in part("identity", RunSpec))
LOOKAHEAD = tuple(name for name in declared(RunSpec) if name not in IDENTITY)
FEW = 4  # more cells than these are lines of a table, not columns


def arranged(rows: Sequence[Row]) -> tuple[list[list[Row]], list[list[Row]], list[Row]]:
    """The rows by kind of table, each once: sweeps over the lookahead, lists of many methods, others."""
    groups = series(rows)
    single = [group[0] for group in groups if len(group) == 1]
    methods = by_method(single)
    taken = {id(row) for group in methods for row in group}
    return [group for group in groups if len(group) > 1], methods, [row for row in single if id(row) not in taken]


def series(rows: Sequence[Row]) -> list[list[Row]]:
    """Group rows that differ only in their lookahead."""
    return alike(rows, IDENTITY)


def by_method(rows: Sequence[Row]) -> list[list[Row]]:
    """Groups of more than a few rows that differ only in their method."""
    same = [name for name in (*IDENTITY, *LOOKAHEAD) if name != "method"]
    return [group for group in alike(rows, same) if len(group) > FEW]


def by_batch(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of every series with several batches, by lookahead and then by batch."""
    return [sorted(some, key=lambda r: (r["k"], lookahead(r), r["batch"])) for some in over(rows, "batch")]


def by_context(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of every series with several prompt lengths, by length and then by lookahead."""
    several = [some for some in over(rows, "context") if len({row.get("context") for row in some} - {None, ""}) > 1]
    return [sorted(some, key=lambda r: (r["context"] or 0, r["k"], lookahead(r))) for some in several]


def by_engine(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of every series with several engines, by lookahead."""
    return [sorted(some, key=lambda r: (r["k"], lookahead(r))) for some in over(rows, "backend")]


def over(rows: Sequence[Row], setting: str) -> list[list[Row]]:
    """Groups of rows that differ in one setting, and possibly in their lookahead."""
    groups = alike(rows, [name for name in IDENTITY if name != setting])
    return [group for group in groups if len({row.get(setting) for row in group}) > 1]


def alike(rows: Sequence[Row], settings: Sequence[str]) -> list[list[Row]]:
    """Group rows with equal settings."""
    return grouped(rows, lambda row: tuple(row.get(name) for name in settings))


# --- Markdown ---------------------------------------------------------------------------------------------------------


def markdown_table(header: Sequence[str], lines: Sequence[Sequence[str]], align: str) -> list[str]:
    """The lines of a table; `align` has one letter per column, l or r. The caller escapes texts."""
    rule = "|" + "".join("---|" if letter == "l" else "---:|" for letter in align)
    found = ["|" + "|".join(f" {cell} " if cell else " " for cell in line) + "|" for line in (header, *lines)]
    return [found[0], rule, *found[1:]]


def paragraphs(texts: Sequence[str]) -> list[str]:
    """The texts as lines, each followed by a blank one."""
    return [line for text in texts for line in (text, "")]
