"""What can go wrong while a cell is measured, as data: its status, one line for its row, and a traceback for bugs.

A failure keeps its exception, for a job that ends with it, but none of the variables of the frames that it went
through: they would keep tensors alive.
"""

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch

from specbench.decoding.rounds import NonFiniteError
from specbench.errors import SMALLER, SpecbenchError, TooLargeError, out_of_memory
from specbench.models.execution import processes
from specbench.redact import redact
from specbench.results.cells import Status
from specbench.wording import first_line

T = TypeVar("T")


@dataclass(frozen=True)
class Failure:
    """How a cell ended that has no numbers; `detail` is the traceback of an unexpected exception.

    `cause` is the exception, None where there was none: an interrupt, or cells that had ended before.
    """

    status: Status
    error: str
    detail: str = ""
    cause: Exception | None = field(default=None, compare=False, repr=False)


def attempt(action: Callable[[], T]) -> T | Failure:
    """What `action` returns, or why it could not. An interrupt passes through."""
    try:
        return action()
    except Exception as error:  # whatever it is, it ends this cell; the others go on
        failure = failure_of(error)
        if processes.joined() > 1 and (failure.status == "oom" or failure.detail):
            raise  # it may be that of one process alone, for which the others would wait for ever
    release(failure.cause)
    if failure.status == "oom":
        give_back()  # the next cell has other shapes
    return failure


def give_back() -> None:
    """Leave to others what the allocator of the device keeps for later."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def again(failure: Failure) -> Failure:
    """The failure of a cell that was measured a second time, by itself."""
    return replace(failure, error=f"by itself as well: {failure.error}")


def release(error: BaseException | None) -> None:
    """Clear the variables of all frames of an exception and of those that led to it."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def failure_of(error: Exception) -> Failure:
    """The status and the line of an exception."""
    if isinstance(error, NonFiniteError):
        return Failure("nan", str(error), cause=error)
    if isinstance(error, SpecbenchError):
        return Failure("oom" if isinstance(error, TooLargeError) else "error", str(error), cause=error)
    if out_of_memory(error):
        return Failure("oom", f"out of memory ({first_line(error)}): {SMALLER}", cause=error)
    trace = redact("".join(traceback.format_exception(error)))  # of libraries, which quote URLs
    line = f"unexpected {type(error).__name__}: {first_line(error)} (traceback: journal.jsonl)"
    return Failure("error", line, trace, error)
