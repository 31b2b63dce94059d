"""What a user can cause, as exceptions: one line that says what is wrong and what to do, and the exit code.

The documentation has a table of exit codes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.wording import gigabytes, redact


class SpecbenchError(Exception):
    """Base of everything that ends a command with one line instead of a traceback."""

    exit_code = 1

    def __str__(self) -> str:
        """Errors quote URLs and what libraries said; neither shown nor stored does this one hold a password."""
        return redact(super().__str__())


class UsageError(SpecbenchError):
    """An argument, a configuration file or a data set is unusable."""

    exit_code = 2


class RegressionError(SpecbenchError):
    """A new run is worse than its base by more than a gate allows, or speculative decoding pays less than it must."""

    exit_code = 3


class UnusableModelError(SpecbenchError):
    """A checkpoint is missing, gated, corrupt or unsupported, or target and draft do not fit together."""

    exit_code = 4


class ServerError(UnusableModelError):
    """A server of models is not there, or did not answer as it should."""


class TooLargeError(UnusableModelError):
    """Memory is not enough, by the estimate before anything is read, or while weights are."""


class NotLosslessError(SpecbenchError):
    """The method's greedy output differs from the baseline's by more than numerical noise."""

    exit_code = 5


class CellsFailedError(SpecbenchError):
    """Some cells of a run ended without numbers; the others are on disk."""

    exit_code = 6


class InterruptedRunError(SpecbenchError):
    """A signal or Ctrl-C ended a run; what was measured is on disk. The exit code says which it was."""

    exit_code = 130


class NotComparableError(SpecbenchError):
    """Two runs, or something in them, cannot be compared, or an answer is not settled."""

    exit_code = 7


SMALLER = "try a smaller --dtype, shorter prompts, a smaller batch or pair, or a higher limit of memory"
EXHAUSTED = ("allocate memory", "unable to mmap", "failed to map segment", "bad_alloc", "out of memory", "thread pool")


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, in an exception or in one that led to it: what fails in the middle of a capture
    ends in another exception. On a CPU torch and the loader of shared libraries have none of their own for it.

    torch's own for devices is known by its name: whoever asks need not have loaded torch.
    """
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if named or any(words in str(error).lower() for words in EXHAUSTED):
        return True
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return before is not None and out_of_memory(before)


@dataclass(frozen=True)
class Missing:
    """One thing that is missing. what: its role or kind; name: what the user calls it.

    alone: the whole message where nothing else is missing. reason: why it cannot
    simply be fetched, empty where it can. size: in bytes, None where nobody says.
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
    """Some things are missing: all of them are named."""

    def __init__(self, parts: Sequence[Missing]) -> None:
        self.parts = parts
        super().__init__(parts[0].alone if len(parts) == 1 else together(parts))


def together(parts: Sequence[Missing]) -> str:
    """All of them in one line."""
    listed, command = ", ".join(part.shown for part in parts), command_for(parts)
    why = "" if all(part.reason for part in parts) else " and the hub does not answer"
    how = f"; where there is a network, run `{command}`" if command else ""
    return f"{len(parts)} things are missing{why}: {listed}{how}"


def command_for(parts: Sequence[Missing]) -> str:
    """The one command that fetches everything that can be fetched; empty where nothing can."""
    return " && ".join(dict.fromkeys(part.command for part in parts if part.command))
