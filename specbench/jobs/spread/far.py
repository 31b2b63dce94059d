"""What a worker does: check, load and measure one cell, and say everything as it happens.

Knows how a cell is measured and what may be mixed in one; must not know what kind of cluster it is part of.
"""

import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

import torch

from specbench.jobs.apart import Event, Telling
from specbench.measure.failures import Failure, failure_of
from specbench.measure.group import Past
from specbench.measure.pair import Pair, Unusable, prepared, resolved_pair
from specbench.models.execution import threads
from specbench.spec import RunSpec

COUNTS = ("threads", "torch", "transformers", "specbench", "fingerprint")  # columns that all samples of a cell share


@dataclass(frozen=True)
class Home:
    """What a worker has in common with the process that sends cells: the folder that relative names are looked for
    in, and what its environment says of threads."""

    folder: str
    threads: Mapping[str, str]

    @classmethod
    def here(cls) -> "Home":
        return cls(os.getcwd(), {name: os.environ[name] for name in threads.CHOSEN if os.environ.get(name)})

    def settle(self) -> None:
        """Make this process like that one, as far as its node allows. A cluster may have set other threads."""
        if Path(self.folder).is_dir():
            os.chdir(self.folder)
        for name in threads.CHOSEN:
            os.environ.pop(name, None)
        os.environ.update(self.threads)
        torch.set_num_threads(int(self.threads.get("OMP_NUM_THREADS") or len(threads.processors())))


def said(spec: RunSpec, past: Past, home: Home, gpus: Sequence[object]) -> Iterator[Event]:
    """Everything that there is to say of a cell while it is measured, by a thread beside the one that says it.

    gpus: those that the cluster has given to this worker. Raises what is unexpected.
    """
    yield "where", ({"node": platform.node(), "node_device": ", ".join(f"cuda:{gpu}" for gpu in gpus) or "cpu"},)
    events = SimpleQueue[Event | None]()
    broken: list[Failure] = []

    def work() -> None:
        try:
            home.settle()
            measure(spec, past, events.put)
        except Exception as error:  # whatever it is: it is said where the journal is written
            broken.append(replace(failure_of(error), cause=None))
        finally:
            events.put(None)

    Thread(target=work, daemon=True).start()
    while (event := events.get()) is not None:
        yield event
    for failure in broken:
        yield "failed", (failure,)


def measure(spec: RunSpec, past: Past, send: Callable[[Event], None]) -> None:
    """Measure a cell, going on with what is known of it where that was measured on a machine like this one."""
    telling, pair = Telling(send), prepared([spec])
    if (wrong := changed(pair, spec, past)) is not None:
        found: Any = wrong
    else:
        found, _ = pair.measure([telling], past if same_machine(pair, spec, past) else {}, telling.note)
    if isinstance(found, Failure):
        telling.tell("failed", replace(found, cause=None))


def changed(pair: Pair, spec: RunSpec, past: Past) -> Failure | None:
    """Why a cell cannot be gone on with at all: its prompts are others here."""
    if isinstance(pair, Unusable) or spec not in past or not past[spec].samples:
        return None
    if past[spec].resolved.get("prompts_sha256") == pair.prompts[spec].sha256:
        return None
    return Failure("partial", f"the prompts of {spec.dataset} are not those that it was begun with: start a new run")


def same_machine(pair: Pair, spec: RunSpec, past: Past) -> bool:
    """Whether the samples of a cell may stand beside those that are measured here; else it begins anew."""
    if isinstance(pair, Unusable) or spec not in past:
        return True
    here = resolved_pair(pair.backend)
    return all(past[spec].resolved.get(name) == here[name] for name in COUNTS)
