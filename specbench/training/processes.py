"""The processes that train together, one per device, as `accelerate launch` or `torchrun` starts them; usually one."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar, cast

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list

T = TypeVar("T")


def state(device: str = "auto") -> PartialState:
    """The state of this process; on a machine with GPUs it has its own device, unless the CPU is requested."""
    return PartialState(cpu=device == "cpu" or not torch.cuda.is_available())


def first() -> bool:
    """Whether this process writes files and reports to the user."""
    return bool(state().is_main_process)


@contextmanager
def first_before_others() -> Iterator[bool]:
    """Run a block in the first process before the others; yields whether this is the first."""
    with state().main_process_first():
        yield first()


def agreed(value: T) -> T:
    """The first process's value: all must decide alike, and devices may round differently."""
    if state().num_processes == 1:
        return value
    return cast(T, broadcast_object_list([value])[0])
