"""The rows of a method: enumerations multiply and merge them between two rounds, which no command does."""

from typing import Any

from torch import Tensor

from specbench.decoding.types import Context
from specbench.models.network.caches import RowStaticCache
from specbench.models.network.recurrent import Recurrent
from specbench.models.network.retrieved import Retrieved

# what has one entry for each row: tensors [B, …] and lists
OF_ROWS = {
    *("_guess", "_window", "_keys", "_grams", "_table", "_right", "_current"),  # drafters
    *("_lookahead", "_tests", "_hits", "_known", "_begun", "_readings", "_fed", "_text"),
    *("_left_out", "text", "ends", "begins", "root"),  # views
}


def select(part: Any, rows: Tensor, seen: set[int] | None = None) -> None:
    """Keep only the given rows [B'] of all that a method, or a part of it, knows of its texts; rows may repeat."""
    seen = set() if seen is None else seen
    if id(part) in seen or isinstance(part, Context):
        return
    seen.add(id(part))
    if isinstance(part, RowStaticCache | Recurrent | Retrieved):
        part.select(rows)
    elif isinstance(part, list | tuple):
        for one in part:
            select(one, rows, seen)
    elif type(part).__module__.partition(".")[0] in ("specbench", "tests"):
        for name, value in [*getattr(part, "__dict__", {}).items()]:
            if name not in OF_ROWS:
                select(value, rows, seen)
            elif value is not None:
                kept = [value[row] for row in rows.tolist()] if isinstance(value, list) else value.index_select(0, rows)
                object.__setattr__(part, name, kept)
