"""The tables of a run. `Columns` declares what a table shows of a row; rows are those of results.csv."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from specbench.judge.advice import QUESTION, precision
from specbench.results.cells import MEASURED
from specbench.show.table import Table
from specbench.show.text import (
    NOTHING,
    caveats,
    cell_text,
    dataset_name,
    heading,
    is_number,
    lookahead,
    method_name,
    one_line,
    pair_name,
    prompts_of,
    short_dataset,
    varying,
)
from specbench.spec import BASELINE
from specbench.wording import Row, clean, formatted, grouped, number_in, rows_said, text_in, tokens_said

CellText = Callable[[Row, str], str]
Shown = tuple[str, str | Callable[[Row], str]]  # a label, and the column or the text of a row


@dataclass(frozen=True)
class Columns:
    """What a table shows of a row: its naming columns, and its numbers."""

    keys: Sequence[Shown]
    shown: Sequence[Shown]

    def line(self, row: Row, text: CellText = cell_text) -> list[str]:
        """A row; the cell's status if it has no numbers. `text` formats the numbers."""
        names = [self._written(row, one, cell_text) for _, one in self.keys]
        if row.get("status", "ok") not in MEASURED:
            return [*names, str(row["status"]), *[NOTHING] * (len(self.shown) - 1)]
        return [*names, *(self._written(row, one, text) for _, one in self.shown)]

    @staticmethod
    def _written(row: Row, one: str | Callable[[Row], str], text: CellText) -> str:
        return text(row, one) if isinstance(one, str) else one(row)

    def table(self, title: str, rows: Sequence[Row], **more: Any) -> Table:
        """A line per row; `more` are other fields of the table."""
        header = [label for label, _ in (*self.keys, *self.shown)]
        fields = {"keys": len(self.keys), "above": caveats(rows), **more}
        return Table(title, header, list(map(self.line, rows)), **fields)


# --- the one table of a run -------------------------------------------------------------------------------------------


def rates(row: Row) -> str:
    """Tokens per second of the baseline and of the method, over all rows of a batch."""
    return " → ".join(cell_text(row, name, digits=1) for name in ("baseline_tokens_per_second", "tokens_per_second"))


def acceptance_rate(row: Row) -> str:
    return formatted(number_in(row, "accepted_per_drafted"), ".0%")


CELLS: tuple[Shown, ...] = (
    ("tokens/s:\nbase → spec.", rates), ("speedup", "speedup"), ("95 % interval", "speedup_interval"),
    ("tokens\n/ pass", "tokens_per_round"), ("accept\nrate", acceptance_rate),
)  # fmt: skip
RESOLVED = ("_resolved", "_sha256", "device_name", "fingerprint")  # missing in a cell that failed early
ASKED_FOR = tuple(name for name in QUESTION if not name.endswith(RESOLVED))
RULES = ("schedule", "confidence")  # part of the name of a lookahead
LABELS = {"dataset": "data", "k": "K", "temperature": "T", "dtype_resolved": "dtype"}
OF_COLUMNS = "tokens / pass: emitted per pass of the target; accept rate: accepted ÷ drafted tokens"
OF_SEVERAL = "95 % interval: of this row alone; the answer's is wider, because its row is the best of several"


def cells_table(rows: Sequence[Row]) -> Table:
    """Every cell of a pair as a line; methods by speedup, the best lossless cell of every question in bold."""
    ordered = by_speedup(rows)
    keys, groups = naming(ordered), questions(ordered)
    best = {id(some[place]) for some in groups if (place := fastest(some)) is not None}
    names = [(LABELS.get(key, key.replace("_", " ")), partial(named, key=key)) for key in keys]
    return Columns(names, CELLS).table(
        cells_title(ordered, keys),
        ordered,
        left=len([key for key in keys if key != "k"]),
        legend="; ".join([OF_COLUMNS, *[OF_SEVERAL] * any(len(some) > 1 for some in groups)]),
        bold_lines=[number for number, row in enumerate(ordered) if id(row) in best],
    )


def by_speedup(rows: Sequence[Row]) -> list[Row]:
    """The rows in order; with several methods, those of a question by speedup, without numbers last."""
    shown = [row for row in rows if text_in(row, "method") != BASELINE] or list(rows)
    if len({row["method"] for row in shown}) < 2:
        return shown
    slowness = lambda row: -float(row["speedup"]) if is_number(row.get("speedup")) else 1.0  # noqa: E731
    return [row for some in questions(shown) for row in sorted(some, key=slowness)]


def questions(rows: Sequence[Row]) -> list[list[Row]]:
    """Group cells by question, using settings: a failed cell has nothing resolved."""
    return grouped(rows, lambda row: tuple(text_in(row, name) for name in ASKED_FOR))


def fastest(rows: Sequence[Row]) -> int | None:
    """The index of the fastest method that is not lossy."""
    found = [i for i, row in enumerate(rows) if is_number(row.get("speedup")) and not is_lossy(row)]
    return max(found, key=lambda i: float(rows[i]["speedup"]), default=None)


def is_lossy(row: Row) -> bool:
    return row.get("lossless") == "lossy"


def naming(rows: Sequence[Row]) -> list[str]:
    """The settings that name a line: those in which cells differ; for a single cell its method and lookahead."""
    known = [row for row in rows if row["status"] in MEASURED] or rows  # a failed cell has nothing resolved
    others = [name for name in varying(known) if name not in (*RULES, "method", "k")]
    found = [name for name in ("dataset", *others, "method") if len({text_in(row, name) for row in rows}) > 1]
    found += ["k"] * (len(set(map(lookahead, rows))) > 1)
    return found or ["method", "k"]


def named(row: Row, key: str) -> str:
    """A setting of a cell in the name of a line."""
    if key == "k":
        return lookahead(row)
    if key == "temperature":
        return f"{row[key]:g}"
    if key == "method":
        return f"{method_name(row)}{' (lossy)' * is_lossy(row)}"
    return one_line(short_dataset(text_in(row, key)) if key == "dataset" else text_in(row, key))


def cells_title(rows: Sequence[Row], keys: Sequence[str]) -> str:
    """The common settings of all cells: the pair, the data set, the decoding, and the device."""
    first = next((row for row in rows if row["status"] in MEASURED), rows[0])
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
    differing |= {"method"} if {"spec_config", "spec_args"} & {*keys} else set()
    shared = [text for name, text in values.items() if name not in differing]
    return clean(" · ".join([*shared, *prompts_of(rows), f"{first['max_new_tokens']} tokens"]), 400)


# --- sweeps over the lookahead ----------------------------------------------------------------------------------------

NEAR = 0.01
SWEEP = Columns(
    (("K", lookahead),),
    (
        ("speedup", "speedup"), ("95 % interval", "speedup_interval"), ("predicted", "speedup_predicted"),
        ("calibrated", "speedup_calibrated"), ("tokens\n/ round", "tokens_per_round"), ("alpha", "alpha"), ("c", "c"),
        ("v", "v"), ("overhead", "overhead"),
    ),
)  # fmt: skip


@dataclass(frozen=True)
class Best:
    """The best lookahead of a series by one measure, and those within 1 % of it. K = 0 is decoding without a draft."""

    name: str
    value: float
    near: tuple[str, ...]


def best(rows: Sequence[Row], column: str, above: float = 1.0) -> Best | None:
    """The best lookahead by `column`; None if no row has that number. If nothing exceeds `above`, K = 0 is best."""
    found = {lookahead(row): row[column] for row in rows if row["status"] in MEASURED and is_number(row.get(column))}
    if not found:
        return None
    found.setdefault("0", above)
    top = max(found, key=lambda name: found[name])
    return Best(top, found[top], tuple(name for name in found if found[name] >= (1 - NEAR) * found[top]))


def conclusions(rows: Sequence[Row]) -> list[str]:
    """The best K of a sweep: measured, and by both predictions."""
    measures = {"measured": "", "calibrated": "_calibrated", "formula": "_predicted"}
    tops = {label: best(rows, f"speedup{suffix}") for label, suffix in measures.items()}
    return [
        f"best K, {label}: {top.name} ({top.value:.3f}×); within 1 %: {', '.join(top.near)}"
        for label, top in tops.items()
        if top is not None
    ]


def sweep_tables(rows: Sequence[Row]) -> list[Table]:
    """One line per lookahead of a series with the best ones, the fastest in bold; and acceptance by position."""
    winner, names = best(rows, "speedup"), list(map(lookahead, rows))
    bold = [number for number, name in enumerate(names) if winner is not None and winner.name == name]
    longest = 0
    while any(is_number(row.get(f"acceptance_at_{longest + 1}")) for row in rows):
        longest += 1
    places = [str(place) for place in range(1, longest + 1)]
    accepted = [[cell_text(row, f"acceptance_at_{place}") for place in places] for row in rows]
    lines = [[name, *line] for name, line in zip(names, accepted, strict=True)]
    return [
        SWEEP.table(heading(rows), rows, findings=conclusions(rows), bold_lines=bold),
        Table("\nacceptance by position", ["K", *places], lines),
    ]


# --- many methods -----------------------------------------------------------------------------------------------------


def depth(row: Row) -> int:
    """The number of levels of a cell; 1 unless it is a nest."""
    level = 1
    while number_in(row, f"rounds_{level + 1}") is not None:
        level += 1
    return level


def by_level(row: Row, name: str) -> str:
    """A number; for a nest, that of every level."""
    inside = [f"{name}_{level}" for level in range(2, depth(row) + 1)]
    return "/".join([cell_text(row, name), *(cell_text(row, other) for other in inside if is_number(row.get(other)))])


def distance(row: Row) -> str:
    return cell_text(row, "law_distance") if is_lossy(row) else ""


METHODS: tuple[Shown, ...] = (
    ("tokens\n/ round", "tokens_per_round"), ("alpha", partial(by_level, name="alpha")),
    ("c", partial(by_level, name="c")), ("v", "v"), ("speedup", "speedup"), ("95 % interval", "speedup_interval"),
    ("pre-\ndicted", "speedup_predicted"), ("cali-\nbrated", "speedup_calibrated"),
)  # fmt: skip
DISTANCE = ("lossy\nby", distance)
OF_NESTS = "alpha and c of a nest: level/level inside"
OF_LOSSY = "lossy by: how far the distribution of an emitted token is from the target's"


def methods_table(rows: Sequence[Row]) -> Table:
    """One line per method, for cells that differ only in their method; the fastest lossless one in bold."""
    lossy, first = any(map(is_lossy, rows)), fastest(rows)
    return Columns((("method", method_name),), (*METHODS, DISTANCE) if lossy else METHODS).table(
        heading(rows, f"K {lookahead(rows[0])}"),
        rows,
        left=1,
        legend="; ".join([OF_NESTS] * any(depth(row) > 1 for row in rows) + [OF_LOSSY] * lossy),
        bold_lines=() if first is None else (first,),
    )


# --- lengths of prompts, batches --------------------------------------------------------------------------------------

OF_BEST = (
    ("speedup", "speedup"), ("95 % interval", "speedup_interval"), ("alpha", "alpha"), ("c", "c"), ("v", "v"),
    ("baseline\ntokens/s", "baseline_tokens_per_second"),
)  # fmt: skip
BATCH = Columns(
    (("batch", lambda row: str(row["batch"])), ("K", lookahead)),
    (
        ("baseline\ntokens/s", "baseline_tokens_per_second"), ("method\ntokens/s", "tokens_per_second"),
        ("speedup", "speedup"), ("95 % interval", "speedup_interval"), ("pays no more\nfrom batch", "break_even_batch"),
        ("rows\nidle", "rows_idle"),
    ),
)  # fmt: skip


def lookaheads(rows: Sequence[Row]) -> list[str]:
    """The lookaheads of a series, in order."""
    return list(dict.fromkeys(lookahead(row) for row in sorted(rows, key=lambda row: row["k"])))


def context_table(rows: Sequence[Row]) -> Table:
    """One line per prompt length of a series: the speedup of every lookahead, and the numbers of the best one."""
    names = lookaheads(rows)
    return Table(
        title=f"speedup by context · {heading([{**row, 'context': None} for row in rows])}",
        header=["context", *(f"K {name}" for name in names), "best K", *(label for label, _ in OF_BEST)],
        lines=[context_line(some, names) for some in grouped(rows, lambda row: row["context"])],
        above=caveats(rows),
        legend="context: tokens of a prompt, the new ones come after them; from the column after best K on: of the "
        "fastest lookahead",
        bold_columns=(1 + len(names),),
    )


def context_line(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """One prompt length. If K = 0 is best, the numbers are those of the least slow lookahead."""
    measured = {lookahead(row): row for row in rows if row["status"] in MEASURED}
    speedups = [cell_text(measured[name], "speedup") if name in measured else NOTHING for name in names]
    found, least = best(rows, "speedup"), best(rows, "speedup", above=0.0)
    numbers = [cell_text(measured[least.name], column) if least else NOTHING for _, column in OF_BEST]
    return [tokens_said(rows[0]["context"]), *speedups, found.name if found else NOTHING, *numbers]


def batch_table(rows: Sequence[Row]) -> Table:
    """One line per cell of a series over several batches."""
    return BATCH.table(f"throughput by batch · {heading(rows)}", rows)
