"""The measuring of a design: the trained drafts decode the prompts, interleaved with each other and with the baseline.

It is a run like any other, in a folder of its own inside the design's. Knows cells and runs; must not know training.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from rich.console import Console

from specbench.backends.base import Backend
from specbench.errors import InterruptedRunError, UsageError
from specbench.jobs.description import described
from specbench.jobs.design_folder import MEASURED, METHODS, Workplace
from specbench.jobs.design_shapes import Candidate
from specbench.jobs.method_file import write_method
from specbench.jobs.progress import Display
from specbench.measure.group import Job
from specbench.measure.pair import prompts_of, resolved_pair
from specbench.measure.runner import measure
from specbench.measure.sensors import sensors_for
from specbench.results.cells import Cell
from specbench.results.folder import RunFolder
from specbench.results.reading import DESCRIPTION, read_run
from specbench.spec import RunSpec
from specbench.wording import counted

PAPER = "Leviathan et al. 2022 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318)"


def method_of(place: Workplace, candidate: Candidate) -> str:
    """The method file of a draft: a chain from the network of its name."""
    file = place.path / METHODS / f"{candidate.name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    drafter = {"ModelDrafter": {"model": candidate.model, "k": "k", "schedule": "schedule"}}
    summary = f"A chain from a draft of {counted(candidate.shape.layers, 'layer')} of width {candidate.shape.hidden}"
    chain = {"Speculate": {"drafter": drafter, "model": "target", "verifier": "Rejection"}}
    write_method(file, {"summary": summary, "paper": PAPER, "lossless": True, "method": chain})
    return str(file)


def measured(
    place: Workplace, backend: Backend, spec: RunSpec, finals: Mapping[str, tuple[str, int]], quiet: bool
) -> dict[str, Cell]:
    """The cells of some drafts by name, each with its method and its lookahead; the drafts' networks are held.

    InterruptedRunError where the run was interrupted: what was measured is kept.
    """
    specs = {name: spec.with_(method=method, k=k) for name, (method, k) in finals.items()}
    prompts = prompts_of(list(specs.values()), backend)
    resolved = {**prompts.row(), **resolved_pair(backend), "schedule_costs": None}
    jobs = [Job(one, prompts, {**resolved, "drafted_by": name}) for name, one in specs.items()]
    display = Display(Console(stderr=True), quiet, len(prompts.prompts) * spec.repeat)
    with closing(run_folder(place, list(specs.values()), backend)) as folder, display:
        cells, stop = measure(jobs, backend, [folder, display], folder.past, sensors_for(backend.device))
    if stop is not None:
        raise InterruptedRunError("the same command goes on with it") from stop
    return {str(cell.resolved["drafted_by"]): cell for cell in cells}


def run_folder(place: Workplace, specs: Sequence[RunSpec], backend: Backend) -> RunFolder:
    """The run inside a design, gone on with where it was begun with the same cells."""
    path = place.path / MEASURED
    if (path / DESCRIPTION).exists():
        try:
            same = list(read_run(path).specs) == list(specs)
        except UsageError:
            same = False
        if same:
            return RunFolder.resume(path)
    return RunFolder.create(place.path, MEASURED, described(specs, backend.device))


def run_of(place: Workplace) -> Any:
    """The newest run inside a design; None where nothing has been measured yet."""
    found = sorted(place.path.glob(f"{MEASURED}*/journal.jsonl"), key=lambda file: file.stat().st_mtime)
    return found[-1].parent if found else None
