"""The body of `specbench design-draft`: shapes, their latencies, training by halving, measuring, and what it all says.

Knows the order of things, each of which is kept in the design's folder before the next one begins. May import torch.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from specbench.backends.base import Held
from specbench.errors import InterruptedRunError, UsageError
from specbench.jobs.description import described
from specbench.jobs.design_findings import findings
from specbench.jobs.design_folder import Learned, Workplace
from specbench.jobs.design_measured import run_of
from specbench.jobs.design_networks import Engine, refuse_beyond_memory
from specbench.jobs.design_phases import Asked, Design
from specbench.jobs.design_rows import Found
from specbench.jobs.design_shapes import Candidate, candidates
from specbench.jobs.design_training import Speed, halved, to_be_trained
from specbench.jobs.output import say
from specbench.jobs.train import locked
from specbench.measure import grid
from specbench.measure.calibrate import QUICK_CONTEXT
from specbench.measure.fit import complete_backend
from specbench.models.checkpoints.description import load_config
from specbench.models.checkpoints.pairs import GROWN, resolve
from specbench.models.scale.shapes import find
from specbench.results import folder
from specbench.results.folder import slug
from specbench.results.writing import write_csv
from specbench.show import design_table
from specbench.show.records import Format
from specbench.show.report import page as report_page
from specbench.show.report.design import DOCUMENT, SHAPES
from specbench.spec import BASELINE, RunSpec
from specbench.theory.halving import Rung
from specbench.wording import clean_path, counted

KIND = "draft design"


def start(settings: Mapping[str, Any], asked: Asked, output: Path | None, style: Format, quiet: bool) -> None:
    """Carry out a design and print its rows and findings."""
    err = Console(stderr=True, quiet=quiet)
    design, found, said = designed(settings, asked, output, err)
    design_table.print_design(found.rows, style)
    say(err, [*said, f"results: {clean_path(design.place.path)}"])


def designed(
    settings: Mapping[str, Any], asked: Asked, output: Path | None, err: Console
) -> tuple[Design, Found, list[str]]:
    """Carry out a design, or what is left of it, and write its files: what it found, and that in sentences."""
    design = begun(settings, asked, output, err)
    try:
        with locked(design.place.path):
            found = carried_out(design, err.quiet)
            said = [*labels(design), *findings(found), *commands(design, found)]
            write(design.place, found, said)
    except KeyboardInterrupt as stop:
        raise InterruptedRunError("the same command goes on with it") from stop
    return design, found, said


def begun(settings: Mapping[str, Any], asked: Asked, output: Path | None, err: Console) -> Design:
    """Everything that can be refused before a weight is read, and the folder."""
    plain, spec = specs_of(settings, asked)
    config = load_config(resolve(plain.target, plain.target_revision))
    shapes, impossible = candidates(asked.budgets, asked.depths, config, asked.count)
    backend = complete_backend([spec])
    engine = Engine(getattr(torch, str(backend.describe()["dtype_resolved"])), backend.device, config, asked.like)
    refuse_beyond_memory(backend, Held([spec], QUICK_CONTEXT), shapes, engine)
    path = output or Path("results") / f"design-{slug(spec.target)}"
    place = Workplace.open(path, described([spec], backend.device, kind=KIND, design={**asked.row, "spec": spec.key}))
    seen = [name for name in asked.source.data if asked.source.generate and name == spec.dataset]
    overlap = [f"{name} is learned from, too: what is accepted there flatters; name another --dataset" for name in seen]
    say(err, [f"note: {line}" for line in (*impossible, *overlap)])
    return Design(asked, settings, spec, backend, engine, place, shapes, err)


def specs_of(settings: Mapping[str, Any], asked: Asked) -> tuple[RunSpec, RunSpec]:
    """The target as it teaches, and as it is timed and measured. UsageError where it is not one of each."""
    found = grid.cells({**settings, "method": BASELINE})
    if len(found) > 1:
        raise UsageError(f"a design is measured on one data set, not on {len(found)}: name it with --dataset")
    spec = found[0].with_(draft=None)
    if asked.like is None:
        return spec, spec
    if GROWN in spec.target:
        raise UsageError(f"--like {asked.like}: {spec.target} is a scale model already; name its original")
    return spec, spec.with_(target=f"{spec.target}{GROWN}{asked.like}")


def carried_out(design: Design, quiet: bool) -> Found:
    """The phases one after the other."""
    latencies = design.latencies()
    speed = Speed(latencies, design.asked.k_max)
    rungs, known = taught(design, speed)
    found = Found(design.candidates, speed, design.asked.steps, rungs, known, {}, grown_sizes(design))
    lookaheads = {row["name"]: int(row["k"]) for row in found.rows if row["k"]}
    finals = {one: lookaheads[one.name] for one in rungs[-1].order}
    return replace(found, cells=design.measured(finals, quiet))


def taught(design: Design, speed: Speed) -> tuple[list[Rung[Candidate]], Mapping[str, Mapping[int, Learned]]]:
    """The rungs of training; the teacher is let go afterwards, as what measures loads the target itself."""
    school, steps = design.school(), design.asked.steps
    chosen = to_be_trained(design.candidates, speed)
    some = f"{counted(len(chosen), 'shape')} of {len(design.candidates)}"
    say(design.err, [f"training {some}, {steps[0]:,} tokens each …"])

    def watch(one: Candidate, tokens: int, learned: Learned) -> None:
        speedup = speed.predicted(one.name, learned.alpha)
        say(design.err, [f"{one.name} after {tokens:,} tokens: α {learned.alpha:.3f}, {speedup:.2f}× predicted"])

    return halved(chosen, steps, school, speed, watch)


def labels(design: Design) -> list[str]:
    """What times are of, where it is not the networks themselves."""
    engine = design.engine
    if engine.like is None:
        return []
    times = find(engine.like).hidden_size / engine.target.get_text_config(decoder=True).hidden_size
    return [
        f"all times are of scale models: the target grown to {engine.like}, every draft {times:.3g} times as wide with "
        "its own number of layers; acceptance is that of the small ones"
    ]


def grown_sizes(design: Design) -> dict[str, int]:
    """The parameters of the scale models that were timed, by name; none where drafts run as they are."""
    shapes = {one.name: design.engine.shape(one) for one in design.candidates}
    return {name: shape.parameters for name, shape in shapes.items() if shape is not None}


def commands(design: Design, found: Found) -> list[str]:
    """What to type next: the training of the best shape on more text."""
    if (best := found.best) is None:
        return []
    source, target = design.asked.source, str(design.settings.get("target", "demo"))
    shape = [word for name in ("layers", "hidden", "intermediate") for word in (f"--{name}", str(best[name]))]
    data = [word for name in source.data for word in ("--data", name)]
    how = "--generate" if source.generate else "--as-it-is"
    words = ["specbench", "train", "draft", "--target", target, *shape, *data, how, "--output", "my-draft"]
    return [shlex.join(words)]


def write(place: Workplace, found: Found, said: Sequence[str]) -> None:
    """design.csv, design.json, and the report with its figures beside it."""
    with folder.writing_to(place.path):
        write_csv(place.path / SHAPES, found.rows)
    place.write(DOCUMENT, {**found.document, "findings": list(said)})
    runs = [path for path in [run_of(place)] if path is not None]
    report_page.write_report([place.path, *runs], svg=True)
