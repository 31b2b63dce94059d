"""Cells that share a baseline, during measurement: their samples so far, their status, and their observers.

The order of prompts and arms comes first, with their seeds, and when a run may stop early: equal on every machine.
"""

import random
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise, product
from typing import Any, TypeVar

import torch

from specbench.backends.engines.arms import SERVED
from specbench.data.prompts import Prompt, PromptSet
from specbench.decoding.rounds import NonFiniteError
from specbench.errors import SMALLER, SpecbenchError, TooLargeError, out_of_memory
from specbench.metrics import seed_from
from specbench.models.execution import machine
from specbench.results import statistics
from specbench.results.cells import UNFINISHED, Cell, Losslessness, Observer, Samples, Status
from specbench.results.machine import Peaks
from specbench.results.numbers import per_draw
from specbench.results.samples import Sample, speedup_of
from specbench.spec import BASELINE, RunSpec
from specbench.wording import first_line, redact

T = TypeVar("T")
EXECUTED = ("tier_resolved", "dtype_resolved")  # must agree among all samples of a cell
MIXED = "its samples were decoded differently, and the numbers would mix"
NOT_LOSSLESS = "greedy output differs from the baseline's beyond numerical noise: its numbers are void"

Past = Mapping[RunSpec, Cell]  # the cells of a continued run
REFILLS = 4  # prompts of a chunk per row
BLOCK = 8  # consecutive prompts that form one draw if a method carries state between prompts


@dataclass(frozen=True)
class Turn:
    """One chunk of prompts, decoded by all arms one after the other before the next turn begins.

    number: its position in time within the group; chunk: the index of the chunk; repeat: its earlier decodes.
    Later turns of conversations follow one by one after the turn in which they began.
    """

    number: int
    repeat: int
    chunk: int
    prompts: Sequence[Prompt]

    @property
    def earlier(self) -> int:
        """How many times the arms have decoded from this chunk before."""
        return self.repeat + self.prompts[0].turn - 1


def turns_of(spec: RunSpec, prompts: Sequence[Prompt]) -> list[Turn]:
    """The first turns of a group in order: every chunk once, then every chunk again for each repetition."""
    every = product(range(spec.repeat), enumerate(chunks_of(spec, prompts)))
    return [Turn(number, repeat, *chunk) for number, (repeat, chunk) in enumerate(every)]


def seed_of(spec: RunSpec, prompt: str, repeat: int, arm: str) -> int:
    """The seed of one decode: distinct for every seed, prompt, repetition and arm, and the same on every machine."""
    return seed_from(spec.seed, prompt, repeat, arm)


def side(arm: str) -> str:
    """The arm's name for seeding: all methods and lookaheads draw the same uniforms, the baseline others."""
    return arm if arm == BASELINE else "method"


def order_of(arms: Sequence[str], seed: int, earlier: int, chunk: int) -> list[str]:
    """A random order of the arms, reversed for every next chunk and repeated decode, so that no arm is always early.

    Equal in every process, so that a continued run keeps its order.
    """
    order = sorted(arms)
    random.Random(f"{seed} {chunk // 2}").shuffle(order)
    return order if (chunk + earlier) % 2 == 0 else order[::-1]


def chunks_of(spec: RunSpec, prompts: Sequence[Prompt]) -> list[Sequence[Prompt]]:
    """The prompts of every turn of a cell."""
    served = spec.backend in SERVED
    least = per_draw(spec.batch, spec.arrivals, served) if served or spec.arrivals is not None else None
    return chunks(prompts, spec.batch, least)


def chunks(prompts: Sequence[T], rows: int, least: int | None = None) -> list[Sequence[T]]:
    """The prompts of every turn: one by one, or if `rows` are decoded together, at most four per row.

    Prompts of a chunk share their time, so intervals are over chunks. There are at least five chunks if each can have
    `least` prompts (by default, enough to fill the rows), and fewer only with fewer prompts. Chunks have about equal
    length, and where possible fill the rows: an idle row waiting for the others costs as much as a working one.
    """
    if rows == 1:
        return [prompts[i : i + 1] for i in range(len(prompts))]
    count = max(-(-len(prompts) // (REFILLS * rows)), min(statistics.FEWEST, len(prompts) // (least or rows)), 1)
    unit = rows if least is None else 1
    units = -(-len(prompts) // unit)
    ends = [min(i * units // count * unit, len(prompts)) for i in range(count + 1)]
    return [prompts[a:b] for a, b in pairwise(ends)]


def blocks_of(prompts: Sequence[Prompt]) -> dict[str, str]:
    """The block of every prompt, by its name: runs of at most `BLOCK` prompts, and at least five if possible.

    If one prompt changes the drafts for the next, neighbouring prompts are not independent draws.
    """
    count = max(-(-len(prompts) // BLOCK), min(statistics.FEWEST, len(prompts)))
    return {prompt.id: f"block {place * count // len(prompts)}" for place, prompt in enumerate(prompts)}


def checkpoints(turns: int) -> Iterator[int]:
    """When `until_ci` may check: after 20, 30, 45, 67 … turns. Checking after every prompt would stop on lucky ones."""
    look = statistics.ENOUGH
    while look < turns:
        yield look
        look += look // 2


@dataclass(frozen=True)
class Failure:
    """The failure that ended a cell; `detail` is the traceback of an unexpected exception.

    `cause` is the exception, or None for an interrupt or cells that had ended before. Its frames' variables
    are cleared, as they would keep tensors alive.
    """

    status: Status
    error: str
    detail: str = ""
    cause: Exception | None = field(default=None, compare=False, repr=False)


INTERRUPTED = Failure("partial", "interrupted; continue with --resume")


@dataclass(frozen=True)
class Job:
    """A cell to measure: its spec, its prompts, and what both resolved to."""

    spec: RunSpec
    prompts: PromptSet
    resolved: dict[str, Any]


@dataclass
class Group:
    """Cells with one baseline; `live` has the samples of unfinished cells, `ids` the prompts of all turns.

    Observers see every change in order, so data stored by the first is kept if a later one fails. A cell that
    runs out of memory is set `aside` with its samples, to be measured again with only its baseline (`alone`).
    lost: the failed arms.
    """

    jobs: Sequence[Job]
    observers: Sequence[Observer]
    past: Past
    alone: bool = False
    aside: dict[RunSpec, Failure] = field(default_factory=dict, init=False)
    lost: set[str] = field(default_factory=set, init=False)
    cells: dict[RunSpec, Cell] = field(init=False)
    live: dict[RunSpec, list[Sample]] = field(init=False)
    ids: dict[tuple[str, int], tuple[int, ...]] = field(init=False)  # by prompt id and turn number

    def __post_init__(self) -> None:
        before = {job.spec: self.past.get(job.spec) for job in self.jobs}
        self.cells = {job.spec: before[job.spec] or Cell(job.spec, job.resolved) for job in self.jobs}
        unfinished = [spec for spec, cell in before.items() if cell is None or cell.status in UNFINISHED]
        self.live = {spec: list(self.cells[spec].samples) for spec in unfinished}
        self.ids = self.prompts.ids

    @property
    def baseline(self) -> RunSpec:
        return self.jobs[0].spec.baseline

    @property
    def prompts(self) -> PromptSet:
        return self.jobs[0].prompts

    @property
    def arms(self) -> dict[str, RunSpec]:
        """The arms that decode every prompt, by name: the baseline, and one method per unfinished cell."""
        return {BASELINE: self.baseline, **{spec.key: spec for spec in self.live}}

    @cached_property
    def by_turn(self) -> bool:
        """Whether the prompts of a turn are one draw, as they share their time or the load of a server.

        Requests are timed one by one: in few turns every prompt is a draw, and no interval holds what turns differ in.
        """
        spec = self.baseline
        own = spec.backend in SERVED and spec.arrivals is None
        return spec.batch > 1 and not (own and len(chunks_of(spec, self.prompts.prompts)) < statistics.FEWEST)

    @cached_property
    def blocks(self) -> dict[str, str]:
        """See `blocks_of`."""
        return blocks_of(self.prompts.prompts)

    def needing(self, arm: str) -> list[RunSpec]:
        """The cells that end if an arm fails: its own, or all if it is the baseline."""
        return [spec for spec in self.live if arm in {BASELINE, spec.key}]

    def has(self, turn: Turn) -> bool:
        """Whether every cell has the samples of a turn, so that a continued run skips it."""
        return all(any(s.turn == turn.number for s in samples) for samples in self.live.values())

    def answers(self, turn: Turn) -> dict[str, Sequence[int]]:
        """The baseline's output in a turn, by prompt."""
        samples = next(iter(self.live.values()))
        return {s.prompt: s.baseline.tokens for s in samples if s.turn == turn.number}

    def narrow(self, turns: int, prompts: int) -> bool:
        """Whether all intervals are as narrow as requested, checked only after 20, 30, 45 … prompts have ended.

        turns: how many turns that took; a conversation has several.
        """
        goal = self.baseline.until_ci
        if goal is None or prompts not in checkpoints(len(self.prompts.prompts)):
            return False
        intervals = [speedup_of([s for s in samples if s.turn < turns]) for samples in self.live.values()]
        return machine.agreed(all(statistics.half_width(interval) <= goal for interval in intervals))

    def begin(self) -> None:
        """Announce the cells to be measured."""
        most = self.prompts.turns * self.baseline.repeat
        for observer in self.observers:
            observer.begin([self.cells[spec] for spec in self.live], most)

    def preparing(self, spec: RunSpec | None) -> None:
        for observer in self.observers:
            observer.preparing(spec)

    def comparing(self, done: int, texts: int) -> None:
        for observer in self.observers:
            observer.comparing(done, texts)

    def resolve(self, columns: Mapping[str, Any]) -> None:
        """Record what the pair resolved to in preparation, as columns of the remaining cells.

        A cell with samples of another tier or dtype, from the continued run, ends with those.
        """
        for spec in list(self.live):
            if self.live[spec] and (said := differing(self.cells[spec].resolved, columns)):
                self.fail([spec], Failure("partial", f"{MIXED} ({said}): start a new run"))
        known = {spec: self.cells[spec] for spec in self.live}
        renewed = {spec: replace(cell, resolved={**cell.resolved, **columns}) for spec, cell in known.items()}
        if changed := [cell for spec, cell in renewed.items() if cell.resolved != known[spec].resolved]:
            for observer in self.observers:
                observer.resolved(changed)
        self.cells |= renewed

    def save(self, samples: Samples) -> None:
        for observer in self.observers:
            observer.turn(samples)
        for spec, found in samples.items():
            self.live[spec] += found

    def finish(self, spec: RunSpec, lossless: Losslessness, ready: tuple[float, float], peaks: Peaks) -> None:
        """End a cell whose prompts are all decoded."""
        peaks = peaks.higher(self.cells[spec].peaks)  # include those before an interrupt
        found: dict[str, Any] = {"lossless": lossless, "ready": ready, "peaks": peaks}
        cell = replace(self.cells[spec], samples=self.live[spec], status="ok", error="", **found)
        void = lossless.verdict == "MISMATCH"
        self._end(replace(cell, status="mismatch", error=NOT_LOSSLESS) if void else cell)

    def lose(self, arm: str, failure: Failure) -> None:
        """After an arm failed, end the cells that need it, or set them aside."""
        self.lost.add(arm)
        for spec in self.needing(arm):
            if failure.status == "oom" and not self.alone:
                self.cells[spec] = replace(self.cells[spec], samples=self.live.pop(spec), status="partial")
                self.aside[spec] = failure
            else:
                self.fail([spec], again(failure) if failure.status == "oom" else failure)

    def by_itself(self, spec: RunSpec) -> "Group":
        """A group with one cell that was set aside."""
        (job,) = (job for job in self.jobs if job.spec == spec)
        return Group([job], self.observers, {spec: self.cells[spec]}, alone=True)

    def fail(self, specs: Sequence[RunSpec], failure: Failure) -> None:
        """End some cells with their samples so far."""
        for spec in specs:
            self._end(ended(replace(self.cells[spec], samples=self.live[spec]), failure))

    def _end(self, cell: Cell) -> None:
        self.cells[cell.spec] = cell
        del self.live[cell.spec]
        for observer in self.observers:
            observer.end(cell)


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """How the execution differs from before, as far as known; empty if it is equal or unknown."""
    both = [(name, before.get(name), now.get(name)) for name in EXECUTED]
    return ", ".join(f"{name} {old}, now {new}" for name, old, new in both if old and new and old != new)


def give_up(specs: Sequence[RunSpec], failure: Failure, observers: Sequence[Observer], past: Past) -> list[Cell]:
    """End the cells of an unmeasurable pair; those of a continued run that have ended are unchanged."""
    cells = []
    for spec in specs:
        cell = past.get(spec) or Cell(spec, {}, status="skipped")
        if cell.status in UNFINISHED:  # its samples may be continued once the pair is measurable
            cell = ended(cell, replace(failure, status="partial") if cell.samples else failure)
            for observer in observers:
                observer.end(cell)
        cells.append(cell)
    return cells


def ended(cell: Cell, failure: Failure) -> Cell:
    """A cell ended by a failure; if interrupted before its first sample, its status is skipped."""
    status = "skipped" if failure.status == "partial" and not cell.samples else failure.status
    return replace(cell, status=status, error=failure.error, detail=failure.detail)


def attempt(action: Callable[[], T]) -> T | Failure:
    """The result of `action`, or its failure. An interrupt propagates."""
    found: list[T | Failure] = []
    with caught(found.append):
        found.append(action())
    return found[0]


@contextmanager
def caught(lost: Callable[[Failure], None]) -> Iterator[None]:
    """Report exceptions as failures; an interrupt propagates."""
    try:
        yield
        return
    except Exception as error:  # any error ends this cell only; the others continue
        failure = failure_of(error)
        if machine.joined() > 1 and (failure.status == "oom" or failure.detail):
            raise  # it may concern one process only, and the others would wait forever
    release(failure.cause)
    if failure.status == "oom":
        give_back()  # the next cell has other shapes
    lost(failure)


def give_back() -> None:
    """Release memory that the device's allocator caches."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def again(failure: Failure) -> Failure:
    """The failure of a cell that was measured again alone."""
    return replace(failure, error=f"by itself as well: {failure.error}")


def release(error: BaseException | None) -> None:
    """Clear the frame variables of an exception and its causes."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def failure_of(error: Exception) -> Failure:
    """The status and message of an exception."""
    if isinstance(error, NonFiniteError):
        return Failure("nan", str(error), cause=error)
    if isinstance(error, SpecbenchError):
        return Failure("oom" if isinstance(error, TooLargeError) else "error", str(error), cause=error)
    if out_of_memory(error):
        return Failure("oom", f"out of memory ({first_line(error)}): {SMALLER}", cause=error)
    trace = redact("".join(traceback.format_exception(error)))  # libraries quote URLs
    line = f"unexpected {type(error).__name__}: {first_line(error)} (traceback: journal.jsonl)"
    return Failure("error", line, trace, error)
