"""The course of a group on its engine: its arms made ready, turn after turn, and what is said of their output.

Knows backends, prompts and one group of cells; must not know others, the command line, files or tables.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle

from specbench.backends.base import Backend
from specbench.backends.forms import carries
from specbench.data.prompts import Prompt, PromptSet
from specbench.data.turns import next_turn
from specbench.measure.arms import Arms
from specbench.measure.choosing import Choosing
from specbench.measure.failures import Failure, attempt
from specbench.measure.group import Group, Samples
from specbench.measure.lossless import losslessness_of
from specbench.measure.order import Turn, order_of, seed_of, side, turns_of
from specbench.metrics import Trace
from specbench.results.machine import Reading, load_average
from specbench.results.samples import Sample
from specbench.spec import BASELINE, CHOOSING, RunSpec

Ids = Sequence[int]  # of the tokens of a prompt


def prepare(group: Group, backend: Backend, arms: Arms) -> None:
    """Build every arm and decode the first prompts with it, uncounted: first calls allocate and choose kernels.

    Where one of them changed how all are executed, the others are built anew.
    """
    execution = ""
    while execution != backend.execution:
        execution = backend.execution
        for arm, spec in group.arms.items():
            if not group.needing(arm):
                continue  # the baseline has failed
            group.preparing(spec)
            failure = attempt(partial(warm_up, arm, spec, group.prompts, backend, arms))
            if failure is not None:
                group.lose(arm, failure)
    group.resolve(backend.describe())
    group.preparing(None)


def warm_up(arm: str, spec: RunSpec, prompts: PromptSet, backend: Backend, arms: Arms) -> None:
    """Build one arm, note how long that took, and decode its warm-up."""
    if spec.method == CHOOSING:
        warm_up_choices(arm, spec, prompts, backend, arms)
        return
    began = time.perf_counter()
    decode = backend.prepare(spec, prompts.longest)
    arms.ready[arm] = time.perf_counter() - began
    for some, seeds in warm_ups(arm, spec, prompts, spec.warmup):
        decode(some, seeds)
    if carries(spec):
        arms.carrying.add(arm)
        decode = backend.prepare(spec, prompts.longest)  # what was learned in the warm-up is forgotten
    arms.decodes[arm] = decode


def warm_up_choices(arm: str, spec: RunSpec, prompts: PromptSet, backend: Backend, arms: Arms) -> None:
    """The same for an arm that chooses: its choices are looked at in its warm-up, which is one longer, as their first
    decodes say nothing."""
    began = time.perf_counter()
    choosing = Choosing.over(spec, backend, prompts.longest)
    arms.ready[arm] = time.perf_counter() - began
    for number, (some, seeds) in enumerate(warm_ups(arm, spec, prompts, spec.warmup + (spec.warmup > 0))):
        choosing.look(some, seeds, first=number == 0)
    arms.choosing[arm], arms.decodes[arm] = choosing, choosing.decode


def warm_ups(arm: str, spec: RunSpec, prompts: PromptSet, count: int) -> Iterator[tuple[list[Ids], list[int]]]:
    """The prompts and seeds of every warm-up: one batch, or one request where these come at times of their own."""
    every = cycle(prompts.prompts)
    for number in range(count):
        some = [next(every) for _ in range(spec.batch if spec.arrivals is None else 1)]
        yield [p.ids for p in some], [seed_of(spec, p.id, number, f"warm-up {side(arm)}") for p in some]


def measured_turns(group: Group, backend: Backend, arms: Arms) -> Iterator[Samples]:
    """What every turn gives, one after the other: the caller saves it before the next one begins."""
    done = 0
    for first in turns_of(group.baseline, group.prompts.prompts):
        turn: Turn | None = replace(first, number=done)
        if not group.live or group.narrow(done, first.chunk):
            return
        while turn is not None and group.live:
            if group.has(turn):
                decode_again(group, arms, turn)
            elif samples := turn_samples(group, arms, turn):
                yield samples
            done += 1
            turn = following(group, turn, backend)


def decode_again(group: Group, arms: Arms, turn: Turn) -> None:
    """Bring the arms that carry something to where they were after a turn of a run that is continued. What they decode
    is what they decoded then; it is neither timed nor saved. One that chooses learns from what was saved."""
    for spec, samples in group.live.items():
        if spec.key in arms.choosing:
            found = {one.prompt: one.method for one in samples if one.turn == turn.number}
            again = [prompt for prompt in turn.prompts if prompt.id in found]
            arms.choosing[spec.key].learn([one.ids for one in again], [found[one.id] for one in again])
    for arm in sorted(arms.carrying & set(group.arms)):
        decoded(group, arms, turn, arm)


def following(group: Group, turn: Turn, backend: Backend) -> Turn | None:
    """The next turn of the conversations of a turn, on the baseline's answers: all arms see the same context."""
    if not group.live or not any(prompt.later for prompt in turn.prompts) or backend.chat is None:
        return None
    answers, chat = group.answers(turn), backend.chat
    asked = [next_turn(prompt, answers[prompt.id], group.prompts, chat) for prompt in turn.prompts]
    prompts = [prompt for prompt in asked if prompt is not None]
    group.ids |= {(prompt.id, prompt.turn): prompt.ids for prompt in prompts if turn.repeat == 0}
    return replace(turn, number=turn.number + 1, prompts=prompts) if prompts else None


def turn_samples(group: Group, arms: Arms, turn: Turn) -> Samples:
    """The samples of a turn, for every cell whose arms could decode it."""
    load = load_average()
    order = order_of(list(group.arms), group.baseline.seed, turn.earlier, turn.chunk)
    slices = slices_of(group, arms, turn, order)
    batch = f"batch {turn.chunk}" if group.baseline.batch > 1 else ""

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


@dataclass(frozen=True)
class Slice:
    """What one arm made of the prompts of a turn, and what the machine said right after it."""

    traces: Sequence[Trace]
    reading: Reading


def slices_of(group: Group, arms: Arms, turn: Turn, order: Sequence[str]) -> dict[str, Slice]:
    """The slice of every arm of a turn; an arm that fails ends its cells. Nothing that is timed is read in between."""
    slices: dict[str, Slice] = {}
    for arm in order:
        if not group.needing(arm):
            continue  # the baseline has failed in this very turn
        before = arms.sensors.begin()
        found = decoded(group, arms, turn, arm)
        if found is not None:
            slices[arm] = Slice(found, arms.sensors.end(before))
    return slices


def decoded(group: Group, arms: Arms, turn: Turn, arm: str) -> list[Trace] | None:
    """What one arm makes of the prompts of a turn; None where it fails, which ends its cells."""
    seeds = [seed_of(group.baseline, prompt.draw, turn.repeat, side(arm)) for prompt in turn.prompts]
    found = attempt(partial(arms.decode, arm, turn.prompts, seeds))
    if isinstance(found, Failure):
        group.lose(arm, found)
        return None
    return found


def compare_with_baseline(group: Group, backend: Backend, arms: Arms) -> None:
    """End the cells whose prompts are all decoded, with what is known of their output beside the baseline's."""
    for spec in list(group.live):
        found = attempt(partial(losslessness_of, spec, group.ids, group.live[spec], backend.scores))
        if isinstance(found, Failure):
            group.lose(spec.key, found)
        else:
            group.finish(spec, found, (arms.ready[BASELINE], arms.ready[spec.key]), arms.peaks(spec))
