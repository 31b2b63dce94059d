"""The pairs of a job: prepared, measured one after the other, and given up where they cannot be measured.

Knows pairs, failures and continued runs; must not know where anything is stored or drawn.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from specbench.backends.checked import checkpoints_of
from specbench.errors import UsageError
from specbench.jobs.apart import Apart
from specbench.jobs.spread.schedule import Spread
from specbench.measure import grid
from specbench.measure.engines import Beside
from specbench.measure.failures import Failure
from specbench.measure.group import INTERRUPTED, Observer, Past, give_up
from specbench.measure.pair import Measured, Note, Pair, Prepared, Unusable, prepared
from specbench.results.cells import UNFINISHED, Cell
from specbench.results.machine import environment
from specbench.results.reading import DESCRIPTION, Run
from specbench.spec import RunSpec
from specbench.wording import clean

Unit = Pair | Beside | Apart | Spread  # what is measured at once
ENDED = Failure("skipped", "")  # of a pair whose cells have all ended before; no cell shows it
VERSIONS = ("specbench", "torch", "transformers")
MACHINE = ("device_name", "threads", *VERSIONS)
HOST = ("cpu", "cores", "platform", "python")  # not the threads, which some backends set when they are opened


def pairs_of(specs: Sequence[RunSpec]) -> list[Pair]:
    """The pairs of a new run. Raises the error of the only one."""
    pairs = [prepared(group) for group in grid.by_pair(specs)]
    refuse_unusable(pairs)
    return pairs


def pairs_left(run: Run, past: Past) -> list[Pair]:
    """The pairs of a continued run. Raises the error of the only one, and UsageError where numbers would mix."""
    pairs = [continued(group, past, run.limits) for group in grid.by_pair(run.specs)]
    refuse_unusable(pairs)
    for pair in usable(pairs):
        same_ground(run.description, pair, past)
    return pairs


def described_machine(run: Run) -> Mapping[str, Any]:
    """What a run says of the machine that it was begun on. UsageError where it says nothing."""
    found = run.description.get("environment")
    if not isinstance(found, dict):
        raise UsageError(f"{run.path / DESCRIPTION} is damaged (it has no environment): start a new run")
    return found


def continued(specs: Sequence[RunSpec], past: Past, limits: Sequence[int | None] = ()) -> Pair:
    """A pair of a continued run; one whose cells have all ended is neither checked nor loaded."""
    return prepared(specs, limits) if unfinished(specs, past) else Unusable(specs, ENDED)


def unfinished(specs: Sequence[RunSpec], past: Past) -> list[RunSpec]:
    """Those that a continued run has to measure."""
    return [spec for spec in specs if spec not in past or past[spec].status in UNFINISHED]


def refuse_unknown(specs: Sequence[RunSpec]) -> None:
    """Raise the error of the only pair where its models are unknown by name, or a method file is wrong."""
    pairs = grid.by_pair(specs)
    if len(pairs) == 1 and specs[0].backend in (None, "transformers"):
        checkpoints_of(pairs[0])


def usable(pairs: Sequence[object]) -> list[Prepared]:
    """The pairs that can be loaded, as far as that is known yet."""
    return [pair for pair in pairs if isinstance(pair, Prepared)]


def refuse_unusable(pairs: Sequence[Pair]) -> None:
    """Raise the error of the only pair of a job where it is unusable already."""
    for pair in pairs:
        if isinstance(pair, Unusable):
            refuse(pair.failure, pairs)


def refuse(failure: Failure, pairs: Sequence[object]) -> None:
    """Raise the error of the only pair of a job, with nothing recorded; one of several ends its own cells only."""
    if len(pairs) == 1 and failure.cause is not None:
        raise failure.cause


def device_of(pairs: Sequence[object]) -> torch.device:
    """Where the first usable pair is measured."""
    return next((pair.backend.device for pair in usable(pairs)), torch.device("cpu"))


def prompts_left(pairs: Sequence[object], past: Past) -> int:
    """How many prompts are decoded at most, repetitions counted."""
    return sum(pair.left(past) for pair in usable(pairs))


def measure_pairs(
    pairs: Sequence[Unit], observers: Sequence[Observer], past: Past, note: Note
) -> tuple[list[Cell], KeyboardInterrupt | None]:
    """The cells of all pairs; after an interrupt, those of the pairs that are left are given up.

    Raises an interrupt that comes before there is anything to be kept.
    """
    cells: list[Cell] = []
    stop: KeyboardInterrupt | None = None
    for pair in pairs:
        found, stop = (INTERRUPTED, stop) if stop else measured(pair, observers, past, note)
        if isinstance(found, Failure) and stop and not (cells or past):
            raise stop
        if isinstance(found, Failure):
            refuse(found, pairs)
            found = give_up(pair.specs, found, observers, past)
        cells += found
    return cells, stop


def measured(pair: Unit, observers: Sequence[Observer], past: Past, note: Note) -> Measured:
    """What a pair gave, or an interrupt that came while it was loaded."""
    try:
        return pair.measure(observers, past, note)
    except KeyboardInterrupt as stop:
        return INTERRUPTED, stop


def same_ground(description: Mapping[str, Any], prepared: Prepared, past: Past) -> None:
    """UsageError where a continued run would mix numbers of two machines, versions or sets of prompts."""
    before, today = description["environment"], environment(prepared.backend.device)
    # A grid may have a second device; run.json holds the fingerprint of the first.
    names = VERSIONS if before.get("device") != today["device"] else (*VERSIONS, "fingerprint")
    refuse_other(before, today, names)
    for spec in prepared.specs:
        refuse_elsewhere(past.get(spec), today)
        if spec in past and past[spec].resolved["prompts_sha256"] != prepared.prompts[spec].sha256:
            raise UsageError(f"the prompts of {spec.dataset} have changed since this run was begun: start a new run")


def refuse_other(before: Mapping[str, Any], today: Mapping[str, Any], names: Sequence[str]) -> None:
    """UsageError where some of what two environments say of themselves differs."""
    other = [name for name in names if before.get(name) != today[name]]
    if other:
        shown = [name for name in other if name != "fingerprint"] or MACHINE
        raise UsageError(
            f"this run was begun on another machine or with other versions ({in_words(before, shown)}; here "
            f"{in_words(today, shown)}): its numbers would mix; start a new run"
        )


def refuse_elsewhere(cell: Cell | None, today: Mapping[str, Any]) -> None:
    """UsageError for a cell with samples that a node of a cluster has measured and this machine would go on with."""
    if cell is None or not cell.samples or cell.status not in UNFINISHED or "node" not in cell.resolved:
        return
    if cell.resolved.get("fingerprint") != today["fingerprint"]:
        raise UsageError(
            f"cell {cell.spec.key} was begun on {cell.resolved['node']}, another machine than this one: its numbers "
            "would mix; go on with --executor ray"
        )


def same_host(run: Run, names: Sequence[str]) -> None:
    """UsageError where a run that goes on was begun with other versions or on another host, as far as the named facts
    say it: those that are known before anything is opened."""
    refuse_other(described_machine(run), environment(torch.device("cpu")), names)


def in_words(machine: Mapping[str, Any], names: Sequence[str] = MACHINE) -> str:
    """Facts about a machine and its versions as a message has them."""
    return ", ".join(f"{name} {clean(machine.get(name))}" for name in names)
