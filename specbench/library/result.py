"""A run as an object: its rows, its verdicts, a report, and how a notebook shows it.

Knows folders of runs, judge and show; must not know how anything is measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.errors import UsageError
from specbench.judge.settling import with_command
from specbench.judge.verdict import Recommendation, recommend
from specbench.library.markup import page
from specbench.results.cells import Cell, raise_for_status
from specbench.results.named_runs import found_run, short_name
from specbench.results.reading import Run, read_run
from specbench.show.verdict import sentences
from specbench.wording import text_in

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Result:
    """A run that has ended, or what there is of one that was interrupted. `path` is its folder."""

    path: Path
    cells: Sequence[Cell]
    command: str = ""

    @classmethod
    def of(cls, run: Run) -> "Result":
        """A run as its folder holds it."""
        return cls(run.path, run.cells, text_in(run.description, "command"))

    def rows(self) -> list[dict[str, Any]]:
        """The columns of results.csv, one row for a cell: numbers as numbers, None where there is none."""
        return [cell.row() for cell in self.cells]

    def categories(self) -> list[dict[str, Any]]:
        """The columns of categories.csv: one row for every category of prompts in a cell."""
        return [row for cell in self.cells for row in cell.category_rows()]

    def samples(self) -> list[dict[str, Any]]:
        """The columns of samples.csv: one row for every decode of a prompt, baseline and method side by side."""
        return [row for cell in self.cells for row in cell.sample_rows()]

    def to_frame(self) -> "pandas.DataFrame":
        """The rows as a table of pandas."""
        import pandas

        return pandas.DataFrame(self.rows())

    @cached_property
    def verdicts(self) -> list[Recommendation]:
        """Whether speculative decoding pays, for every pair, data set and distribution that was asked about."""
        return recommend(with_command(self.rows(), self.command, short_name(self.path)))

    @property
    def verdict(self) -> Recommendation:
        """The answer of a run that asked one question. UsageError where it asked several, or measured no draft."""
        if len(self.verdicts) != 1:
            what = "no cell with a draft" if not self.verdicts else f"{len(self.verdicts)} questions: use .verdicts"
            raise UsageError(f"{self.path}: this run has {what}")
        return self.verdicts[0]

    def report(self, path: str | Path | None = None, *, png: bool = False) -> Path:
        """Write the HTML report, to report.html in the folder of the run unless told where; returns its path."""
        from specbench.show.report.page import write_report

        return write_report([self.path], Path(path) if path is not None else None, png=png)

    def raise_for_status(self) -> None:
        """Raise NotLosslessError or CellsFailedError where a command would have ended so; a Result alone never does."""
        raise_for_status(self.cells)

    def __str__(self) -> str:
        """The verdicts in sentences."""
        lines = [line for found in self.verdicts for line in sentences(found)]
        return "\n".join([*lines, f"results: {self.path}"])

    def _repr_html_(self) -> str:
        """How a notebook shows it: the verdicts and a table of the cells."""
        return page(self.verdicts, self.rows(), self.path)


def load_run(path: str | Path) -> Result:
    """A run from its folder or by name, also of one that goes on or was interrupted. UsageError where it is none."""
    return Result.of(read_run(found_run(Path(path))))
