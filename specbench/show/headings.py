"""What stands above a table: the settings that its cells share, names for those that differ, and caveats.

Knows columns of results.csv; must not know the numbers below the heading.
"""

from collections.abc import Sequence

from specbench.judge.advice import SYNTHETIC, precision
from specbench.settings import part
from specbench.show.cell_text import lookahead, pair_name, short_dataset
from specbench.spec import RunSpec
from specbench.token_counts import said
from specbench.wording import Row, clean, text_in

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
    prompts = sorted({row["prompts"] for row in rows if row.get("prompts")})
    parts += [f"{'/'.join(map(str, prompts))} prompt{'s' * (prompts != [1])}"] if prompts else []
    return clean(" · ".join(parts), 300)


def dataset_name(row: Row) -> str:
    """A data set, and how long its prompts were made."""
    return text_in(row, "dataset") + (f", {said(row['context'])} tokens" if row.get("context") else "")


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
    rates = list(dict.fromkeys(rates_of(row) for row in rows if row.get("acceptance")))
    return clean(f"synthetic acceptance {'; '.join(rates)}: {SYNTHETIC}", 600) if rates else None


def rates_of(row: Row) -> str:
    """The rates of synthetic acceptance, and where they come from."""
    source = text_in(row, "acceptance_source")
    return text_in(row, "acceptance") + f" ({source})" * bool(source)
