"""Ray as a cluster: its nodes, one task per cell, and how it says that a worker is gone.

Knows Ray; must not know which cell goes where, or how one is measured. Ray itself keeps two timed cells off one device,
also those of two runs: a cell on a GPU asks for that GPU, one on the CPU for all processors of its node.
"""

import logging
import os
from collections.abc import Hashable, Iterator, Sequence
from importlib.util import find_spec
from types import TracebackType
from typing import Any

from specbench.errors import UsageError
from specbench.jobs.apart import Event
from specbench.jobs.spread.cluster import Lost, Over, Seat
from specbench.jobs.spread.far import Home, said
from specbench.measure.failures import Failure
from specbench.measure.group import Past
from specbench.models.checkpoints.names import install
from specbench.spec import RunSpec
from specbench.wording import first_line

PATIENCE = 2.0  # seconds between two looks at which nodes there are


def work(spec: RunSpec, past: Past, home: Home) -> Iterator[Event]:
    """The task: what a worker says of its cell."""
    import ray

    yield from said(spec, past, home, ray.get_gpu_ids())


class RayCluster:
    """The cluster that Ray finds (RAY_ADDRESS, or one that was started on this machine); else this machine alone.

    Entering it connects and leaving it disconnects, unless the process was connected before.
    """

    def __init__(self) -> None:
        if find_spec("ray") is None:
            raise UsageError(f"--executor ray needs ray: {install('ray')}")
        self._connected_here = False
        self._home = Home.here()

    def __enter__(self) -> "RayCluster":
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would report to its makers
        import ray

        self._connected_here = not ray.is_initialized()
        if self._connected_here:
            try:
                ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, RuntimeError, ValueError) as error:
                where = os.environ.get("RAY_ADDRESS") or "this machine"
                raise UsageError(f"--executor ray: cannot use the cluster of {where}: {first_line(error)}") from error
            from ray._private import worker

            vars(worker)["_worker_logs_enabled"] = False  # it would print what it knows of lost workers on stdout
        every: Any = {"num_returns": "streaming", "max_retries": 0}
        # A process that has used one GPU would go on with that, whichever Ray gives it next.
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
    """Ray's word on the nodes that live."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def next_of(task: Any) -> Event | Lost | Over:
    """The next thing that a task says, or how it ended."""
    import ray
    from ray.exceptions import RayError, RayTaskError

    try:
        event: Event = ray.get(next(task))
    except StopIteration:
        return Over()
    except RayTaskError as error:
        return Over(Failure("error", f"its worker failed: {first_line(error.cause or error)}", str(error)))
    except RayError as error:  # the process, its node, or what it had said is gone
        return Lost(first_line(error))
    return event
