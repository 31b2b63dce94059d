"""A run as an object: its rows, its verdicts, a report, and how a notebook shows it."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from markupsafe import Markup

from specbench.judge.settling import with_command
from specbench.judge.verdict import Recommendation, recommend
from specbench.results.cells import Cell, Observer, Samples, raise_for_status
from specbench.results.documents import About, summary
from specbench.results.named_runs import column_names, found_run, short_name
from specbench.results.numbers import NUMBERS
from specbench.results.reading import Run, audited_cells, read_run
from specbench.settings import declared
from specbench.show.text import cell_text, lookahead, one_line
from specbench.show.verdict import sentences
from specbench.spec import RunSpec
from specbench.wording import Row, clean_path, counted, pair_said, some

if TYPE_CHECKING:
    import pandas


# --- markup -----------------------------------------------------------------------------------------------------------
# A run in a notebook: sentences, and a table of its cells. Names come from files and models, so all text is escaped.

COLUMNS = (
    ("method", "method"), ("data set", "dataset"), ("batch", "batch"), ("prompts", "prompts"),
    ("speedup", "speedup"), ("95 % interval", "speedup_interval"), ("predicted", "speedup_predicted"),
    ("calibrated", "speedup_calibrated"), ("alpha", "alpha"), ("tokens per round", "tokens_per_round"), ("c", "c"),
    ("v", "v"), ("lossless", "lossless"), ("status", "status"),
)  # fmt: skip


def page(verdicts: Sequence[Recommendation], rows: Sequence[Row], path: Path) -> Markup:
    """The sentences of every verdict, then a row for every cell; `path` is the folder with all results."""
    said = []
    for first, *rest in map(sentences, verdicts):
        said.append(Markup("<p><b>{}</b>{}</p>").format(first, joined("<br>{}", rest)))
    head = joined("<th>{}</th>", ("K", *(name for name, _ in COLUMNS)))
    cells = [(lookahead(row), *(one_line(cell_text(row, column)) for _, column in COLUMNS)) for row in rows]
    body = joined("<tr>{}</tr>", [joined("<td>{}</td>", texts) for texts in cells])
    table = Markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(head, body)
    where = Markup("<p>results: <code>{}</code></p>").format(clean_path(path))
    return Markup("").join([*said, table, where])


def joined(form: str, texts: Iterable[str]) -> Markup:
    """The texts in markup, one after another."""
    return Markup("").join(Markup(form).format(text) for text in texts)


# --- progress ---------------------------------------------------------------------------------------------------------
# What a caller of the library receives during a run.

Event = Literal["loading", "preparing", "prompt", "cell"]
LOG = logging.getLogger("specbench")


@dataclass(frozen=True)
class Progress:
    """The progress of a run.

    event: a model is being loaded, an arm is being prepared (which may compile), all arms have decoded a prompt, or a
    cell has ended. what: a description. done, total: bytes while a model is loaded, else prompts of the whole run,
    repetitions included; no more than `total` are decoded. cell: the results.csv row of an ended cell.
    """

    event: Event
    what: str
    done: int
    total: int
    cell: Mapping[str, Any] | None = field(default=None, repr=False)


Hear = Callable[[Progress], None]


class Hearing:
    """Call a function between turns and log notes to `specbench`. An exception from the function ends the run."""

    def __init__(self, hear: Hear | None) -> None:
        self._hear: Hear = hear or (lambda _: None)

    def begin(self, description: dict[str, Any], prompts: int | None) -> "Observed":
        return Observed(self._hear, prompts)

    def note(self, line: str) -> None:
        LOG.info("%s", line)


class Observed(Observer):
    """The observer of a run; each group adds its prompts if the total of the run is unknown."""

    def __init__(self, hear: Hear, prompts: int | None) -> None:
        self._hear, self._counting, self._done, self._total = hear, prompts is None, 0, prompts or 0

    def _tell(self, event: Event, what: str, cell: Mapping[str, Any] | None = None) -> None:
        self._hear(Progress(event, what, self._done, self._total, cell))

    def loading(self, what: str, done: int, total: int) -> None:
        self._hear(Progress("loading", what, done, total))

    def begin(self, cells: Sequence[Cell], prompts: int) -> None:
        if self._counting:
            self._total += prompts - min((len(cell.samples) for cell in cells), default=0)

    def preparing(self, spec: RunSpec | None) -> None:
        if spec is not None:
            self._tell("preparing", named(spec))

    def turn(self, samples: Samples) -> None:
        self._done += max(map(len, samples.values()), default=0)
        self._tell("prompt", next((spec.dataset for spec in samples), ""))

    def end(self, cell: Cell) -> None:
        self._tell("cell", named(cell.spec), cell.row())


def named(spec: RunSpec) -> str:
    return f"{spec.method}, K = {spec.k}, {spec.dataset}"


# --- result -----------------------------------------------------------------------------------------------------------

# columns of `NUMBERS` that hold text
WORDS = ("chosen", "gpu_throttle_reasons", "lossless", "rounds_by_accepted", "acceptance_joint", "acceptance_from")


def frame_of(rows: Sequence[Row]) -> "pandas.DataFrame":
    """The rows as a pandas table; column types do not depend on which rows lack values."""
    import pandas

    found = {}
    for name in column_names(rows):
        values = [row.get(name) for row in rows]
        if (dtype := dtype_of(name, values)) == "str":  # only UTF-8, which has no lone surrogates
            values = [value if value is None else str(value).encode(errors="replace").decode() for value in values]
        found[name] = pandas.Series(values, dtype=dtype)
    return pandas.DataFrame(found)


def dtype_of(name: str, values: Sequence[Any]) -> str:
    """The dtype of a column by its values; by its name if all are missing."""
    known = {float if isinstance(one, float) else type(one) for one in values if one is not None and one == one}
    if not known:
        settings, number = declared(RunSpec), name in NUMBERS and name not in WORDS
        known = {settings[name].type if name in settings else float if number else str}
    if known == {int} and all(value != value or abs(value or 0) < 1 << 63 for value in values):
        return "Int64"
    return "boolean" if known == {bool} else "float64" if known <= {int, float} else "str"


@dataclass(frozen=True)
class Result:
    """A finished run, or the measured part of an interrupted one. `path` is its folder."""

    path: Path
    cells: Sequence[Cell]
    about: About = field(default_factory=About)

    @classmethod
    def of(cls, run: Run) -> "Result":
        return cls(run.path, run.cells, About.of(run.path, run.description))

    def rows(self) -> list[dict[str, Any]]:
        """The columns of results.csv, one row per cell: numbers as numbers, None if missing."""
        return [cell.row() for cell in audited_cells(self.cells, self.path)]

    def categories(self) -> list[dict[str, Any]]:
        """The columns of categories.csv: one row per category of prompts in a cell."""
        return [row for cell in self.cells for row in cell.category_rows()]

    def samples(self) -> list[dict[str, Any]]:
        """The columns of samples.csv: one row per decode of a prompt, baseline and method side by side."""
        return [row for cell in self.cells for row in cell.sample_rows()]

    def to_frame(self, *, full: bool = False) -> "pandas.DataFrame":
        """The rows of summary.csv as a pandas table; `full`: with all columns of results.csv.

        `run`, `started` and `command` distinguish the rows of several runs.
        """
        rows = self.about.rows(self.rows())
        return frame_of(rows if full else summary(rows))

    @cached_property
    def verdicts(self) -> list[Recommendation]:
        """Whether speculative decoding pays, for every measured pair, data set and sampling distribution."""
        return recommend(with_command(self.rows(), self.about.command, short_name(self.path)))

    @property
    def verdict(self) -> Recommendation | list[Recommendation]:
        """The answer of a run with one question; else `verdicts`, a list, which is empty without a draft."""
        return self.verdicts[0] if len(self.verdicts) == 1 else self.verdicts

    def report(self, path: str | Path | None = None, *, png: bool = False) -> Path:
        """Write the HTML report, by default report.html in the folder of the run; returns its path."""
        from specbench.show.report.page import write_report

        return write_report([self.path], Path(path) if path is not None else None, png=png)

    def raise_for_status(self) -> None:
        """Raise NotLosslessError or CellsFailedError if the command would have; a Result alone never raises."""
        raise_for_status(self.cells)

    def __repr__(self) -> str:
        pairs = some({pair_said(cell.spec.target, cell.spec.draft) for cell in self.cells})
        return f"<Result {pairs}, {counted(len(self.cells), 'cell')}, {clean_path(self.path)}>"

    def __str__(self) -> str:
        lines = [line for found in self.verdicts for line in sentences(found)]
        return "\n".join([*lines, f"results: {self.path}"])

    def _repr_html_(self) -> str:
        """The verdicts and a table of the cells, for notebooks."""
        return page(self.verdicts, self.rows(), self.path)


def load_run(path: str | Path) -> Result:
    """Load a run by folder or name, even if running or interrupted. UsageError if it is not a run."""
    return Result.of(read_run(found_run(Path(path))))
