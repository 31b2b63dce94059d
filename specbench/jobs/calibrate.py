"""The bodies of `specbench calibrate`, `noise` and `predict --hardware`: from settings to printed tables."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.console import Console

from specbench.backends.base import networks_of
from specbench.backends.choose import backend_for
from specbench.backends.roles import undrafted
from specbench.errors import UsageError
from specbench.files import replace_text
from specbench.jobs import run
from specbench.jobs.output import Output, say
from specbench.jobs.progress import load
from specbench.jobs.run import described, folder_name
from specbench.measure import grid
from specbench.measure.calibrate import QUICK_CONTEXT, calibrate, cut, fitting, sizes_of
from specbench.measure.pair import resolved_pair
from specbench.measure.parsing import USUAL
from specbench.models.checkpoints.quantise import UNFUSED
from specbench.results import folder
from specbench.results.calibration import AtContext, Calibration, calculated, extrapolated
from specbench.results.cells import MEASURED, raise_for_status
from specbench.results.folder import make_folder
from specbench.results.named_runs import write_csv
from specbench.show import documents, run_output
from specbench.show.documents import calibration_tables
from specbench.show.fitting import draw, screen
from specbench.show.table import framed
from specbench.spec import BASELINE, RunSpec
from specbench.theory.roofline import Engine


def start_calibrate(
    settings: Mapping[str, Any], widths: Sequence[int], contexts: Sequence[int], repeat: int, output: Output
) -> None:
    """Measure a pair, write its folder and print the results."""
    (spec,) = grid.cells({**USUAL, **settings, "dataset": "none"})
    err = Console(stderr=True, quiet=output.quiet)
    backend = backend_for([spec])
    if spec.tier == "auto" and backend.device.type == "cpu":
        spec = spec.with_(tier="eager")
        backend = backend_for([spec])
        say(err, ["tier eager: to compile passes of so many widths takes long the first time (--tier compile)"])
    networks = networks_of(backend, "a calibration")
    lengths = fitting(contexts, max(widths), networks)
    load(backend, spec, max(lengths), err)
    if lengths != list(contexts):
        say(err, [f"note: contexts {join(lengths)}: these models hold {backend.context} tokens"])
    options = {"widths": list(widths), "contexts": lengths, "repeat": repeat}
    # before anything is measured
    about = {"kind": "calibration", "calibration": options, "resolved": resolved_pair(backend)}
    description = described([spec], backend.device, **about)
    with folder.writing_to(output.parent):
        made = make_folder(output.parent, folder_name(spec, "calibrate"))
        replace_text(made / "run.json", json.dumps(description, indent=2, sort_keys=True) + "\n")
    found = calibrate(
        networks, lengths, widths, repeat, spec.seed, spec=spec,
        watch=lambda length: say(err, [f"context {length}: timing {len(widths)} widths {repeat} times …"]),
    )  # fmt: skip
    found = replace(found, tier=backend.describe()["tier_resolved"])
    with folder.writing_to(made):
        write_csv(made / "calibration.csv", found.rows())
        replace_text(made / "calibration.json", json.dumps(found.document(), indent=2) + "\n")
    print_calibration(found, output.style)
    say(err, [f"results: {made}"])


def join(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def print_calibration(found: Calibration, style: str) -> None:
    """Print as `style`: points as csv or jsonl, everything as json, tables for readers."""
    if style in ("csv", "jsonl"):
        sys.stdout.write(run_output.rendered(found.rows(), style))
    elif style == "json":
        sys.stdout.write(json.dumps(found.document(), indent=2) + "\n")
    elif style == "md":
        sys.stdout.write("\n".join(table.markdown(str) for table in calibration_tables(found)))
    else:
        for table in calibration_tables(found):
            table.print()


# --- noise ------------------------------------------------------------------------------------------------------------
# The body of `specbench noise`: cells through the common runner, and a table of the results.

NOISE = {"method": BASELINE, "dataset": ["code"], "limit": 20}


def start_noise(settings: Mapping[str, Any], output: Output) -> None:
    """Measure and print; exit code 6 if a cell failed."""
    done = run.record(grid.cells({**NOISE, **settings}), output.parent, run.Terminal(output))
    run.say_where(done, output)
    rows = [documents.noise_row(cell) for cell in done.cells if cell.status in MEASURED]
    notes = documents.noise_notes(rows)
    if output.style in {"table", "md"}:
        lined = documents.noise_grid(rows)
        if output.style == "table":
            draw(screen(), framed(lined[0], lined[1:]))
        else:
            sys.stdout.write(documents.noise_markdown(lined))
    else:
        sys.stdout.write(run_output.rendered(rows, output.style))
    if not output.quiet:
        say(Console(stderr=True), [f"note: {note}" for note in notes])
    raise_for_status(done.cells)


# --- forecast ---------------------------------------------------------------------------------------------------------
# The body of `specbench predict --hardware`: costs of a pair from constants of a GPU, or from a few measured layers.

GPU = "calculated from constants and shapes; {}"
CPU = "extrapolated from layers measured on this machine ({})"
REPEAT = 7
WIDTHS = (1, 2, 3, 5, 9, 17, 33)  # of the passes measured here, as far as they are needed; others are interpolated
Forecast = tuple[str, list[dict[str, Any]]]
Level = tuple[dict[str, Any], AtContext]  # columns of its tier and batch, and its costs


def forecast(hardware: str, cells: Sequence[RunSpec], alphas: Sequence[float], ks: Sequence[int]) -> Forecast:
    """The basis of a forecast, and its rows: the best K of `ks` for every α in every cell. UsageError without a K."""
    if max(ks) < 1:
        raise UsageError("--k 0 drafts nothing: give a K of 1 or more")
    basis, levels = measured_here(cells, max(ks)) if hardware == "cpu" else calculated_for(hardware, cells, max(ks))
    rows = [
        {"hardware": hardware, **about, **row, "basis": basis}
        for about, level in levels
        for row in level.forecast(alphas, ks, about["batch"])
    ]
    return basis, rows


def calculated_for(gpu: str, cells: Sequence[RunSpec], k: int) -> tuple[str, list[Level]]:
    """The basis, and the calculated costs of every cell on a GPU; `auto` is the tier that a run would take there."""
    engines = [Engine.of(gpu, tier_on_gpu(spec), spec.batch) for spec in cells]
    sizes = sizes_of(cells[0])
    levels = list[Level]()
    for engine, spec in zip(engines, cells, strict=True):
        context = spec.context or QUICK_CONTEXT
        unmasked, masked = (1000 * engine.attention(sizes[0], context, masked=m) for m in (False, True))
        about = {"tier": engine.tier, "batch": spec.batch, "attention_ms": masked, "attention_unmasked_ms": unmasked}
        levels.append((about, calculated(engine, *sizes, context, k)))
    known = engines[0].gpu
    return GPU.format(known.compared or f"never compared with a real {known.title}"), levels


def tier_on_gpu(spec: RunSpec) -> str:
    """The tier of a run on a GPU where every method can be compiled, as `tiers.choose` decides it."""
    unpacked = {spec.quantize, spec.draft_quantize} & {*UNFUSED}
    return spec.tier if spec.tier != "auto" else "compile" if unpacked else "graph"


def measured_here(cells: Sequence[RunSpec], k: int) -> tuple[str, list[Level]]:
    """The basis, and the costs of every tier at every context: two pairs with few layers are measured. UsageError for
    a batch."""
    if any(spec.batch > 1 for spec in cells):
        raise UsageError("--hardware cpu predicts one sequence at a time: leave out --batch, or measure with it")
    spec = cells[0]
    if spec.draft is None:
        raise UsageError(undrafted(spec.target))
    target, draft = cut(spec.target), cut(spec.draft)
    contexts = sorted({one.context or QUICK_CONTEXT for one in cells})
    widths = [*(width for width in WIDTHS if width <= k), k + 1]
    levels = list[Level]()
    for tier in dict.fromkeys(one.tier for one in cells):
        given = spec.with_(tier=tier, device="cpu", context=None)
        name, deep = timed(given.with_(target=target.deep, draft=draft.deep), contexts, widths)
        found = deep
        if (target.shallow, draft.shallow) != (target.deep, draft.deep):
            _, few = timed(given.with_(target=target.shallow, draft=draft.shallow), contexts, widths)
            found = [extrapolated(*both, target.way, draft.way) for both in zip(few, deep, strict=True)]
        levels += [({"tier": name, "batch": 1}, level) for level in found]
    return CPU.format(f"target {target.words}, draft {draft.words}"), levels


def timed(spec: RunSpec, contexts: Sequence[int], widths: Sequence[int]) -> tuple[str, Sequence[AtContext]]:
    """The tier of a pair and its costs at every context that its models hold."""
    err, backend = Console(stderr=True), backend_for([spec])
    networks = networks_of(backend, "a forecast")
    lengths = fitting(contexts, max(widths), networks)
    load(backend, spec, max(lengths), err)
    say(err, [f"timing {spec.target} and {spec.draft}, {backend.execution} …"])
    try:
        return backend.describe()["tier_resolved"], calibrate(
            networks, lengths, widths, REPEAT, spec.seed, spec=spec
        ).contexts
    finally:
        backend.unload()
