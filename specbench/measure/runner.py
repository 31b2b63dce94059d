"""The runner: groups of cells in, samples out. All arms decode a prompt (or a batch) in turn, on the same weights.

Knows backends, prompts and observers through their protocols; must not know the command line, files or tables.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle, product
from types import MappingProxyType
from typing import Any, Protocol

from specbench.backends.base import Backend, Decode
from specbench.data.prompts import Prompt, PromptSet
from specbench.measure import lossless
from specbench.measure.failures import Failure, attempt
from specbench.measure.lossless import losslessness_of
from specbench.measure.order import checkpoints, chunks, order_of, seed_of, side
from specbench.metrics import Trace
from specbench.results import statistics
from specbench.results.cells import UNFINISHED, Cell, Sample, speedup_of
from specbench.results.environment import load_average
from specbench.spec import BASELINE, RunSpec
from specbench.wording import grouped

INTERRUPTED = Failure("partial", "interrupted; go on with --resume")
Past = Mapping[RunSpec, Cell]


class Observer(Protocol):
    """Sees everything as it is measured: it may store and draw, it cannot change a number."""

    def begin(self, cells: Sequence[Cell], turns: int) -> None:
        """A group begins: its cells, and how many prompts it decodes at most, repetitions counted."""
        ...

    def preparing(self, spec: RunSpec | None) -> None:
        """An arm of the group is about to be made ready, which may take minutes of compiling; None: all are."""
        ...

    def turn(self, samples: Mapping[RunSpec, Sequence[Sample]]) -> None:
        """All arms have decoded the prompts of a turn: one, or those of a batch, the same for all cells."""
        ...

    def end(self, cell: Cell) -> None:
        """A cell has ended, one way or another."""
        ...


@dataclass(frozen=True)
class Job:
    """A cell to be measured: its spec, its prompts, and what both resolved to."""

    spec: RunSpec
    prompts: PromptSet
    resolved: dict[str, Any]


def measure(
    jobs: Sequence[Job],
    backend: Backend,
    scores: lossless.Scores,
    observer: Observer,
    past: Past = MappingProxyType({}),
) -> tuple[list[Cell], KeyboardInterrupt | None]:
    """Measure every job, those with a common baseline together. What fails ends its own cell and nothing else.

    `past` holds the cells of a run that is continued: finished ones are kept, the turns of others are not repeated.
    Returns the cells, and the interrupt if there was one; what an interrupt kept from beginning is `skipped`.
    """
    cells: list[Cell] = []
    stop: KeyboardInterrupt | None = None
    for group in grouped(jobs, lambda job: job.spec.baseline):
        race = Race(group, backend, scores, observer, past)
        if stop is None:
            stop = race.run()
        else:
            race.fail(list(race.live), INTERRUPTED)
        cells += race.cells.values()
    return cells, stop


@dataclass
class Race:
    """The cells of one group while they are measured. `live` are those that have not ended."""

    jobs: Sequence[Job]
    backend: Backend
    scores: lossless.Scores
    observer: Observer
    past: Past
    cells: dict[RunSpec, Cell] = field(init=False)
    live: dict[RunSpec, list[Sample]] = field(init=False)
    arms: dict[str, Decode] = field(init=False, default_factory=dict)
    ready: dict[str, float] = field(init=False, default_factory=dict)  # seconds to build, compile or capture an arm

    def __post_init__(self) -> None:
        self.baseline, self.prompts = self.jobs[0].spec.baseline, self.jobs[0].prompts
        before = {job.spec: self.past.get(job.spec) for job in self.jobs}
        self.cells = {job.spec: before[job.spec] or Cell(job.spec, job.resolved) for job in self.jobs}
        unfinished = [spec for spec, cell in before.items() if cell is None or cell.status in UNFINISHED]
        self.live = {spec: list(self.cells[spec].samples) for spec in unfinished}

    def run(self) -> KeyboardInterrupt | None:
        """Measure what is left to measure; an interrupt is returned, with what was measured kept."""
        if not self.live:
            return None
        spec = self.baseline
        try:
            self.observer.begin([self.cells[s] for s in self.live], len(self.prompts.prompts) * spec.repeat)
            self.prepare()
            parts = chunks(self.prompts.prompts, spec.batch)
            for turn, (repeat, number) in enumerate(product(range(spec.repeat), range(len(parts)))):
                if not self.live or self.narrow(turn):
                    break
                self.turn(turn, repeat, number, parts[number])
            for one in list(self.live):
                self.finish(one)
        except KeyboardInterrupt as stop:
            self.fail(list(self.live), INTERRUPTED)
            return stop
        finally:
            self.arms.clear()  # their caches would stay on the device while the next group allocates its own
        return None

    def prepare(self) -> None:
        """Build every arm and decode the first prompts with it, uncounted: first calls allocate and choose kernels."""
        for arm, spec in {BASELINE: self.baseline, **{spec.key: spec for spec in self.live}}.items():
            if not self.depend_on(arm):
                continue  # the baseline has failed
            self.observer.preparing(spec)
            ready = attempt(partial(self.warmed_up, arm, spec))
            if isinstance(ready, Failure):
                self.fail(self.depend_on(arm), ready)
            else:
                self.arms[arm] = ready
        self.observer.preparing(None)

    def warmed_up(self, arm: str, spec: RunSpec) -> Decode:
        began = time.perf_counter()
        decode = self.backend.prepare(spec, max(len(prompt.ids) for prompt in self.prompts.prompts))
        self.ready[arm] = time.perf_counter() - began
        every = cycle(self.prompts.prompts)
        for number in range(spec.warmup):
            some = [next(every) for _ in range(spec.batch)]
            decode([p.ids for p in some], [seed_of(spec, p.id, number, f"warm-up {side(arm)}") for p in some])
        return decode

    def depend_on(self, arm: str) -> list[RunSpec]:
        """The cells that end when an arm fails: its own, and all of them when it is the baseline."""
        return [spec for spec in self.live if arm in {BASELINE, spec.key}]

    def turn(self, turn: int, repeat: int, number: int, prompts: Sequence[Prompt]) -> None:
        """Decode the prompts of a turn with every arm, unless the journal has them already."""
        if all(any(s.turn == turn for s in samples) for samples in self.live.values()):
            return
        load = load_average()
        order = order_of([BASELINE, *(spec.key for spec in self.live)], self.baseline.seed, repeat, number)
        traces = self.decoded(order, prompts, repeat)
        cluster = f"batch {number}" if self.baseline.batch > 1 else ""

        def sample(spec: RunSpec, prompt: Prompt, baseline: Trace, method: Trace) -> Sample:
            about = (prompt.id, prompt.category, repeat, len(prompt.ids), turn)
            places = (order.index(BASELINE), order.index(spec.key))
            return Sample(*about, places, load, baseline, method, cluster)

        samples = {
            spec: [sample(spec, *all_) for all_ in zip(prompts, traces[BASELINE], traces[spec.key], strict=True)]
            for spec in self.live
        }
        if samples:
            self.observer.turn(samples)
        for spec, found in samples.items():
            self.live[spec] += found

    def decoded(self, order: Sequence[str], prompts: Sequence[Prompt], repeat: int) -> dict[str, list[Trace]]:
        """What every arm that is still alive makes of the prompts; an arm that fails ends its cells."""
        traces: dict[str, list[Trace]] = {}
        for arm in order:
            if not self.depend_on(arm):
                continue  # the baseline has failed in this very turn
            seeds = [seed_of(self.baseline, prompt.id, repeat, side(arm)) for prompt in prompts]
            found = attempt(partial(self.arms[arm], [prompt.ids for prompt in prompts], seeds))
            if isinstance(found, Failure):
                self.fail(self.depend_on(arm), found)
            else:
                traces[arm] = found
        return traces

    def narrow(self, turns: int) -> bool:
        """Whether all intervals are as narrow as the spec asks, looked at only after 20, 30, 45 … turns."""
        goal = self.baseline.until_ci
        if goal is None or turns not in checkpoints(len(self.prompts.prompts)):
            return False
        intervals = [speedup_of([s for s in samples if s.turn < turns]) for samples in self.live.values()]
        return all(statistics.half_width(interval) <= goal for interval in intervals)

    def finish(self, spec: RunSpec) -> None:
        """Compare the outputs of a cell whose prompts are all decoded, and end it."""
        samples = self.live[spec]
        verdict = attempt(lambda: losslessness_of(spec, self.prompts, samples, self.scores))
        if isinstance(verdict, Failure):
            self.fail([spec], verdict)
            return
        cell = replace(self.cells[spec], samples=samples, status="ok", error="", lossless=verdict)
        cell = replace(cell, ready=(self.ready[BASELINE], self.ready[spec.key]))
        void = verdict.verdict == "MISMATCH"
        self.end(replace(cell, status="mismatch", error=NOT_LOSSLESS) if void else cell)

    def fail(self, specs: Sequence[RunSpec], failure: Failure) -> None:
        for spec in specs:
            self.end(ended(replace(self.cells[spec], samples=self.live[spec]), failure))

    def end(self, cell: Cell) -> None:
        self.cells[cell.spec] = cell
        del self.live[cell.spec]
        self.observer.end(cell)


def give_up(specs: Sequence[RunSpec], failure: Failure, observer: Observer, past: Past) -> list[Cell]:
    """End the cells of a pair that cannot be had; those of a continued run that have ended stay as they are."""
    cells = []
    for spec in specs:
        cell = past.get(spec) or Cell(spec, {}, status="skipped")
        if cell.status in UNFINISHED:  # what was measured of it may be gone on with once the pair can be had again
            cell = ended(cell, replace(failure, status="partial") if cell.samples else failure)
            observer.end(cell)
        cells.append(cell)
    return cells


def ended(cell: Cell, failure: Failure) -> Cell:
    """A cell with a failure for its end; one that was interrupted before its first sample is skipped."""
    status = "skipped" if failure.status == "partial" and not cell.samples else failure.status
    return replace(cell, status=status, error=failure.error, detail=failure.detail)


NOT_LOSSLESS = "greedy output differs from the baseline's beyond numerical noise: its numbers are void"
