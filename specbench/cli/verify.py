"""Runs that a command is given, checked before their tables are believed; a bare table has nothing to be checked with.

Knows what lies in a folder; must not know what is in the files.
"""

from collections.abc import Sequence
from pathlib import Path

import typer

from specbench.wording import clean_path

OF_A_RUN = ("run.json", "journal.jsonl")


def verified(paths: Sequence[Path], *, samples: bool) -> tuple[list[str], list[str]]:
    """(the bare tables among `paths`, notes on the runs); UsageError where a run's tables are not its journal's."""
    bare, notes = [], list[str]()
    for path in dict.fromkeys(paths):
        if is_bare(path):
            bare.append(clean_path(path))
        else:
            from specbench.results.audit import audit  # it needs torch, which bare tables need not

            notes += audit(path, samples=samples)
    return bare, notes


def is_bare(path: Path) -> bool:
    """A CSV file, or a folder with nothing else of a run."""
    return not any((path / name).exists() for name in OF_A_RUN)


def unverified(bare: Sequence[str]) -> str:
    """What is to be known of numbers that came without a journal."""
    return f"unverified: bare CSV, no journal tells whether it was edited: {', '.join(bare)}"


def tell(bare: Sequence[str], notes: Sequence[str]) -> None:
    """One line on stderr for all bare tables, and one for each note."""
    for line in [*([unverified(bare)] if bare else []), *(f"note: {note}" for note in notes)]:
        typer.echo(line, err=True)
