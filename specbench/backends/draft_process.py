"""A draft in a process of its own, which drafts the next block while this process verifies the present one.

Knows processes, cores and devices, and how a pair's draft is read; must not know what is drafted, or how it is judged.
The rows of a chain lie in memory that both processes have; through the pipe go token ids.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from specbench.backends.base import unseen
from specbench.backends.forms import bounded
from specbench.backends.native import open_pair
from specbench.backends.weights import read_role
from specbench.decoding.drafters.while_verifying import Chain, Onwards, WhileVerifying
from specbench.decoding.loop import Speculate
from specbench.decoding.method_files import check_while_verifying
from specbench.decoding.protocols import Model
from specbench.decoding.randomness import Again, FromUniforms, SeededUniforms, Source
from specbench.errors import SpecbenchError, UnusableModelError, UsageError
from specbench.models.execution.processes import end_with_parent
from specbench.models.execution.threads import distinct_cores
from specbench.models.network import packed
from specbench.models.network.probe import model_of
from specbench.spec import RunSpec

Message = tuple[Any, ...]
LEAVING = 5.0  # seconds that a process has to end by itself


class DraftProcessError(SpecbenchError):
    """The process that drafts has ended."""

    exit_code = 6


@dataclass(frozen=True)
class Place:
    """Where a process computes: its device, and the core that it keeps to, where it has one to itself."""

    device: str
    core: int | None = None

    def take(self) -> None:
        """Let this process compute there, on a core with one thread."""
        if self.core is not None and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {self.core})
            torch.set_num_threads(1)


def two_places(device: str) -> tuple[Place, Place]:
    """Where the target computes, and where the draft: two cores, or two GPUs. UsageError where there is only one."""
    if torch.device(device).type == "cuda":
        if (found := torch.cuda.device_count()) < 2:
            raise UsageError(f"drafting while verifying needs two GPUs, and there is {found}: use --device cpu")
        return Place("cuda:0"), Place("cuda:1")
    cores = distinct_cores()
    if len(cores) < 2:
        raise UsageError(
            "drafting while verifying needs two cores, and this process may use one: give it another "
            "(taskset, the container's limit), or draft and verify one after the other"
        )
    return Place("cpu", cores[0]), Place("cpu", cores[1])


def read_draft(spec: RunSpec) -> Model:
    """The draft of a pair by itself, in the tier eager. UsageError where it is no network over the target's tokens."""
    native = open_pair([spec.with_(tier="eager")])
    role = native.pair.roles["draft"]
    if role.head is not None or native.pair.foreign:
        raise UsageError(
            f"{role.checkpoint.name} cannot draft while the target verifies: it reads the target's pass, or has "
            "another tokenizer; take a draft model of the target's tokenizer"
        )
    loaded, rollback = read_role(role, {}, native.width, native.device, unseen)
    network = packed.twins({"draft": loaded.model})["draft"] if native.tier.packed else loaded.model
    return model_of(rollback, network, native.law(spec), native.width)


@dataclass(frozen=True)
class Order:
    """What a drafting process must know: how to make its model, K, where it computes, whether its rows are one-hot."""

    make: Callable[[], Model]
    k: int
    place: Place
    certain: bool


@dataclass
class DraftProcess:
    """A `Partner` in another process. width: V, of the target's rows; they come in memory that both have, in float64,
    which holds those of every dtype as they are.

    seed: of the draws of the next text that begins, as the loop in one process would have it.
    """

    order: Order
    width: int
    seed: int = 0
    _rows: Tensor = field(init=False, repr=False)  # [1, K, V]
    _pipe: Connection = field(init=False, repr=False)
    _process: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Start it and wait until its model is read. DraftProcessError, UsageError or UnusableModelError."""
        fresh = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
        self._pipe, theirs = fresh.Pipe()
        self._rows = torch.zeros((1, self.order.k, self.width), dtype=torch.float64)
        self._rows.share_memory_()  # type: ignore[no-untyped-call]
        self._process = fresh.Process(target=work, args=(theirs, self.order, self._rows), daemon=True)
        self._process.start()
        theirs.close()  # else the end of the process would not be the end of what can be read
        self._heard()

    def begin(self, prompt: Sequence[int], new: int) -> None:
        self._tell("begin", list(prompt), new, self.seed)
        self._heard()

    def draft(self, tokens: Sequence[int], rng: Source) -> Chain:
        """See `Partner`; the draws are those of `seed`, not of `rng`."""
        self._tell("draft", list(tokens))
        ids, dtype, ready, finite = self._heard()
        return Chain(torch.tensor([ids]), self._rows.to(dtype, copy=True), ready, finite)

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(LEAVING)
        self._process.kill()
        self._process.join()

    def _tell(self, *message: Any) -> None:
        try:
            self._pipe.send(message)
        except OSError as error:
            raise self._dead() from error

    def _heard(self) -> Message:
        try:
            kind, *rest = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise self._dead() from error
        if kind == "refused":
            raise rest[0](rest[1])
        return tuple(rest)

    def _dead(self) -> DraftProcessError:
        self._process.join(LEAVING)
        code = self._process.exitcode
        how = f"by {signal.Signals(-code).name}" if code is not None and code < 0 else f"with exit code {code}"
        return DraftProcessError(
            f"the draft's process ended {how}, and the text that was being decoded with it: begin anew, or draft and "
            "verify one after the other"
        )


def parallel(name: str, method: Speculate, partner: DraftProcess) -> Speculate:
    """The method `name`, its drafts from a partner. UsageError for a method that does not draft so."""
    check_while_verifying(name)
    return Speculate(WhileVerifying(partner, partner.order.k), method.model, method.verifier, clock=method.clock)


def work(pipe: Connection, order: Order, rows: Tensor) -> None:
    """The other process: make the model, then answer, and go on between two answers, until the pipe is closed."""
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal tells both; the one that asks decides
    order.place.take()
    try:
        side = Side(pipe, order, Onwards(order.make(), order.k, torch.device(order.place.device)), rows)
        pipe.send(("ready",))
        while True:
            side.serve()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # nobody asks any more
    except (UsageError, UnusableModelError) as error:
        pipe.send(("refused", type(error), str(error)))


@dataclass
class Side:
    """What the drafting process keeps: the message that it read while it went on, and where its draws come from."""

    pipe: Connection
    order: Order
    onwards: Onwards
    rows: Tensor
    source: FromUniforms = field(init=False)
    waiting: Message | None = None

    def serve(self) -> None:
        """Answer one message; after a chain go on until the next comes that has no use for what is drawn."""
        (kind, *rest), self.waiting = self.waiting or self.pipe.recv(), None
        if kind == "begin":
            prompt, new, seed = rest
            self.onwards.draws = Again(SeededUniforms([seed], self.onwards.device))
            self.source = FromUniforms(self.onwards.draws, self.order.certain)
            self.onwards.begin(prompt, new)
            self.pipe.send(("begun",))
            return
        chain = self.onwards.draft(rest[0], self.source)
        self.rows.copy_(chain.rows)
        self.pipe.send(("drafted", chain.ids[0].tolist(), chain.rows.dtype, chain.ready, chain.finite))
        self.onwards.go_on(self.source, self.unwanted)

    def unwanted(self, expected: Sequence[int]) -> bool:
        """Whether a message has come that asks for something else than the chain after these tokens."""
        if self.waiting is None and self.pipe.poll():
            self.waiting = self.pipe.recv()
        return self.waiting is not None and self.waiting != ("draft", list(expected))


def started(spec: RunSpec, width: int, place: Place, certain: bool) -> DraftProcess:
    """A process that drafts with the draft of a spec's pair. width: of the target's rows; certain: they are one-hot."""
    check_while_verifying(spec.method)
    make, k = partial(read_draft, spec.with_(device=place.device)), bounded(spec).k
    return DraftProcess(Order(make, k, place, certain), width)
