"""User errors as exceptions: one line with the problem and the remedy, and the exit code."""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.wording import gigabytes, redact


class SpecbenchError(Exception):
    """Base of all errors that end a command with one line instead of a traceback."""

    exit_code = 1

    def __str__(self) -> str:
        """The message with credentials hidden: errors quote URLs and messages of libraries."""
        return redact(super().__str__())


class UsageError(SpecbenchError):
    """An argument, a configuration file or a data set is unusable."""

    exit_code = 2


class RegressionError(SpecbenchError):
    """A new run is worse than its base by more than a gate allows, or the speedup is below the required one."""

    exit_code = 3


class UnusableModelError(SpecbenchError):
    """A checkpoint is missing, gated, corrupt or unsupported, or target and draft do not fit together."""

    exit_code = 4


class ServerError(UnusableModelError):
    """A model server is unreachable or gave an invalid answer."""


class TooLargeError(UnusableModelError):
    """Memory is insufficient, by the estimate before loading or while weights are loaded."""


class NotLosslessError(SpecbenchError):
    """The method's greedy output differs from the baseline's by more than numerical noise."""

    exit_code = 5


class CellsFailedError(SpecbenchError):
    """Some cells of a run ended without numbers; the others are on disk."""

    exit_code = 6


class InterruptedRunError(SpecbenchError):
    """A signal or Ctrl-C ended a run; its results so far are on disk. The exit code names the signal."""

    exit_code = 130


class NotComparableError(SpecbenchError):
    """Two runs or their parts are not comparable, or an answer is not settled."""

    exit_code = 7


SMALLER = "try a smaller --dtype, shorter prompts, a smaller batch or pair, or a higher limit of memory"
EXHAUSTED = ("allocate memory", "unable to mmap", "failed to map segment", "bad_alloc", "out of memory", "thread pool")


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception or one of its causes reports that memory ran out.

    A failure inside a graph capture ends in another exception. On a CPU, torch and the loader of shared libraries raise
    no specific one. torch's error for devices is recognised by name, so that torch need not be loaded.
    """
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if named or any(words in str(error).lower() for words in EXHAUSTED):
        return True
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return before is not None and out_of_memory(before)


@dataclass(frozen=True)
class Missing:
    """A missing item. what: its role or kind; name: the user's name for it.

    alone: the whole message if nothing else is missing. reason: why it cannot simply be fetched, empty if it
    can. size: in bytes, None if unknown.
    """

    what: str
    name: str
    alone: str
    command: str
    reason: str = ""
    size: int | None = None

    @property
    def shown(self) -> str:
        more = [gigabytes(self.size)] if self.size is not None else []
        more += [self.reason] if self.reason else []
        return f"{self.what} {self.name}" + (f" ({'; '.join(more)})" if more else "")


class MissingError(UnusableModelError):
    """Several items are missing; the message names all of them."""

    def __init__(self, parts: Sequence[Missing]) -> None:
        self.parts = parts
        listed, command = ", ".join(part.shown for part in parts), command_for(parts)
        why = "" if all(part.reason for part in parts) else " and the hub does not answer"
        how = f"; where there is a network, run `{command}`" if command else ""
        together = f"{len(parts)} things are missing{why}: {listed}{how}"
        super().__init__(parts[0].alone if len(parts) == 1 else together)


def command_for(parts: Sequence[Missing]) -> str:
    """The one command that fetches everything available; empty if nothing can be fetched."""
    return " && ".join(dict.fromkeys(part.command for part in parts if part.command))
