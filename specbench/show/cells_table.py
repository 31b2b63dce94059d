"""The one table of a run: its cells as rows, with the numbers that readers decide by.

Knows rows of results.csv; must not know how they were measured, or which further tables explain them.
"""

from collections.abc import Sequence

from specbench.judge.advice import QUESTION, precision
from specbench.results.cells import MEASURED
from specbench.show.cell_text import (
    NOTHING,
    cell_text,
    is_number,
    lookahead,
    method_name,
    one_line,
    pair_name,
    short_dataset,
)
from specbench.show.headings import caveats, dataset_name, varying
from specbench.show.methods_table import fastest, is_lossy
from specbench.show.number_table import NumberTable
from specbench.spec import BASELINE
from specbench.wording import Row, clean, grouped, number_in, rows_said, text_in

COLUMNS = (
    ("speedup", "speedup"), ("95 % interval", "speedup_interval"), ("pre-\ndicted", "speedup_predicted"),
    ("cali-\nbrated", "speedup_calibrated"), ("alpha", "alpha"), ("c", "c"),
)  # fmt: skip
RESOLVED = ("_resolved", "_sha256", "device_name", "fingerprint")  # what a cell that failed early does not have
ASKED_FOR = tuple(name for name in QUESTION if not name.endswith(RESOLVED))
RULES = ("schedule", "confidence")  # a part of how a lookahead is named
LABELS = {"dataset": "data", "k": "K", "temperature": "T", "dtype_resolved": "dtype"}
LEGEND = "95 % interval: of the row alone; the answer's is wider, as its cell is the best of several"


def cells_tables(rows: Sequence[Row]) -> list[NumberTable]:
    """The table of every pair of models."""
    return [cells_table(some) for some in grouped(rows, pair_name)]


def cells_table(rows: Sequence[Row]) -> NumberTable:
    """Every cell of a pair as a line; methods by speedup, the best lossless cell of every question in bold."""
    ordered = by_speedup(rows)
    keys = naming(ordered)
    lines = [[*(named(row, key) for key in keys), *line(row)] for row in ordered]
    several = any(len(some) > 1 for some in questions(ordered))
    best = {id(row) for row in bests(ordered)}
    return NumberTable(
        title=title(ordered, keys),
        header=(*(LABELS.get(key, key.replace("_", " ")) for key in keys), *(label for label, _ in COLUMNS)),
        lines=lines,
        left=len([key for key in keys if key != "k"]),
        keys=len(keys),
        above=caveats(ordered),
        legend=LEGEND * several,
        bold_lines=frozenset(number for number, row in enumerate(ordered) if id(row) in best),
    )


def by_speedup(rows: Sequence[Row]) -> list[Row]:
    """The rows in their order; where methods differ, those of a question by speedup, without numbers last."""
    shown = [row for row in rows if text_in(row, "method") != BASELINE] or list(rows)
    if len({row["method"] for row in shown}) < 2:
        return shown
    return [row for some in questions(shown) for row in sorted(some, key=slowness)]


def slowness(row: Row) -> float:
    return -float(row["speedup"]) if is_number(row.get("speedup")) else 1.0


def questions(rows: Sequence[Row]) -> list[list[Row]]:
    """The cells that answer the same question together; as they were asked, as one that failed has nothing resolved."""
    return grouped(rows, lambda row: tuple(text_in(row, name) for name in ASKED_FOR))


def bests(rows: Sequence[Row]) -> list[Row]:
    """The fastest lossless cell of every question."""
    return [some[place] for some in questions(rows) if (place := fastest(some)) is not None]


def naming(rows: Sequence[Row]) -> list[str]:
    """The settings that name a line: those in which cells differ; of a single cell its method and lookahead."""
    known = [row for row in rows if row["status"] in MEASURED] or rows  # a cell that failed has nothing resolved
    others = [name for name in varying(known) if name not in (*RULES, "method", "k")]
    found = [name for name in ("dataset", *others, "method") if len({text_in(row, name) for row in rows}) > 1]
    found += ["k"] * (len(set(map(lookahead, rows))) > 1)
    return found or ["method", "k"]


def title(rows: Sequence[Row], keys: Sequence[str]) -> str:
    """What all cells share: the pair, the data set and how it was decoded, on what."""
    first = next((row for row in rows if row["status"] in MEASURED), rows[0])
    prompts = sorted({row["prompts"] for row in rows if row.get("prompts")})
    values = {
        "target": pair_name(first),
        "dataset": dataset_name(first),
        "method": method_name(first),
        "k": f"K {lookahead(first)}",
        "temperature": f"T = {first['temperature']:g}",
        "batch": rows_said(first["batch"], number_in(first, "arrivals")),
        "dtype_resolved": precision(first),
        "tier_resolved": str(first.get("tier_resolved") or first["tier"]),
        "device": str(first.get("device_name") or first["device"]),
    }
    differing = {*keys, *({"batch"} if "arrivals" in keys else ())}
    shared = [text for name, text in values.items() if name not in differing]
    counts = [f"{'/'.join(map(str, prompts))} prompt{'s' * (prompts != [1])}"] * bool(prompts)
    return clean(" · ".join([*shared, *counts, f"{first['max_new_tokens']} tokens"]), 400)


def named(row: Row, key: str) -> str:
    """A setting of a cell as it names the line."""
    if key == "k":
        return lookahead(row)
    if key == "temperature":
        return f"{row[key]:g}"
    if key == "method":
        return f"{method_name(row)}{' (lossy)' * is_lossy(row)}"
    return one_line(short_dataset(text_in(row, key)) if key == "dataset" else text_in(row, key))


def line(row: Row) -> list[str]:
    """The numbers of a cell; how it ended where it has none."""
    if row["status"] not in MEASURED:
        return [str(row["status"])] + [NOTHING] * (len(COLUMNS) - 1)
    return [cell_text(row, name) for _, name in COLUMNS]
