"""The runner: jobs in, cells out. All arms decode a chunk of prompts in turn, on the same weights; so do engines.

Knows backends and groups of cells; must not know the command line, files or tables.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from specbench.backends.base import Backend
from specbench.choices import expanded
from specbench.measure.arms import Arms
from specbench.measure.course import compare_with_baseline, measured_turns, prepare
from specbench.measure.failures import Failure, again, give_back
from specbench.measure.group import INTERRUPTED, Group, Job, Observer, Past, Samples
from specbench.measure.sensors import NO_SENSORS, Sensors
from specbench.results.cells import Cell
from specbench.spec import BASELINE
from specbench.wording import grouped


@dataclass(frozen=True)
class Bench:
    """What one engine has to measure, and the sensors that are read around every decode of its that counts."""

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
    """Measure every job on one engine, see `measure_beside`."""
    return measure_beside([Bench(jobs, backend, sensors)], observers, past)


def measure_beside(
    benches: Sequence[Bench], observers: Sequence[Observer], past: Past = MappingProxyType({})
) -> tuple[list[Cell], KeyboardInterrupt | None]:
    """Measure every job, those with a common baseline together, and where they differ in their engine alone turn by
    turn beside each other. What fails ends its own cell and nothing else.

    `past` holds the cells of a run that is continued: finished ones are kept, the turns of others are not repeated.
    Returns the cells, and the interrupt if there was one; what an interrupt kept from beginning is `skipped`.
    """
    cells: list[Cell] = []
    stop: KeyboardInterrupt | None = None
    every = [(bench, job) for bench in benches for job in bench.jobs]
    heats = grouped(every, lambda one: one[1].spec.baseline.on_any_engine)
    for number, heat in enumerate(heats):
        lanes = [lane_of([job for _, job in some], some[0][0], observers, past) for some in by_bench(heat)]
        if stop is None:
            stop = measure_groups(lanes)
            for lane in lanes:
                if lane.group.aside:
                    let_go([other for other in lanes if other is not lane])
                stop = measure_again(lane, stop)
                later = [job.spec for others in heats[number + 1 :] for bench, job in others if owns(bench, lane)]
                lane.backend.keep([*expanded(later), *(spec.baseline for spec in later)])
        for lane in lanes:
            lane.group.fail(list(lane.group.live), INTERRUPTED)
            cells += lane.group.cells.values()
    return cells, stop


def let_go(lanes: Sequence[Lane]) -> None:
    """Forget what engines hold ready: it takes memory that another one has too little of."""
    for lane in lanes:
        lane.backend.keep([])


def by_bench(heat: Sequence[tuple[Bench, Job]]) -> list[list[tuple[Bench, Job]]]:
    """The jobs of every engine together."""
    return grouped(heat, lambda one: id(one[0]))


def owns(bench: Bench, lane: Lane) -> bool:
    return bench.backend is lane.backend


def lane_of(jobs: Sequence[Job], bench: Bench, observers: Sequence[Observer], past: Past) -> Lane:
    return Lane(Group(jobs, observers, past), bench.backend, Arms(bench.backend.device, bench.sensors))


def measure_groups(lanes: Sequence[Lane]) -> KeyboardInterrupt | None:
    """Measure what is left of some groups, turn by turn; an interrupt is returned, with what was measured kept."""
    left = [lane for lane in lanes if lane.group.live]
    try:
        for lane in left:
            lane.group.begin()
        for lane in left:
            prepare(lane.group, lane.backend, lane.arms)
        for lane, samples in turn_by_turn(left):
            lane.group.save(samples)
        for lane in left:
            compare_with_baseline(lane.group, lane.backend, lane.arms)
    except KeyboardInterrupt as stop:
        for lane in left:
            lane.group.fail(list(lane.group.live), INTERRUPTED)
        return stop
    finally:
        for lane in left:
            lane.arms.decodes.clear()  # their caches would stay on the device while the next group allocates its own
    return None


def turn_by_turn(lanes: Sequence[Lane]) -> Iterator[tuple[Lane, Samples]]:
    """What every turn gives on every engine, in an order that is reversed from turn to turn: none is always early."""
    courses = [(lane, measured_turns(lane.group, lane.backend, lane.arms)) for lane in lanes]
    while courses:
        for lane, course in list(courses):
            samples = next(course, None)
            if samples is None:
                courses = [one for one in courses if one[0] is not lane]
            else:
                yield lane, samples
        courses.reverse()


def measure_again(lane: Lane, stop: KeyboardInterrupt | None) -> KeyboardInterrupt | None:
    """Measure the cells that ran out of memory beside others once more, each with nothing but its baseline.

    Where memory is not enough for the baseline, it is not for those that are left either; nor is there any more to be
    measured after an interrupt, `stop`.
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
