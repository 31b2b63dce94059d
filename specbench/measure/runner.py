"""The runner: jobs in, cells out. All arms decode a chunk of prompts in turn, on the same weights.

Knows backends, prompts and groups of cells; must not know the command line, files or tables.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from types import MappingProxyType

from specbench.backends.base import Backend, Decode
from specbench.data.prompts import Prompt
from specbench.measure.failures import Failure, attempt
from specbench.measure.group import INTERRUPTED, Group, Job, Observer, Past, Samples
from specbench.measure.lossless import losslessness_of
from specbench.measure.order import Turn, checkpoints, order_of, seed_of, side, turns_of
from specbench.metrics import Trace
from specbench.results import statistics
from specbench.results.cells import Cell
from specbench.results.environment import load_average
from specbench.results.samples import Sample, speedup_of
from specbench.spec import BASELINE, RunSpec
from specbench.wording import grouped


def measure(
    jobs: Sequence[Job], backend: Backend, observers: Sequence[Observer], past: Past = MappingProxyType({})
) -> tuple[list[Cell], KeyboardInterrupt | None]:
    """Measure every job, those with a common baseline together. What fails ends its own cell and nothing else.

    `past` holds the cells of a run that is continued: finished ones are kept, the turns of others are not repeated.
    Returns the cells, and the interrupt if there was one; what an interrupt kept from beginning is `skipped`.
    """
    cells: list[Cell] = []
    stop: KeyboardInterrupt | None = None
    for some in grouped(jobs, lambda job: job.spec.baseline):
        group = Group(some, observers, past)
        if stop is None:
            stop = measure_group(group, backend)
        else:
            group.fail(list(group.live), INTERRUPTED)
        cells += group.cells.values()
    return cells, stop


def measure_group(group: Group, backend: Backend) -> KeyboardInterrupt | None:
    """Measure what is left of a group; an interrupt is returned, with what was measured kept."""
    if not group.live:
        return None
    arms = Arms()
    try:
        group.begin()
        prepare(group, backend, arms)
        for samples in measured_turns(group, arms):
            group.save(samples)
        compare_with_baseline(group, backend, arms)
    except KeyboardInterrupt as stop:
        group.fail(list(group.live), INTERRUPTED)
        return stop
    finally:
        arms.decodes.clear()  # their caches would stay on the device while the next group allocates its own
    return None


@dataclass
class Arms:
    """How each arm of a group decodes, and the seconds that it took to build, compile or capture it."""

    decodes: dict[str, Decode] = field(default_factory=dict)
    ready: dict[str, float] = field(default_factory=dict)


def prepare(group: Group, backend: Backend, arms: Arms) -> None:
    """Build every arm and decode the first prompts with it, uncounted: first calls allocate and choose kernels."""
    for arm, spec in group.arms.items():
        if not group.needing(arm):
            continue  # the baseline has failed
        group.preparing(spec)
        failure = attempt(partial(warm_up, arm, spec, group.prompts.prompts, backend, arms))
        if failure is not None:
            group.fail(group.needing(arm), failure)
    group.preparing(None)


def warm_up(arm: str, spec: RunSpec, prompts: Sequence[Prompt], backend: Backend, arms: Arms) -> None:
    """Build one arm, note how long that took, and decode its warm-up."""
    began = time.perf_counter()
    decode = backend.prepare(spec, max(len(prompt.ids) for prompt in prompts))
    arms.ready[arm] = time.perf_counter() - began
    every = cycle(prompts)
    for number in range(spec.warmup):
        some = [next(every) for _ in range(spec.batch)]
        decode([p.ids for p in some], [seed_of(spec, p.id, number, f"warm-up {side(arm)}") for p in some])
    arms.decodes[arm] = decode


def measured_turns(group: Group, arms: Arms) -> Iterator[Samples]:
    """What every turn gives, one after the other: the caller saves it before the next one begins."""
    for turn in turns_of(group.baseline, group.prompts.prompts):
        if not group.live or narrow(group, turn.number):
            return
        if not group.has(turn) and (samples := turn_samples(group, arms, turn)):
            yield samples


def turn_samples(group: Group, arms: Arms, turn: Turn) -> Samples:
    """The samples of a turn, for every cell whose arms could decode it."""
    load = load_average()
    order = order_of(list(group.arms), group.baseline.seed, turn.repeat, turn.chunk)
    traces = traces_of(group, arms, turn, order)
    cluster = f"batch {turn.chunk}" if group.baseline.batch > 1 else ""

    def sample(spec: RunSpec, prompt: Prompt, baseline: Trace, method: Trace) -> Sample:
        about = (prompt.id, prompt.category, turn.repeat, len(prompt.ids), turn.number)
        positions = (order.index(BASELINE), order.index(spec.key))
        return Sample(*about, positions, load, baseline, method, cluster)

    return {
        spec: [sample(spec, *one) for one in zip(turn.prompts, traces[BASELINE], traces[spec.key], strict=True)]
        for spec in group.live
    }


def traces_of(group: Group, arms: Arms, turn: Turn, order: Sequence[str]) -> dict[str, list[Trace]]:
    """What every arm makes of the prompts of a turn; an arm that fails ends its cells."""
    traces: dict[str, list[Trace]] = {}
    for arm in order:
        if not group.needing(arm):
            continue  # the baseline has failed in this very turn
        seeds = [seed_of(group.baseline, prompt.id, turn.repeat, side(arm)) for prompt in turn.prompts]
        found = attempt(partial(arms.decodes[arm], [prompt.ids for prompt in turn.prompts], seeds))
        if isinstance(found, Failure):
            group.fail(group.needing(arm), found)
        else:
            traces[arm] = found
    return traces


def narrow(group: Group, ended: int) -> bool:
    """Whether all intervals are as narrow as the spec asks, looked at only after 20, 30, 45 … turns have ended."""
    goal = group.baseline.until_ci
    if goal is None or ended not in checkpoints(len(group.prompts.prompts)):
        return False
    intervals = [speedup_of([s for s in samples if s.turn < ended]) for samples in group.live.values()]
    return all(statistics.half_width(interval) <= goal for interval in intervals)


def compare_with_baseline(group: Group, backend: Backend, arms: Arms) -> None:
    """End the cells whose prompts are all decoded, with what is known of their output beside the baseline's."""
    for spec in list(group.live):
        found = attempt(partial(losslessness_of, spec, group.prompts, group.live[spec], backend.scores))
        if isinstance(found, Failure):
            group.fail([spec], found)
        else:
            group.finish(spec, found, (arms.ready[BASELINE], arms.ready[spec.key]))
