"""The rows of a method: enumerations multiply and merge them between two rounds, which no command does."""

from typing import Any

from torch import Tensor

from specbench.decoding.types import Context
from specbench.models.network.early_exit import Early

# what has one entry for each row, by class: tensors [B, …] and lists
OF_ROWS = {
    "Jacobi": ("_guess",),
    "Lookahead": ("_window", "_keys", "_grams"),
    "Suffix": ("_begun",),
    "Recycling": ("_table",),
    "Swift": ("_right",),
    "Distilled": ("_current",),
    "Heuristic": ("_lookahead",),
    "Marginal": ("_tests", "_hits"),
    "Select": ("_known",),
    "Strings": ("_readings", "_fed", "_text"),
    "Streaming": ("_left_out",),
    "Common": ("text", "ends", "begins", "root"),
    "Layout": ("shift", "filled", "floor"),
    "RowStaticLayer": ("keys", "values"),
}


def select(part: Any, rows: Tensor, seen: set[int] | None = None) -> None:
    """Keep only the given rows [B'] of all that a method, or a part of it, knows of its texts; rows may repeat."""
    seen = set() if seen is None else seen
    part = part.judge if isinstance(part, Early) else part  # which has no cache of its own
    if id(part) in seen or isinstance(part, Context):
        return
    seen.add(id(part))
    if isinstance(part, list | tuple):
        for one in part:
            select(one, rows, seen)
    elif type(part).__module__.partition(".")[0] in ("specbench", "tests"):
        own = {name for kind in type(part).__mro__ for name in OF_ROWS.get(kind.__name__, ())}
        for name, value in [*getattr(part, "__dict__", {}).items()]:
            if name not in own:
                select(value, rows, seen)
            elif value is not None and len(value):
                kept = [value[row] for row in rows.tolist()] if isinstance(value, list) else value.index_select(0, rows)
                object.__setattr__(part, name, kept)
