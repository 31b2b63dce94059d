"""Tables of several engines, and of published numbers. Rows are those of results.csv."""

from collections.abc import Iterable, Iterator, Sequence

from specbench.metrics import ratio
from specbench.presets import Preset
from specbench.results.cells import MEASURED, Agreement
from specbench.show.table import Table
from specbench.show.tables import Columns
from specbench.show.text import NOTHING, cell_text, heading, is_number, lookahead, one_line, short_dataset
from specbench.wording import Row, counted, formatted, grouped, number_in, text_in


def engine(row: Row) -> str:
    """The name of the engine, also for a cell that ended before its engine started."""
    return text_in(row, "engine") or text_in(row, "backend") or "native"


ENGINES = Columns(
    (
        ("engine", engine), ("K", lookahead), ("tier", "tier_resolved"), ("dtype", "dtype_resolved"),
        ("threads", "threads"),
    ),
    (
        ("baseline\ntokens/s", "baseline_tokens_per_second"), ("method\ntokens/s", "tokens_per_second"),
        ("speedup", "speedup"), ("95 % interval", "speedup_interval"), ("tokens\n/ round", "tokens_per_round"),
        ("alpha", "alpha"), ("lossless", "lossless"),
    ),
)  # fmt: skip
CONDITIONS = {  # conditions that should be equal for comparing engines, in words
    "tier_resolved": "tier", "dtype_resolved": "dtype", "draft_dtype_resolved": "the draft's dtype",
    "threads": "threads", "device_name": "device", "prompts_sha256": "prompts", "max_new_tokens": "new tokens",
}  # fmt: skip
COUNTS = ("rounds", "tested", "accepted", "tokens")


def engines_table(rows: Sequence[Row]) -> Table:
    """One line per engine and lookahead, for cells that differ only in these."""
    return ENGINES.table(
        f"engines · {heading(rows)}",
        rows,
        left=1,
        keys=2,
        findings=[*ratios(rows), *differences(rows), *remarks(rows)],
        legend="every speedup is over the engine's own baseline",
    )


def ratios(rows: Sequence[Row]) -> Iterator[str]:
    """How much faster the first engine is than every other, at each common lookahead."""
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
    """Conditions that differ between engines, though they should not; and whether rounds are counted equally."""
    for column, words in CONDITIONS.items():
        if len({text_in(row, column) for row in rows}) > 1:
            found = dict.fromkeys(f"{engine(row)} {cell_text(row, column)}" for row in rows)
            yield f"{words} differs: {', '.join(found)}"
    for some in grouped([row for row in rows if row["status"] in MEASURED], lookahead):
        if len(some) > 1 and all(is_number(row.get(name)) for row in some for name in COUNTS):
            same = len({tuple(row[name] for name in COUNTS) for row in some}) == 1
            counted = [f"{engine(row)} {row['accepted']} of {row['tested']} in {row['rounds']} rounds" for row in some]
            # Engines start differently (a first token without a draft), so totals differ even where no prompt does.
            said = "are equal" if same else "in all, by the rounds that each engine counts"
            yield f"K {lookahead(some[0])}: accepted tokens {said}: {', '.join(counted)}"


def remarks(rows: Sequence[Row]) -> list[str]:
    """The engines' remarks on their own numbers, without duplicates."""
    found = [f"{engine(row)}: {note}" for row in rows for note in text_in(row, "engine_notes").split("; ") if note]
    return list(dict.fromkeys(found))


def agreement_lines(found: Iterable[Agreement]) -> Iterator[str]:
    """One line for every two engines on a cell."""
    for one in found:
        names = [str(cell.resolved.get("engine")) for cell in (one.one, one.other)]
        said = f"the same drafted tokens are accepted on {one.verdicts}"
        said += f", on {one.counts} as many, and which ones is not reported" if one.counts else ""
        said += f", others on {one.different}: not the same draft, or rounding decides" if one.different else ""
        spec, prompts = one.one.spec, counted(one.prompts, "prompt")
        yield (
            f"{spec.dataset}, {spec.method}, K {spec.k}: {' and '.join(names)} give equal texts on {one.equal} of "
            f"{prompts}; of these {said}"
        )


# --- published numbers ------------------------------------------------------------------------------------------------


def published_table(preset: Preset, rows: Sequence[Row]) -> Table:
    """A line for every published number and every measured cell it belongs to; without cells, only the text."""
    lines = [line for row in rows for line in _lines(preset, row)]
    words = (f"paper: {preset.paper}", f"reproduced: {preset.reproduces}", f"different: {preset.differs}")
    header = ("number", "of", "published", "measured") if lines else ()
    return Table(f"preset {preset.name}", header, lines, left=2, keys=2, above=words)


def _lines(preset: Preset, row: Row) -> Iterator[tuple[str, str, str, str]]:
    for published in preset.published:
        if all(_same(published[name], row, name) for name in preset.told & set(published)):
            for name, number in published.items():
                if name not in preset.told:
                    yield name, _cell(preset, row), f"{number:g}", one_line(cell_text(row, name))


def _same(wanted: object, row: Row, name: str) -> bool:
    return number_in(row, name) == wanted if isinstance(wanted, int | float) else text_in(row, name) == wanted


def _cell(preset: Preset, row: Row) -> str:
    """The settings that distinguish the cell within its preset."""
    told = [f"{name} {text_in(row, name)}" for name in sorted(preset.told)]
    return one_line(", ".join([short_dataset(text_in(row, "dataset")), *told]))
