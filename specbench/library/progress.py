"""What a caller of the library hears while a run goes on."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from specbench.results.cells import Cell, Observer, Samples
from specbench.spec import RunSpec

Event = Literal["loading", "preparing", "prompt", "cell"]
LOG = logging.getLogger("specbench")


@dataclass(frozen=True)
class Progress:
    """Where a run stands.

    event: a model is being loaded, an arm is being made ready (which may compile), all arms have decoded a prompt, or a
    cell has ended. what: in words, which. done, total: bytes while a model is loaded, else prompts of the whole run,
    repetitions counted; no more than `total` are decoded. cell: the row of results.csv of a cell that has ended.
    """

    event: Event
    what: str
    done: int
    total: int
    cell: Mapping[str, Any] | None = None


Hear = Callable[[Progress], None]


class Hearing:
    """Calls a function between the turns; notes go to the logger `specbench`. What the function raises ends the run."""

    def __init__(self, hear: Hear | None) -> None:
        self._hear: Hear = hear or (lambda _: None)

    def begin(self, description: dict[str, Any], prompts: int | None) -> "Observed":
        return Observed(self._hear, prompts)

    def note(self, line: str) -> None:
        LOG.info("%s", line)


class Observed(Observer):
    """The observer of a run; each group says how many prompts it decodes if that is not known of the whole run."""

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
    """A cell in a few words."""
    return f"{spec.method}, K = {spec.k}, {spec.dataset}"
