"""A pair ready for measurement: checked, prompts read, weights loaded, names resolved."""

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
from specbench.measure.group import Failure, Job, Past, attempt, give_up, seed_of
from specbench.models.execution import machine as processes
from specbench.models.network.skipping import COLUMNS
from specbench.results.cells import UNFINISHED, Cell, Observer
from specbench.results.machine import MEASURED_ON, environment
from specbench.spec import BASELINE, CHOOSING, RunSpec, methods_of
from specbench.theory.memory import Fit
from specbench.theory.optimum import Costs

COSTS = "schedule_costs"

Note = Callable[[str], None]  # called with notes for the user about a pair
Measured = tuple[list[Cell] | Failure, KeyboardInterrupt | None]


@dataclass(frozen=True)
class Prepared:
    """The checked cells of one pair, and their prompts: bad data is found before weights are loaded."""

    specs: Sequence[RunSpec]
    backend: Backend
    prompts: Mapping[RunSpec, PromptSet]
    fitting: Fitting

    @property
    def fit(self) -> Fit | None:
        """Required and free memory."""
        return self.fitting.fit

    @property
    def measured(self) -> list[RunSpec]:
        """The cells that fit into memory."""
        return [spec for spec in self.specs if spec not in self.fitting.left_out]

    def left(self, past: Past) -> int:
        """The maximum number of prompts to decode, with every turn and repetition, in unfinished groups."""
        unfinished = [s for s in self.measured if s not in past or past[s].status in UNFINISHED]
        return sum(self.prompts[s].turns * s.repeat for s in {s.baseline: s for s in unfinished}.values())

    def jobs(self, observers: Sequence[Observer], past: Past) -> list[Job] | Failure:
        """Load the pair; a Failure if it cannot be loaded."""
        return attempt(lambda: self.load(past, partial(shown, observers)))

    def leave_out(self, spec: RunSpec, observers: Sequence[Observer], past: Past) -> Cell:
        """End a cell that does not fit into memory."""
        cell = past.get(spec) or Cell(spec, self.resolved(spec, None), status="skipped")
        (ended,) = give_up([spec], self.fitting.left_out[spec], observers, {spec: cell})
        return ended

    def load(self, past: Past, watch: Loading = unseen) -> list[Job]:
        """Load the weights, and measure costs for `--k auto` unless a continued run has them."""
        self.backend.load(max(self.prompts[spec].longest for spec in self.measured), watch)
        costs = self.costs(past)
        return [
            Job(spec, self.prompts[spec], self.resolved(spec, costs) | ({} if spec in past else self.experts(spec)))
            for spec in self.measured
        ]

    def experts(self, spec: RunSpec) -> dict[str, Any]:
        """Columns on the experts touched by target passes, counted over a few tokens before anything is timed.

        Empty for a target without experts, for a method that fails here (its cell will report why), and for
        one that is chosen for every prompt.
        """
        networks, first = self.backend.networks, self.prompts[spec].prompts[: spec.batch]
        if networks is None or spec.method == CHOOSING:
            return dict.fromkeys(COLUMNS)
        seeds = [seed_of(spec.baseline, prompt.id, 0, "experts") for prompt in first]
        found = attempt(lambda: networks.experts(spec, [prompt.ids for prompt in first], seeds))
        return dict.fromkeys(COLUMNS) if found is None or isinstance(found, Failure) else found

    def costs(self, past: Past) -> Costs | None:
        """The costs used by `--k auto`; None if no cell has that schedule."""
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
        """Free memory for the next pair."""
        self.backend.unload()
        gc.collect()
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()

    def resolved(self, spec: RunSpec, costs: Costs | None) -> dict[str, Any]:
        """What the names of a spec resolved to, as columns of its row."""
        own = json.dumps(asdict(costs)) if costs and spec.schedule == AUTO else None
        drafted_by = ", ".join(sorted({name for method in methods_of(spec) for name in drafts_with(method)}))
        pair = resolved_pair(self.backend)
        carried = "" if spec.method == CHOOSING else carries(spec)
        drafting = {"drafted_by": drafted_by, "draft_cost_per": cost_per(spec, pair), "carries": carried}
        drafting["method_sha256"] = content_sha256(methods_of(spec))
        memory = self.fitting.row(spec) | {"engine_notes": "; ".join(self.backend.notes(spec))}
        return {**self.prompts[spec].row(), **drafting, **pair, **memory, COSTS: own}


def shown(observers: Sequence[Observer], what: str, done: int, total: int) -> None:
    """Report the progress of fetching or loading to observers."""
    for observer in observers:
        observer.loading(what, done, total)


@dataclass(frozen=True)
class Unusable:
    """The cells of a pair that cannot be measured, and the reason."""

    specs: Sequence[RunSpec]
    failure: Failure

    def measure(self, observers: Sequence[Observer], past: Past, note: Note) -> Measured:
        return self.failure, None


Pair = Prepared | Unusable


def read_costs(text: str) -> Costs:
    """Parse the costs in the record of a run."""
    found = json.loads(text)
    return Costs(**{**found, "verify": tuple(found["verify"])})


def cost_per(spec: RunSpec, pair: Mapping[str, Any]) -> str:
    """The unit of draft cost: the round if one head pass or search drafts all its tokens, else the token.

    Nests cost per token, as their drafts take varying numbers of rounds. Empty for the baseline.
    """
    if spec.method in (BASELINE, CHOOSING):
        return ""
    if nests(spec.method):
        return "token"
    return "round" if all(pair.get(f"{name}_at_once") for name in drafts_with(spec.method)) else "token"


def resolved_pair(backend: Backend) -> dict[str, Any]:
    """Columns on what the names of a loaded pair resolved to, and its device."""
    machine = environment(backend.device)
    return {"engine": backend.name, **backend.describe(), **{name: machine.get(name) for name in MEASURED_ON}}
