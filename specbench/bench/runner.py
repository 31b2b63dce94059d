"""The runner: cells in, samples out. Baseline and method interleaved per prompt, in the same loop, on the same weights.

Knows backends, prompts and records through their protocols; must not know the command line or how tables look.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from specbench.backends.base import Backend, Decode
from specbench.bench import lossless
from specbench.bench.files import first_line
from specbench.bench.prompts import Prompt, PromptSet
from specbench.bench.samples import Arm, Cell, Sample
from specbench.decoding.decode import NonFiniteError
from specbench.errors import SpecbenchError
from specbench.spec import RunSpec

BASELINE = "baseline"


class Observer(Protocol):
    """Sees everything as it is measured: it may store and draw, it cannot change a number."""

    def begin(self, spec: RunSpec, total: int) -> None: ...

    def sample(self, spec: RunSpec, sample: Sample) -> None: ...

    def end(self, cell: Cell) -> None: ...


@dataclass(frozen=True)
class Job:
    """A cell to be measured: its spec, its prompts, and what both resolved to."""

    spec: RunSpec
    prompts: PromptSet
    resolved: dict[str, Any]


def seed_of(spec: RunSpec, prompt: str, repeat: int, arm: str) -> int:
    """The seed of one decode: different for every seed, prompt, repetition and arm, and the same on every machine."""
    digest = hashlib.sha256(f"{spec.seed}\0{prompt}\0{repeat}\0{arm}".encode()).digest()
    return int.from_bytes(digest[:8]) >> 1


def measure(
    jobs: Sequence[Job], backend: Backend, scores: lossless.Scores, observer: Observer
) -> tuple[list[Cell], BaseException | None]:
    """Measure every job. A job that fails ends its own cell; an interrupt ends the run, with what was measured kept.

    Returns the cells and the interrupt, if there was one.
    """
    cells: list[Cell] = []
    for job in jobs:
        cell, stop = measure_cell(job, backend, scores, observer)
        cells.append(cell)
        observer.end(cell)
        if stop is not None:
            return cells, stop
    return cells, None


def measure_cell(
    job: Job, backend: Backend, scores: lossless.Scores, observer: Observer
) -> tuple[Cell, BaseException | None]:
    """One cell, whatever happens in it."""
    cell, samples = Cell(job.spec, job.resolved), []
    observer.begin(job.spec, len(job.prompts.prompts) * job.spec.repeat)
    try:
        for sample in samples_of(job, backend):
            samples.append(sample)
            observer.sample(job.spec, sample)
        verdict = compare(job, samples, scores)
    except NonFiniteError as error:
        return replace(cell, samples=samples, status="nan", error=str(error)), None
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        reason = f"out of memory ({first_line(error)}): try a smaller dtype, shorter prompts or a smaller pair"
        return replace(cell, samples=samples, status="oom", error=reason), None
    except KeyboardInterrupt as stop:
        return replace(cell, samples=samples, status="partial", error="interrupted"), stop
    except SpecbenchError as error:
        return replace(cell, samples=samples, status="error", error=str(error)), None
    return replace(cell, samples=samples, lossless=verdict), None


def out_of_memory(error: Exception) -> bool:
    """Whether memory ran out; on a CPU torch has no exception of its own for it."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


def samples_of(job: Job, backend: Backend) -> Iterator[Sample]:
    """Warm up both arms, then decode every prompt with both, the leading arm alternating."""
    spec = job.spec
    arms: dict[Arm, Decode] = {
        "baseline": backend.prepare(spec.with_(method=BASELINE, k=0)),
        "method": backend.prepare(spec),
    }
    warm_up(arms, job.prompts.prompts, spec)
    for repeat in range(spec.repeat):
        for number, prompt in enumerate(job.prompts.prompts):
            leads = (number + repeat) % 2 == 0
            yield pair_of(arms, prompt, spec, repeat, "baseline" if leads else "method")


def warm_up(arms: dict[Arm, Decode], prompts: Sequence[Prompt], spec: RunSpec) -> None:
    """Decode the first prompts with both arms, uncounted: first calls allocate, choose kernels and fill caches."""
    for number in range(spec.warmup):
        prompt = prompts[number % len(prompts)]
        for name, arm in arms.items():
            arm([prompt.ids], [seed_of(spec, prompt.id, number, f"warm-up {name}")])


def pair_of(arms: dict[Arm, Decode], prompt: Prompt, spec: RunSpec, repeat: int, first: Arm) -> Sample:
    """One prompt decoded by both arms, one directly after the other."""
    order: tuple[Arm, Arm] = ("baseline", "method") if first == "baseline" else ("method", "baseline")
    traces = {}
    for arm in order:
        (traces[arm],) = arms[arm]([prompt.ids], [seed_of(spec, prompt.id, repeat, arm)])
    return Sample(
        prompt.id,
        prompt.category,
        repeat,
        len(prompt.ids),
        order[0],
        traces["baseline"],
        traces["method"],
    )


def compare(job: Job, samples: Sequence[Sample], scores: lossless.Scores) -> lossless.Losslessness:
    """The losslessness of a greedy cell; sampled output differs by chance and is not compared."""
    if job.spec.temperature > 0:
        return lossless.Losslessness()
    ids = {prompt.id: prompt.ids for prompt in job.prompts.prompts}
    outputs = [(ids[s.prompt], s.baseline.tokens, s.method.tokens) for s in samples if s.repeat == 0]
    return lossless.compare(outputs, scores, job.spec.k + 1)
