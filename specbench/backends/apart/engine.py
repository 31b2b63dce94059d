"""What an engine in processes of its own is asked for: how it would decode a spec, and a process that does.

Must not know any engine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from specbench.backends.apart.rounds import Finished
from specbench.backends.checked import CheckedPair
from specbench.spec import RunSpec

Start = Mapping[str, Any]  # with what a process is started, models by their names; specs with an equal one share it


@dataclass(frozen=True)
class Request:
    """Prompts as token ids with a seed each, the ids that end a sequence, and the spec that says how to decode."""

    spec: RunSpec
    prompts: Sequence[Sequence[int]]
    seeds: Sequence[int]
    ends: Sequence[int]


@dataclass(frozen=True)
class Decoded:
    """What became of the prompts of a request, and the seconds that all took together."""

    found: Sequence[Finished]
    seconds: float


class Served(Protocol):
    """A process with an engine that is ready to decode."""

    def decode(self, request: Request) -> Decoded:
        """UnusableModelError, in one line, for whatever goes wrong."""
        ...

    def close(self) -> None:
        """End the process."""
        ...


class Engine(Protocol):
    """An engine by its name."""

    @property
    def name(self) -> str:
        """What a user calls it."""
        ...

    @property
    def about(self) -> str:
        """How it is run, in a few words for the user."""
        ...

    def start(self, spec: RunSpec, pair: CheckedPair, places: int) -> Start:
        """With what its process is started for texts of up to so many tokens. Raises UsageError or UnusableModelError
        for a spec that it cannot decode; reads no weights."""
        ...

    def serve(self, start: Start, pair: CheckedPair) -> Served:
        """A process that is ready, on the files of the pair. UnusableModelError, in one line, where there is none."""
        ...

    def tier(self, spec: RunSpec) -> str:
        """How it executes rounds, as results know it."""
        ...

    def notes(self, spec: RunSpec, pair: CheckedPair) -> Sequence[str]:
        """What of it a reader of a cell's numbers must know, because it changes them."""
        ...
