"""The acceptance profile of a measured cell, to be simulated with other weights, or by another engine.

Knows the columns of results.csv, as numbers or as text; must not know files.
"""

import re
from collections.abc import Sequence
from typing import Any

from specbench.errors import UsageError
from specbench.judge.advice import drafts_trees
from specbench.profiles import DIGITS, Profile
from specbench.spec import BASELINE, CHOOSING
from specbench.wording import Row, clean, number_in, text_in

ABOUT = ("engine", "target", "draft", "method", "k", "dataset", "temperature", "max_new_tokens", "prompts", "rounds",
         "specbench")  # fmt: skip


def profile_of_run(rows: Sequence[Row], cell: str = "") -> tuple[Profile, dict[str, Any]]:
    """The profile of the only cell that drafts a chain, or of the one that `cell` names by its key, its method or its
    K; and what it was measured on. UsageError where there is none, or more than one."""
    found = [row for row in rows if text_in(row, "method") not in (BASELINE, CHOOSING) and conditional(row)]
    found = [row for row in found if not cell or text_in(row, "cell").startswith(cell) or means(cell, name_of(row))]
    names = ", ".join(f"{text_in(row, 'cell')} ({name_of(row)})" for row in found)
    if len(found) != 1:
        wrong = f"several cells have a profile: choose one with --cell: {names}" if found else "no cell drafted a chain"
        raise UsageError(wrong + f" that --cell {clean(cell)} names" * bool(cell and not found))
    (row,) = found
    about = {name: text_in(row, name) for name in ABOUT if text_in(row, name)}
    return Profile(conditional(row), f"specbench, {name_of(row)}"), {**about, "cell": text_in(row, "cell")}


def conditional(row: Row) -> tuple[float, ...]:
    """Acceptance by position up to the first that was never reached; empty of trees."""
    if drafts_trees(row):
        return ()
    found: list[float] = []
    while (chance := number_in(row, f"acceptance_at_{len(found) + 1}")) is not None:
        found.append(round(chance, DIGITS))
    return tuple(found)


def name_of(row: Row) -> str:
    parts = (text_in(row, "dataset"), text_in(row, "method"), f"K{text_in(row, 'k')}")
    return clean(" ".join(parts), 200)


def means(given: str, name: str) -> bool:
    """Whether a user's name is that of a cell: the method, the lookahead, or both; `K = 4`, `k=4` and `K4` are one."""
    words, own = squeezed(given), squeezed(name)
    return words == own or words in own.split(" ")


def squeezed(name: str) -> str:
    """Small letters, without commas, and the number at its K."""
    return re.sub(r"\bk\s*=?\s*(?=[\d≤])", "k", " ".join(name.lower().replace(",", " ").split()))
