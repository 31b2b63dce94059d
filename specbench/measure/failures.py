"""What can go wrong while a cell is measured, as data: its status, one line for its row, and a traceback for bugs.

Failures become data only outside the `except` block: an exception that is still held keeps its tensors alive.
"""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch

from specbench.decoding.rounds import NonFiniteError
from specbench.errors import SpecbenchError
from specbench.redact import redact
from specbench.results.cells import Status
from specbench.wording import first_line

T = TypeVar("T")


@dataclass(frozen=True)
class Failure:
    """How a cell ended that has no numbers; `detail` is the traceback of what nobody foresaw."""

    status: Status
    error: str
    detail: str = ""


def attempt(action: Callable[[], T]) -> T | Failure:
    """What `action` returns, or why it could not. An interrupt passes through."""
    try:
        return action()
    except Exception as error:  # whatever it is, it ends this cell; the others go on
        failure = failure_of(error)
    if failure.status == "oom" and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()  # the next cell has other shapes
    return failure


def failure_of(error: Exception) -> Failure:
    """The status and the line of an exception."""
    if isinstance(error, NonFiniteError):
        return Failure("nan", str(error))
    if isinstance(error, SpecbenchError):
        return Failure("error", str(error))
    if out_of_memory(error):
        return Failure(
            "oom", f"out of memory ({first_line(error)}): try a smaller dtype, shorter prompts or a smaller pair"
        )
    trace = redact("".join(traceback.format_exception(error)))  # of libraries, which quote URLs
    return Failure("error", f"unexpected {type(error).__name__}: {first_line(error)} (traceback: journal.jsonl)", trace)


def out_of_memory(error: Exception) -> bool:
    """Whether memory ran out; on a CPU torch has no exception of its own for it."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
