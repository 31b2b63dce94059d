"""Processes that compute one network together, as torchrun starts them, and what they must agree on; and the end of one
that Python's multiprocessing has started.

All of them do the same, so that every pass of one is a pass of all. Whatever could differ between them (a number drawn
from a distribution, a time, free memory) is that of the first. Knows torch's process groups; must not know what is
computed, or who writes results.
"""

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Thread
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from specbench.errors import SpecbenchError, UsageError

T = TypeVar("T")
STARTED = "TORCHELASTIC_RUN_ID"  # torchrun tells its processes
PATIENCE = timedelta(hours=2)  # one may read weights for long while the others wait


def started() -> int:
    """How many processes torchrun has started; 1 where it has started none."""
    return int(os.environ["WORLD_SIZE"]) if STARTED in os.environ else 1


def number() -> int:
    """The number of this process on its machine, which is that of its GPU; 0 where there is one process."""
    return int(os.environ["LOCAL_RANK"]) if started() > 1 else 0


def joined() -> int:
    """How many processes compute together with this one, itself included."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def first() -> bool:
    """Whether this process is the one that decides, writes and prints."""
    return joined() == 1 or dist.get_rank() == 0


@contextmanager
def together() -> Iterator[None]:
    """Join the processes that torchrun has started; nothing where it has started none.

    What is wrong with a run is wrong in all of them: the first one alone says it.
    """
    if started() == 1:
        yield
        return
    join()
    try:
        yield
    except SpecbenchError as error:
        if first():
            raise
        raise SystemExit(error.exit_code) from None
    finally:
        dist.destroy_process_group()


def join() -> None:
    """Meet the other processes; each takes the GPU of its number."""
    if not torch.cuda.is_available():
        dist.init_process_group("gloo", timeout=PATIENCE)
        return
    if number() >= torch.cuda.device_count():
        raise UsageError(f"torchrun started {started()} processes for {torch.cuda.device_count()} GPUs: start fewer")
    torch.cuda.set_device(number())
    dist.init_process_group("cpu:gloo,cuda:nccl", timeout=PATIENCE)


def agreed(value: T) -> T:
    """What the first process says of a value that each of them has."""
    if joined() == 1:
        return value
    found = [value]
    dist.broadcast_object_list(found, src=0, device=torch.device("cpu"))
    return found[0]


def decided(decision: Tensor) -> Tensor:
    """The decisions of the first process, of whatever shape, in place of those of each."""
    if joined() > 1:
        decision = decision.contiguous()
        dist.broadcast(decision, src=0)
    return decision


def end_with_parent() -> None:
    """End this process at once when the one that started it has ended, however: nobody needs what it computes.

    The thread waits for an event of the system, and takes no time from what is measured.
    """
    parent = multiprocessing.parent_process()

    def wait() -> None:
        assert parent is not None
        parent.join()
        os._exit(1)

    if parent is not None:
        Thread(target=wait, daemon=True).start()
