"""What a user can cause, as exceptions: one line that says what is wrong and what to do, and the exit code.

Importable by every layer; knows of other modules only how a credential is kept out of a line. The documentation has
a table of exit codes.
"""

from specbench.redact import redact


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
    """Whether memory ran out, in an exception or in one that led to it: what fails in the middle of a capture ends in
    another exception. On a CPU torch and the loader of shared libraries have none of their own for it.

    torch's own for devices is known by its name: whoever asks need not have loaded torch.
    """
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if named or any(words in str(error).lower() for words in EXHAUSTED):
        return True
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return before is not None and out_of_memory(before)
