"""Ray as a cluster: its nodes, one task per cell, and the worker: check, load and measure one cell.

Ray itself prevents two timed cells on one device, even of different runs: a GPU cell requests its GPU, a CPU
cell all processors of its node.
"""

import logging
import os
import platform
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Any

import torch

from specbench.decoding.method_files import content_sha256
from specbench.errors import UsageError
from specbench.jobs.cluster import Lost, Over, Seat
from specbench.jobs.subprocess import Event, Telling
from specbench.measure.group import Failure, Past, failure_of
from specbench.measure.pair import Pair, Unusable, resolved_pair
from specbench.measure.plan import prepared
from specbench.measure.runner import local_units
from specbench.models.checkpoints.names import install
from specbench.models.execution import machine
from specbench.spec import RunSpec, methods_of
from specbench.wording import first_line

PATIENCE = 2.0  # seconds between polls for available nodes
COUNTS = ("threads", "torch", "transformers", "specbench", "fingerprint")  # columns that all samples of a cell share


@dataclass(frozen=True)
class Home:
    """Settings a worker takes from the driver: the folder for relative names, and the environment's thread counts."""

    folder: str
    threads: Mapping[str, str]

    @classmethod
    def here(cls) -> "Home":
        return cls(os.getcwd(), {name: os.environ[name] for name in machine.CHOSEN if os.environ.get(name)})

    def settle(self) -> None:
        """Apply the driver's settings, as far as the node allows. A cluster may have set other thread counts."""
        if Path(self.folder).is_dir():
            os.chdir(self.folder)
        for name in machine.CHOSEN:
            os.environ.pop(name, None)
        os.environ.update(self.threads)
        torch.set_num_threads(int(self.threads.get("OMP_NUM_THREADS") or len(machine.processors())))


def work(spec: RunSpec, past: Past, home: Home) -> Iterator[Event]:
    """The Ray task: yields the events of its cell."""
    import ray

    yield from said(spec, past, home, ray.get_gpu_ids())


class RayCluster:
    """The cluster that Ray finds (RAY_ADDRESS, or one started on this machine); else this machine alone.

    Connects on entry and disconnects on exit, unless the process was already connected.
    """

    def __init__(self) -> None:
        if find_spec("ray") is None:
            raise UsageError(f"--executor ray needs ray: {install('ray')}")
        self._connected_here = False
        self._home = Home.here()

    def __enter__(self) -> "RayCluster":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # disable usage reports
        import ray

        self._connected_here = not ray.is_initialized()
        if self._connected_here:
            try:
                ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, RuntimeError, ValueError) as error:
                where = os.environ.get("RAY_ADDRESS") or "this machine"
                raise UsageError(f"--executor ray: cannot use the cluster of {where}: {first_line(error)}") from error
            from ray._private import worker

            vars(worker)["_worker_logs_enabled"] = False  # it would print messages about lost workers on stdout
        every: Any = {"num_returns": "streaming", "max_retries": 0}
        # A process that has used one GPU would keep using it, whichever Ray assigns next.
        self._tasks = {"cpu": ray.remote(**every)(work), "cuda": ray.remote(**every, max_calls=1)(work)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import ray

        if self._connected_here:
            ray.shutdown()

    def seats(self) -> Sequence[Seat]:
        """A seat for every GPU, and one for the processors of every node."""
        found = []
        for node in living():
            name, host = node["NodeID"], node["NodeManagerHostname"]
            gpus = int(node["Resources"].get("GPU", 0))
            found += [Seat(name, host, "cuda", number) for number in range(gpus)]
            found += [Seat(name, host, "cpu")] if node["Resources"].get("CPU") else []
        return found

    def send(self, seat: Seat, spec: RunSpec, past: Past) -> Hashable:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        on_gpu = seat.device == "cuda"
        processors = next((node["Resources"].get("CPU", 0) for node in living() if node["NodeID"] == seat.node), 1)
        task: Hashable = (
            self._tasks[seat.device]
            .options(
                num_gpus=int(on_gpu),
                num_cpus=min(1, processors) if on_gpu else processors,
                scheduling_strategy=NodeAffinitySchedulingStrategy(seat.node, soft=False),
            )
            .remote(spec, past, self._home)
        )
        return task

    def heard(self, tasks: Sequence[Hashable]) -> Sequence[tuple[Hashable, Event | Lost | Over]]:
        import ray

        ready, _ = ray.wait(list(tasks), num_returns=1, timeout=PATIENCE)
        return [(task, next_of(task)) for task in ready]

    def cancel(self, tasks: Sequence[Hashable]) -> None:
        import ray

        for task in tasks:
            ray.cancel(task, force=True)


def living() -> list[dict[str, Any]]:
    """Live nodes according to Ray."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def next_of(task: Any) -> Event | Lost | Over:
    """The next event of a task, or how it ended."""
    import ray
    from ray.exceptions import RayError, RayTaskError

    try:
        event: Event = ray.get(next(task))
    except StopIteration:
        return Over()
    except RayTaskError as error:
        return Over(Failure("error", f"its worker failed: {first_line(error.cause or error)}", str(error)))
    except RayError as error:  # the process, its node or its result is lost
        return Lost(first_line(error))
    return event


def said(spec: RunSpec, past: Past, home: Home, gpus: Sequence[object]) -> Iterator[Event]:
    """Yield the events of a cell while another thread measures it.

    gpus: those assigned to this worker. Raises unexpected errors.
    """
    yield "where", ({"node": platform.node(), "node_device": ", ".join(f"cuda:{gpu}" for gpu in gpus) or "cpu"},)
    events = SimpleQueue[Event | None]()
    broken: list[Failure] = []

    def work() -> None:
        try:
            home.settle()
            measure(spec, past, events.put)
        except Exception as error:  # any error is reported to the process with the journal
            broken.append(replace(failure_of(error), cause=None))
        finally:
            events.put(None)

    Thread(target=work, daemon=True).start()
    while (event := events.get()) is not None:
        yield event
    for failure in broken:
        yield "failed", (failure,)


def measure(spec: RunSpec, past: Past, send: Callable[[Event], None]) -> None:
    """Measure a cell, continuing from known samples if they are from an equivalent machine."""
    telling, pair = Telling(send), prepared([spec])
    if (wrong := changed(pair, spec, past)) is not None:
        found: Any = wrong
    else:
        (unit,) = local_units([pair], telling.note)
        found, _ = unit.measure([telling], past if same_machine(pair, spec, past) else {}, telling.note)
    if isinstance(found, Failure):
        telling.tell("failed", replace(found, cause=None))


def changed(pair: Pair, spec: RunSpec, past: Past) -> Failure | None:
    """Why a cell cannot be continued at all: its prompts or method differ here."""
    if isinstance(pair, Unusable) or spec not in past or not past[spec].samples:
        return None
    if (now := content_sha256(methods_of(spec))) != past[spec].resolved.get("method_sha256", now):
        return Failure("partial", f"{spec.method} is not what it was begun with: start a new run")
    if past[spec].resolved.get("prompts_sha256") == pair.prompts[spec].sha256:
        return None
    return Failure("partial", f"the prompts of {spec.dataset} are not those that it was begun with: start a new run")


def same_machine(pair: Pair, spec: RunSpec, past: Past) -> bool:
    """Whether a cell's samples may be combined with ones measured here; otherwise it starts over."""
    if isinstance(pair, Unusable) or spec not in past:
        return True
    here = resolved_pair(pair.backend)
    return all(past[spec].resolved.get(name) == here[name] for name in COUNTS)
