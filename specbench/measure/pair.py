"""A pair that is ready to be measured: checked, its prompts read, its weights loaded, its names resolved."""

import gc
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from specbench.backends.base import Backend, Loading, networks_of, unseen
from specbench.backends.roles import carries
from specbench.data.prompts import PromptSet
from specbench.decoding.method_files import content_sha256, drafts_with, nests
from specbench.measure.calibrate import quick_costs
from specbench.measure.fit import Fitting
from specbench.measure.grid import AUTO
from specbench.measure.group import Failure, Job, Past, attempt, give_up
from specbench.measure.order import seed_of
from specbench.models.execution import machine as processes
from specbench.models.network.experts import COLUMNS
from specbench.results.cells import UNFINISHED, Cell, Observer
from specbench.results.machine import MEASURED_ON, environment
from specbench.spec import BASELINE, CHOOSING, RunSpec, methods_of
from specbench.theory.memory import Fit
from specbench.theory.optimum import Costs

COSTS = "schedule_costs"

Note = Callable[[str], None]  # called with what a user should know about a pair
Measured = tuple[list[Cell] | Failure, KeyboardInterrupt | None]


@dataclass(frozen=True)
class Prepared:
    """The cells of one pair that has been checked, and their prompts: bad data is found before any weight is read."""

    specs: Sequence[RunSpec]
    backend: Backend
    prompts: Mapping[RunSpec, PromptSet]
    fitting: Fitting

    @property
    def fit(self) -> Fit | None:
        """The memory that measuring takes beside what there is."""
        return self.fitting.fit

    @property
    def measured(self) -> list[RunSpec]:
        """The cells that memory is enough for."""
        return [spec for spec in self.specs if spec not in self.fitting.left_out]

    def left(self, past: Past) -> int:
        """How many prompts are decoded at most, every turn and repetition counted, in groups that have not ended."""
        unfinished = [s for s in self.measured if s not in past or past[s].status in UNFINISHED]
        return sum(self.prompts[s].turns * s.repeat for s in {s.baseline: s for s in unfinished}.values())

    def jobs(self, observers: Sequence[Observer], past: Past) -> list[Job] | Failure:
        """Load the pair; a Failure where it cannot be loaded."""
        return attempt(lambda: self.load(past, partial(shown, observers)))

    def end_left_out(self, observers: Sequence[Observer], past: Past) -> list[Cell]:
        """End the cells that memory is not enough for."""
        return [self.leave_out(spec, observers, past) for spec in self.fitting.left_out]

    def leave_out(self, spec: RunSpec, observers: Sequence[Observer], past: Past) -> Cell:
        """End a cell that memory is not enough for."""
        cell = past.get(spec) or Cell(spec, self.resolved(spec, None), status="skipped")
        (ended,) = give_up([spec], self.fitting.left_out[spec], observers, {spec: cell})
        return ended

    def load(self, past: Past, watch: Loading = unseen) -> list[Job]:
        """Read the weights, and measure what `--k auto` must know beforehand, unless a continued run has it already."""
        self.backend.load(max(self.prompts[spec].longest for spec in self.measured), watch)
        costs = self.costs(past)
        return [
            Job(spec, self.prompts[spec], self.resolved(spec, costs) | ({} if spec in past else self.experts(spec)))
            for spec in self.measured
        ]

    def experts(self, spec: RunSpec) -> dict[str, Any]:
        """The experts that passes of the target touch, as columns, counted over a few tokens before anything is timed.

        They are empty of a target without experts, of a method that fails here,
        whose cell will say why, and of one that is chosen anew for every prompt.
        """
        networks, first = self.backend.networks, self.prompts[spec].prompts[: spec.batch]
        if networks is None or spec.method == CHOOSING:
            return dict.fromkeys(COLUMNS)
        seeds = [seed_of(spec.baseline, prompt.id, 0, "experts") for prompt in first]
        found = attempt(lambda: networks.experts(spec, [prompt.ids for prompt in first], seeds))
        return dict.fromkeys(COLUMNS) if found is None or isinstance(found, Failure) else found

    def costs(self, past: Past) -> Costs | None:
        """The costs that `--k auto` computes with; None where no cell has that schedule."""
        adaptive = [spec for spec in self.measured if spec.schedule == AUTO]
        if not adaptive:
            return None
        networks = networks_of(self.backend, "--k auto")
        known = [cell.resolved[COSTS] for cell in past.values() if cell.spec in adaptive]
        deepest = max(spec.k for spec in adaptive)
        found = read_costs(known[0]) if known else quick_costs(networks, deepest, adaptive[0])
        networks.costs = processes.agreed(found)
        return networks.costs

    def unload(self) -> None:
        """Make room for the next pair."""
        self.backend.unload()
        gc.collect()
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()

    def resolved(self, spec: RunSpec, costs: Costs | None) -> dict[str, Any]:
        """What the names of a spec stood for, as columns of its row."""
        own = json.dumps(asdict(costs)) if costs and spec.schedule == AUTO else None
        drafted_by = ", ".join(sorted({name for method in methods_of(spec) for name in drafts_with(method)}))
        pair = resolved_pair(self.backend)
        carried = "" if spec.method == CHOOSING else carries(spec)
        drafting = {"drafted_by": drafted_by, "draft_cost_per": cost_per(spec, pair), "carries": carried}
        drafting["method_sha256"] = content_sha256(methods_of(spec))
        memory = self.fitting.row(spec) | {"engine_notes": "; ".join(self.backend.notes(spec))}
        return {**self.prompts[spec].row(), **drafting, **pair, **memory, COSTS: own}


def shown(observers: Sequence[Observer], what: str, done: int, total: int) -> None:
    """Tell observers what is being fetched or read."""
    for observer in observers:
        observer.loading(what, done, total)


@dataclass(frozen=True)
class Unusable:
    """The cells of a pair that cannot be measured, and why."""

    specs: Sequence[RunSpec]
    failure: Failure

    def measure(self, observers: Sequence[Observer], past: Past, note: Note) -> Measured:
        return self.failure, None


Pair = Prepared | Unusable


def read_costs(text: str) -> Costs:
    """The costs in the record of a run."""
    found = json.loads(text)
    return Costs(**{**found, "verify": tuple(found["verify"])})


def cost_per(spec: RunSpec, pair: Mapping[str, Any]) -> str:
    """What the cost of drafting goes with: the round where one pass of a head, or a search, drafts all tokens
    of it, else the token, as in a nest, whose drafts take as many rounds as they need. Nothing of the baseline."""
    if spec.method in (BASELINE, CHOOSING):
        return ""
    if nests(spec.method):
        return "token"
    return "round" if all(pair.get(f"{name}_at_once") for name in drafts_with(spec.method)) else "token"


def resolved_pair(backend: Backend) -> dict[str, Any]:
    """What the names of a loaded pair stood for and where it is measured, as columns."""
    machine = environment(backend.device)
    return {"engine": backend.name, **backend.describe(), **{name: machine.get(name) for name in MEASURED_ON}}
