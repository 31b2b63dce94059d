"""The same cells on several engines: how fast each decodes without and with a draft, and what differs between them.

Knows rows of results.csv that differ in their engine and their lookahead alone; must not know how they were measured.
"""

from collections.abc import Iterator, Sequence

from specbench.metrics import ratio
from specbench.results.cells import MEASURED
from specbench.show.cell_text import NOTHING, cell_text, is_number, lookahead
from specbench.show.headings import caveats, heading
from specbench.show.number_table import NumberTable
from specbench.wording import Row, formatted, grouped, number_in, text_in

COLUMNS = (
    ("engine", "engine"), ("K", "k"), ("tier", "tier_resolved"), ("dtype", "dtype_resolved"), ("threads", "threads"),
    ("baseline\ntokens/s", "baseline_tokens_per_second"), ("method\ntokens/s", "tokens_per_second"),
    ("speedup", "speedup"), ("95 % interval", "speedup_interval"), ("tokens\n/ round", "tokens_per_round"),
    ("alpha", "alpha"), ("lossless", "lossless"),
)  # fmt: skip
NAMED = 5  # columns that a cell without numbers has as well
CONDITIONS = {  # what should be equal for numbers of two engines to compare, in words
    "tier_resolved": "tier", "dtype_resolved": "dtype", "draft_dtype_resolved": "the draft's dtype",
    "threads": "threads", "device_name": "device", "prompts_sha256": "prompts", "max_new_tokens": "new tokens",
}  # fmt: skip
COUNTS = ("rounds", "tested", "accepted", "tokens")


def engines_table(rows: Sequence[Row]) -> NumberTable:
    """One line per engine and lookahead."""
    return NumberTable(
        title=f"engines · {heading(rows)}",
        header=[label for label, _ in COLUMNS],
        lines=list(map(engine_line, rows)),
        left=1,
        keys=2,
        above=caveats(rows),
        findings=[*ratios(rows), *differences(rows), *remarks(rows)],
        legend="every speedup is over the engine's own baseline",
    )


def engine_line(row: Row) -> list[str]:
    """A cell; how it ended where it has no numbers."""
    named = [engine(row), lookahead(row), *(cell_text(row, column) for _, column in COLUMNS[2:NAMED])]
    if row["status"] not in MEASURED:
        return [*named, str(row["status"]), *[NOTHING] * (len(COLUMNS) - NAMED - 1)]
    return [*named, *(cell_text(row, column) for _, column in COLUMNS[NAMED:])]


def engine(row: Row) -> str:
    """Its name, also of a cell that ended before its engine had begun."""
    return text_in(row, "engine") or text_in(row, "backend") or "native"


def ratios(rows: Sequence[Row]) -> Iterator[str]:
    """How much faster the first engine is than every other one, at each lookahead that both have."""
    for some in grouped([row for row in rows if row["status"] in MEASURED], lookahead):
        first, *others = some
        for other in others:
            bare, drafted = (over(first, other, f"{name}tokens_per_second") for name in ("baseline_", ""))
            yield (
                f"K {lookahead(first)}: {engine(first)} decodes {bare} times as fast as {engine(other)} without "
                f"a draft and {drafted} times with it (ratios of totals)"
            )


def over(one: Row, other: Row, column: str) -> str:
    values = number_in(one, column), number_in(other, column)
    return NOTHING if None in values else formatted(ratio(values[0] or 0.0, values[1] or 0.0))


def differences(rows: Sequence[Row]) -> Iterator[str]:
    """What is not the same on all engines, though it should be for their numbers to compare; and whether rounds are."""
    for column, words in CONDITIONS.items():
        if len({text_in(row, column) for row in rows}) > 1:
            found = dict.fromkeys(f"{engine(row)} {cell_text(row, column)}" for row in rows)
            yield f"{words} differs: {', '.join(found)}"
    for some in grouped([row for row in rows if row["status"] in MEASURED], lookahead):
        if len(some) > 1 and all(is_number(row.get(name)) for row in some for name in COUNTS):
            same = len({tuple(row[name] for name in COUNTS) for row in some}) == 1
            counted = [f"{engine(row)} {row['accepted']} of {row['tested']} in {row['rounds']} rounds" for row in some]
            # Engines begin differently (a first token without a draft), so that totals differ where no prompt does.
            said = "are equal" if same else "in all, by the rounds that each engine counts"
            yield f"K {lookahead(some[0])}: accepted tokens {said}: {', '.join(counted)}"


def remarks(rows: Sequence[Row]) -> list[str]:
    """What every engine says of its own numbers, each once."""
    found = [f"{engine(row)}: {note}" for row in rows for note in text_in(row, "engine_notes").split("; ") if note]
    return list(dict.fromkeys(found))
