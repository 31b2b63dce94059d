"""A pair that is ready to be measured: checked, its prompts read, its weights loaded, its names resolved.

Knows backends and prompts; must not know the command line or files of results.
"""

import gc
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from specbench.backends.native import Native
from specbench.data.prompts import PromptSet, load_prompts
from specbench.data.sampling import digest
from specbench.errors import UsageError
from specbench.measure.calibrate import quick_costs
from specbench.measure.grid import AUTO
from specbench.measure.runner import Job, Past
from specbench.models.scale.growth import label
from specbench.results.cells import UNFINISHED
from specbench.results.environment import environment
from specbench.shipped import PACKAGE
from specbench.spec import RunSpec
from specbench.theory.costs import Costs
from specbench.wording import grouped

MACHINE = ("device_name", "threads", "torch", "transformers", "specbench", "fingerprint")
VERSIONS = ("specbench", "torch", "transformers")
COSTS = "schedule_costs"


class Prepared:
    """The cells of one pair. Creating it checks the pair and reads the prompts: bad data is found before any weight."""

    def __init__(self, specs: Sequence[RunSpec]) -> None:
        self.specs = specs
        self.backend = Native(*specs)
        self.prompts: dict[RunSpec, PromptSet] = {}
        for group in grouped(specs, lambda spec: spec.baseline):
            self.prompts |= dict.fromkeys(group, prompts_of(group, self.backend))
        self.backend.longest = max(len(prompt.ids) for found in self.prompts.values() for prompt in found.prompts)

    def turns(self, past: Past) -> int:
        """How many turns the groups that have not ended have at most."""
        left = [s for s in self.specs if s not in past or past[s].status in UNFINISHED]
        return sum(len(self.prompts[spec].prompts) * spec.repeat for spec in {s.baseline: s for s in left}.values())

    def load(self, past: Past) -> list[Job]:
        """Read the weights, and measure what `--k auto` must know beforehand, unless a continued run has it already."""
        self.backend.load()
        adaptive = [spec for spec in self.specs if spec.schedule == AUTO]
        if adaptive:
            known = [cell.resolved[COSTS] for cell in past.values() if cell.spec in adaptive]
            deepest = max(spec.k for spec in adaptive)
            self.backend.costs = read_costs(known[0]) if known else quick_costs(self.backend, deepest, adaptive[0])
        return [Job(spec, self.prompts[spec], self.resolved(spec)) for spec in self.specs]

    def unload(self) -> None:
        """Make room for the next pair."""
        self.backend.unload()
        gc.collect()
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()

    def resolved(self, spec: RunSpec) -> dict[str, Any]:
        """What the names of a spec stood for, as columns of its row."""
        prompts = self.prompts[spec]
        left_out = ", ".join(f"{count} {reason}" for reason, count in prompts.rejected.items() if count)
        data = {"rejected": left_out, "prompts_sha256": prompts.sha256, "dataset_revision": prompts.revision}
        costs = self.backend.costs if spec.schedule == AUTO else None
        return {**data, **roles(self.backend), COSTS: json.dumps(asdict(costs)) if costs else None}


def read_costs(text: str) -> Costs:
    found = json.loads(text)
    return Costs(**{**found, "verify": tuple(found["verify"])})


def prompts_of(group: Sequence[RunSpec], backend: Native) -> PromptSet:
    """The prompts of cells with a common baseline: they leave room for the new tokens and the longest draft of any.

    Where `until_ci` decides how many are decoded, they come in an order of the seed, so that any first part is fair.
    """
    spec = group[0]
    longest = backend.context - spec.max_new_tokens - max(one.k for one in group) - 1
    found = load_prompts(
        spec.dataset,
        backend.encode,
        limit=spec.limit,
        seed=spec.seed,
        longest=longest,
        column=spec.column,
        template=spec.template,
    )
    if spec.until_ci is None:
        return found
    return found.in_order(sorted(range(len(found.prompts)), key=lambda row: digest(spec.seed, row)))


def roles(backend: Native) -> dict[str, Any]:
    """What the pair resolved to, as columns. `scale_model` names the roles that are scale models; empty if none is."""
    scaled = [f"{name} {called}" for name, role in backend.roles.items() if (called := label(role.config))]
    found: dict[str, Any] = {"tier_resolved": backend.tier.name, "scale_model": ", ".join(scaled)}
    for name, role in backend.roles.items():
        prefix = "" if name == "target" else f"{name}_"
        found |= {
            f"{name}_source": shipped_source(role.checkpoint.source),
            f"{name}_commit": backend.commits.get(name) or role.checkpoint.revision,
            f"{prefix}dtype_resolved": str(role.dtype).removeprefix("torch."),
        }
    machine = environment(backend.device)
    return found | {name: machine[name] for name in MACHINE}


def shipped_source(source: str) -> str:
    """A checkpoint's place; of a shipped one the place inside the package, which is the same on every machine."""
    path = Path(source)
    return str(Path("specbench", path.relative_to(PACKAGE))) if path.is_relative_to(PACKAGE) else source


def same_ground(description: Mapping[str, Any], prepared: Prepared, past: Past) -> None:
    """UsageError where a continued run would mix numbers of two machines, versions or sets of prompts."""
    before, today = description["environment"], environment(prepared.backend.device)
    # A grid may have a second device; run.json tells the fingerprint of the first.
    names = VERSIONS if before.get("device") != today["device"] else (*VERSIONS, "fingerprint")
    if any(before.get(name) != today[name] for name in names):
        raise UsageError(
            f"this run was begun on another machine or with other versions ({describe(before)}; here "
            f"{describe(today)}): its numbers would mix; start a new run"
        )
    for spec in prepared.specs:
        if spec in past and past[spec].resolved["prompts_sha256"] != prepared.prompts[spec].sha256:
            raise UsageError(f"the prompts of {spec.dataset} have changed since this run was begun: start a new run")


def describe(machine: Mapping[str, Any]) -> str:
    names = ("device_name", "threads", "torch", "transformers", "specbench")
    return ", ".join(f"{name} {machine.get(name)}" for name in names)
