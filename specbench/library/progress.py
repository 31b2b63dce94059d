"""What a caller of the library hears while a run goes on.

Knows the moments at which observers are told something; must not know how anything is measured or stored. What is
called here is called between the turns, never beside a timed decode.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

from specbench.results.cells import Cell
from specbench.results.samples import Sample
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
    """Looks on and tells a function; notes go to the logger `specbench`. What the function raises ends the run."""

    def __init__(self, hear: Hear | None) -> None:
        self._hear: Hear = hear or (lambda _: None)
        self._done = self._total = 0

    def begin(self, description: dict[str, Any], prompts: int | None) -> "Observed":
        """A run begins; where nobody knows yet how many prompts it decodes, each group says its own."""
        self._total = prompts or 0
        return Observed(self, counting=prompts is None)

    def more(self, prompts: int) -> None:
        """The run has so many prompts more."""
        self._total += prompts

    def note(self, line: str) -> None:
        LOG.info("%s", line)

    def tell(self, event: Event, what: str, decoded: int = 0, cell: Mapping[str, Any] | None = None) -> None:
        """Something has happened, after so many more prompts."""
        self._done += decoded
        self._hear(Progress(event, what, self._done, self._total, cell))

    def bytes(self, what: str, done: int, total: int) -> None:
        """So much of a model has been read; by several threads."""
        self._hear(Progress("loading", what, done, total))


class Observed:
    """The observer of a run."""

    def __init__(self, hearing: Hearing, counting: bool = False) -> None:
        self._hearing, self._counting = hearing, counting

    def __enter__(self) -> "Observed":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def loading(self, what: str, done: int, total: int) -> None:
        self._hearing.bytes(what, done, total)

    def begin(self, cells: Sequence[Cell], prompts: int) -> None:
        if self._counting:
            self._hearing.more(prompts - min((len(cell.samples) for cell in cells), default=0))

    def resolved(self, cells: Sequence[Cell]) -> None:
        return None

    def preparing(self, spec: RunSpec | None) -> None:
        if spec is not None:
            self._hearing.tell("preparing", named(spec))

    def turn(self, samples: Mapping[RunSpec, Sequence[Sample]]) -> None:
        dataset = next((spec.dataset for spec in samples), "")
        self._hearing.tell("prompt", dataset, max(map(len, samples.values()), default=0))

    def end(self, cell: Cell) -> None:
        self._hearing.tell("cell", named(cell.spec), cell=cell.row())


def named(spec: RunSpec) -> str:
    """A cell in a few words."""
    return f"{spec.method}, K = {spec.k}, {spec.dataset}"
