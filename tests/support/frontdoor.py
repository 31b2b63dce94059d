"""How a command of `specbench` ended when it was called as a user calls it."""

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from specbench.results import journal

if TYPE_CHECKING:
    from specbench.results.samples import Sample

SHORT = ("--limit", "2", "--max-new-tokens", "8", "--warmup", "0", "--k", "3")
# Options of fixtures that a test may give again: its own value is meant.
REPLACED = {
    "-k", "--budget", "--contexts", "--depths", "--device-map", "--draft", "--evaluations", "--from", "--k",
    "--layers", "--like", "--limit", "--max-new-tokens", "--nodes", "--output", "--rungs", "--target", "--tokens",
    "--warmup", "--widths",
}  # fmt: skip


def last_given(arguments: Sequence[object]) -> list[str]:
    """The arguments without the options of a fixture that come again later, and without their values."""
    words = [{"-k": "--k"}.get(str(word), str(word)) for word in arguments]
    replaced = {n for n, word in enumerate(words) if word in REPLACED and word in words[n + 1 :]}
    return [word for n, word in enumerate(words) if n not in replaced and n - 1 not in replaced]


@dataclass(frozen=True)
class Outcome:
    """The exit code, both streams, and what lies in the folder of the one run."""

    code: int
    out: str
    err: str
    cwd: Path

    def ok(self) -> Self:
        """Itself, of a command that ended well."""
        assert self.code == 0, self.err
        return self

    def row(self) -> dict[str, str]:
        """The one row of a run that ended well."""
        (row,) = self.ok().table()
        return row

    def refused(self, *said: str, code: int = 2) -> Self:
        """Itself, of a command that printed nothing and ended with one line that says all of this."""
        assert (self.code, self.out) == (code, ""), self.err
        assert [part for part in said if part not in self.line] == [], self.line
        return self

    @property
    def folder(self) -> Path:
        (folder,) = (self.cwd / "results").iterdir()
        return folder

    def table(self, name: str = "results.csv") -> list[dict[str, str]]:
        with (self.folder / name).open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def journal(self) -> list[dict[str, Any]]:
        return journal.read_bodies(self.folder / journal.FILE)

    def samples(self) -> "list[Sample]":
        """The samples of all cells in the journal."""
        from specbench.results.reading import read_run

        return [sample for cell in read_run(self.folder).cells for sample in cell.samples]

    @property
    def line(self) -> str:
        """The one line on stderr with which the command ended."""
        (line,) = self.err.splitlines()
        assert line.startswith("specbench: "), self.err
        return line


Command = Callable[..., Outcome]
