"""The runner: pairs in, cells out. All arms decode a chunk of prompts in turn, on the same weights; so do engines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Protocol

from specbench.backends.base import Backend
from specbench.backends.engines.arms import ENGINES
from specbench.data.prompts import Prompt, next_turn
from specbench.measure.course import Arms, compare_with_baseline, first_estimate, prepare
from specbench.measure.group import (
    INTERRUPTED,
    Failure,
    Group,
    Job,
    Past,
    Turn,
    again,
    caught,
    give_back,
    give_up,
    order_of,
    seed_of,
    side,
    turns_of,
)
from specbench.measure.pair import Measured, Note, Pair, Prepared
from specbench.measure.sensors import NO_SENSORS, Sensors, sensors_for
from specbench.metrics import Trace
from specbench.results.cells import Cell, Observer, Samples
from specbench.results.machine import Reading, load_average
from specbench.results.samples import Sample
from specbench.spec import BASELINE, RunSpec, expanded
from specbench.wording import grouped

APART = "the engines are measured one after the other: memory is not enough for the weights of all at once"


class Unit(Protocol):
    """Cells that are measured together: here, in another process, or on a cluster."""

    @property
    def specs(self) -> Sequence[RunSpec]: ...

    def measure(self, observers: Sequence[Observer], past: Past, note: Note) -> Measured: ...


def measure_units(
    units: Sequence[Unit], observers: Sequence[Observer], past: Past, note: Note
) -> tuple[list[Cell], KeyboardInterrupt | None]:
    """The cells of all units; after an interrupt, the cells of remaining units are given up.

    Raises an interrupt that comes before there are results, and the error that makes a sole unit unusable.
    """
    cells: list[Cell] = []
    stop: KeyboardInterrupt | None = None
    for unit in units:
        found: list[Cell] | Failure = INTERRUPTED
        if stop is None:
            try:
                found, stop = unit.measure(observers, past, note)
            except KeyboardInterrupt as interrupt:
                stop = interrupt
        if isinstance(found, Failure):
            if stop and not (cells or past):
                raise stop
            if len(units) == 1 and found.cause is not None:
                raise found.cause
            found = give_up(unit.specs, found, observers, past)
        cells += found
    return cells, stop


@dataclass(frozen=True)
class Local:
    """Pairs that differ only in their engine, loaded together in this process."""

    pairs: Sequence[Prepared]

    @property
    def specs(self) -> list[RunSpec]:
        return [spec for pair in self.pairs for spec in pair.specs]

    def measure(self, observers: Sequence[Observer], past: Past, note: Note) -> Measured:
        """Load all pairs and measure their cells; cells of pairs that fail to load end with the reason."""
        try:
            found = [(pair, opened(pair, observers, past, note)) for pair in self.pairs]
            cells: list[Cell] = []
            for pair, bench in found:
                if isinstance(bench, Bench):
                    cells += [pair.leave_out(spec, observers, past) for spec in pair.fitting.left_out]
                elif len(found) == 1:
                    return bench, None
                else:
                    cells += give_up(pair.specs, bench, observers, past)
            benches = [bench for _, bench in found if isinstance(bench, Bench)]
            measured, stop = measure_beside(benches, observers, past)
            for pair, bench in found:
                for warning in pair.backend.warnings if isinstance(bench, Bench) else ():
                    note(warning)
            cells += measured
            if len(found) > 1:
                place = {spec: number for number, spec in enumerate(self.specs)}
                cells.sort(key=lambda cell: place[cell.spec])
            return cells, stop
        finally:
            for pair in self.pairs:
                pair.unload()


def opened(pair: Prepared, observers: Sequence[Observer], past: Past, note: Note) -> "Bench | Failure":
    """Load a pair and report how it is executed; a Failure if it cannot be loaded."""
    jobs = pair.jobs(observers, past)
    if isinstance(jobs, Failure):
        return jobs
    sensors = sensors_for(pair.backend.device)
    for line in filter(None, (pair.backend.execution, sensors.remark)):
        note(line)
    return Bench(jobs, pair.backend, sensors)


def local_units(pairs: Sequence[Pair], note: Note) -> list[Unit]:
    """The pairs as units; those that differ only in their engine are together if they fit into memory."""
    found: list[Unit] = []
    for some in grouped(pairs, lambda pair: pair.specs[0].baseline.on_any_engine):
        ready = [pair for pair in some if isinstance(pair, Prepared)]
        together = len(ready) > 1 and fit(ready)
        if len(ready) > 1 and not together:
            note(APART)
        found += [Local(ready)] if together else []
        for pair in some:
            if not isinstance(pair, Prepared):
                found.append(pair)
            elif not together:
                found.append(Local([pair]))
    return found


def fit(pairs: Sequence[Prepared]) -> bool:
    """Whether memory is enough for all at once, as far as is known; each device is counted separately."""
    for some in grouped(pairs, lambda pair: str(pair.backend.device)):
        known = [pair.fit for pair in some if pair.fit is not None]
        free = [one.free for one in known if one.free is not None]
        if free and sum(one.total for one in known) > min(free):
            return False
    return True


@dataclass(frozen=True)
class Bench:
    """The jobs of one engine, and the sensors read around every counted decode."""

    jobs: Sequence[Job]
    backend: Backend
    sensors: Sensors = NO_SENSORS


@dataclass(frozen=True)
class Lane:
    """A group on its engine, with its arms."""

    group: Group
    backend: Backend
    arms: Arms


def measure(
    jobs: Sequence[Job],
    backend: Backend,
    observers: Sequence[Observer],
    past: Past = MappingProxyType({}),
    sensors: Sensors = NO_SENSORS,
) -> tuple[list[Cell], KeyboardInterrupt | None]:
    """Measure all jobs on one engine; see `measure_beside`."""
    return measure_beside([Bench(jobs, backend, sensors)], observers, past)


def measure_beside(
    benches: Sequence[Bench], observers: Sequence[Observer], past: Past = MappingProxyType({})
) -> tuple[list[Cell], KeyboardInterrupt | None]:
    """Measure all jobs, interleaving cells with a common baseline, and engines if only they differ.

    A failure ends only its own cell. `past` holds the cells of a continued run: finished ones are kept, the
    turns of others are not repeated. Returns the cells, and the interrupt if there was one; cells that it
    kept from starting are `skipped`.
    """
    cells: list[Cell] = []
    stop: KeyboardInterrupt | None = None
    every = [(bench, job) for bench in benches for job in bench.jobs]
    heats = grouped(every, lambda one: one[1].spec.baseline.on_any_engine)
    for number, heat in enumerate(heats):
        lanes = []
        for some in grouped(heat, lambda one: id(one[0])):
            bench, group = some[0][0], Group([job for _, job in some], observers, past)
            lanes.append(Lane(group, bench.backend, Arms(bench.backend.device, bench.sensors)))
        if stop is None:
            stop = measure_groups(lanes, estimate=not (number or past))
            for lane in lanes:
                for other in lanes if lane.group.aside else ():
                    if other is not lane:
                        other.backend.keep([])  # its prepared state takes memory that this one needs
                stop = measure_again(lane, stop)
                ours = [(b, job) for others in heats[number + 1 :] for b, job in others if b.backend is lane.backend]
                later = [job.spec for _, job in ours]
                lane.backend.keep([*expanded(later), *(spec.baseline for spec in later)])
        for lane in lanes:
            lane.group.fail(list(lane.group.live), INTERRUPTED)
            cells += lane.group.cells.values()
    return cells, stop


def measure_groups(lanes: Sequence[Lane], estimate: bool = False) -> KeyboardInterrupt | None:
    """Measure the rest of some groups, turn by turn; an interrupt is returned, and the results are kept.

    estimate: report a first estimate before anything is compiled.
    """
    left = [lane for lane in lanes if lane.group.live]
    try:
        for lane in left:
            lane.group.begin()
        for lane in left[:estimate]:
            first_estimate(lane.group, lane.backend)
        for lane in left:
            prepare(lane.group, lane.backend, lane.arms)
        courses = [(lane, measured_turns(lane.group, lane.backend, lane.arms)) for lane in left]
        while courses:
            for lane, course in list(courses):
                samples = next(course, None)
                if samples is None:
                    courses = [one for one in courses if one[0] is not lane]
                else:
                    lane.group.save(samples)
            courses.reverse()  # no engine is always early
        for lane in left:
            compare_with_baseline(lane.group, lane.backend, lane.arms)
    except KeyboardInterrupt as stop:
        for lane in left:
            lane.group.fail(list(lane.group.live), INTERRUPTED)
        return stop
    finally:
        for lane in left:
            lane.arms.decodes.clear()  # else their caches stay on the device while the next group allocates its own
    return None


def measure_again(lane: Lane, stop: KeyboardInterrupt | None) -> KeyboardInterrupt | None:
    """Measure cells that ran out of memory again, each with only its baseline.

    Stop if memory is insufficient for the baseline, as it is for the remaining cells, or after an interrupt, `stop`.
    """
    hopeless: Failure | None = None
    for spec, failure in lane.group.aside.items():
        alone = lane.group.by_itself(spec)
        if stop or hopeless:
            alone.fail([spec], INTERRUPTED if stop else hopeless or failure)
        else:
            lane.backend.keep([])
            give_back()
            stop = measure_groups([replace(lane, group=alone, arms=Arms(lane.arms.device, lane.arms.sensors))])
            hopeless = again(failure) if BASELINE in alone.lost else None
        lane.group.cells.update(alone.cells)
    return stop


def measured_turns(group: Group, backend: Backend, arms: Arms) -> Iterator[Samples]:
    """The samples of each turn; the caller saves them before the next turn begins."""
    done = 0
    for first in turns_of(group.baseline, group.prompts.prompts):
        turn: Turn | None = replace(first, number=done)
        if not group.live or group.narrow(done, first.chunk):
            return
        while turn is not None and group.live:
            if group.has(turn):
                decode_again(group, arms, turn)
            else:
                load = None if group.baseline.backend in ENGINES else load_average()  # it is the server
                order = order_of(list(group.arms), group.baseline.seed, turn.earlier, turn.chunk)
                slices = slices_of(group, arms, turn, order)
                if samples := samples_of(group, arms, turn, order, load, slices):
                    yield samples
            done += 1
            turn = following(group, turn, backend)


def decode_again(group: Group, arms: Arms, turn: Turn) -> None:
    """Replay a turn of a continued run, untimed and unsaved, for the arms that carry state.

    They decode the same tokens as before. An arm that chooses learns from the saved results.
    """
    for spec, samples in group.live.items():
        if spec.key in arms.choosing:
            found = {one.prompt: one.method for one in samples if one.turn == turn.number}
            known = [prompt for prompt in turn.prompts if prompt.id in found]
            arms.choosing[spec.key].learn([one.ids for one in known], [found[one.id] for one in known])
    for arm in sorted(arms.carrying & set(group.arms)):
        with caught(partial(group.lose, arm)), arms.watched(arm):
            arms.decodes[arm]([prompt.ids for prompt in turn.prompts], seeds_of(group, turn, arm))


def following(group: Group, turn: Turn, backend: Backend) -> Turn | None:
    """The next turn of a turn's conversations, after the baseline's answers: all arms see the same context."""
    if not group.live or not any(prompt.later for prompt in turn.prompts) or backend.chat is None:
        return None
    answers, chat = group.answers(turn), backend.chat
    turns = [next_turn(prompt, answers[prompt.id], group.prompts, chat) for prompt in turn.prompts]
    prompts = [prompt for prompt in turns if prompt is not None]
    group.ids |= {(prompt.id, prompt.turn): prompt.ids for prompt in prompts if turn.repeat == 0}
    return replace(turn, number=turn.number + 1, prompts=prompts) if prompts else None


@dataclass(frozen=True)
class Slice:
    """The decodes of one arm in a turn, and the machine reading right after them."""

    traces: Sequence[Trace]
    reading: Reading


def slices_of(group: Group, arms: Arms, turn: Turn, order: Sequence[str]) -> dict[str, Slice]:
    """Decode a turn with every arm; a failing arm ends its cells. Nothing timed is read in between."""
    slices: dict[str, Slice] = {}
    for arm in order:
        if not group.needing(arm):
            continue  # the baseline failed in this turn
        before, seeds = arms.sensors.begin(), seeds_of(group, turn, arm)
        traces: list[Trace] | None = None
        with caught(partial(group.lose, arm)), arms.watched(arm):
            traces = arms.decodes[arm]([prompt.ids for prompt in turn.prompts], seeds)
        if traces is not None:
            slices[arm] = Slice(traces, arms.sensors.end(before))
    return slices


def seeds_of(group: Group, turn: Turn, arm: str) -> list[int]:
    return [seed_of(group.baseline, prompt.draw, turn.repeat, side(arm)) for prompt in turn.prompts]


def samples_of(
    group: Group, arms: Arms, turn: Turn, order: Sequence[str], load: float | None, slices: dict[str, Slice]
) -> Samples:
    """The samples of a turn, for every cell whose arms could decode it."""
    batch = f"batch {turn.chunk}" if group.by_turn else ""

    def sample(spec: RunSpec, prompt: Prompt, baseline: Trace, method: Trace) -> Sample:
        cluster = batch or (group.blocks[prompt.id] if spec.key in arms.carrying else "")
        about = (prompt.id, prompt.category, turn.repeat, len(prompt.ids), turn.number)
        positions = (order.index(BASELINE), order.index(spec.key))
        readings = (slices[BASELINE].reading, slices[spec.key].reading)
        return Sample(*about, positions, load, baseline, method, cluster, (prompt.turn, prompt.turns), readings)

    return {
        spec: [
            sample(spec, *one)
            for one in zip(turn.prompts, slices[BASELINE].traces, slices[spec.key].traces, strict=True)
        ]
        for spec in group.live
    }
