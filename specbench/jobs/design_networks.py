"""The networks of a design: drafts before they have learned, and as the engine is to run them, grown where asked.

Knows shapes and networks; must not know training, clocks or folders.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from specbench.backends.base import Backend, Held
from specbench.errors import UnusableModelError
from specbench.jobs.design_shapes import Candidate, scaled
from specbench.measure.fit import fit_of, refuse_too_large
from specbench.models.checkpoints.how import AS_STORED
from specbench.models.checkpoints.sizes import network_sizes
from specbench.models.scale import grow, growth, shapes
from specbench.theory.memory import Demand, Part
from specbench.training.start.starting import config_of, fresh


@dataclass(frozen=True)
class Engine:
    """How the engine runs drafts: its dtype and device, and the shape that target and drafts are grown to, if any.

    target: the configuration of the target that drafts are trained for, not grown.
    """

    dtype: torch.dtype
    device: torch.device
    target: Any
    like: str | None

    def shape(self, candidate: Candidate) -> shapes.Shape | None:
        """The shape of a draft's scale model; None where it runs as it is."""
        return scaled(candidate.shape, self.target, self.like) if self.like else None

    def config(self, candidate: Candidate) -> Any:
        """The configuration of a draft as it runs. UnusableModelError where it cannot be grown."""
        small = config_of(candidate.shape, self.target)
        if (large := self.shape(candidate)) is None:
            return small
        if reason := growth.obstacle(small, large):
            raise UnusableModelError(f"{candidate.name} as a scale model of {large.name}: {reason}")
        return growth.grown_config(small, large, candidate.name)

    def ready(self, candidate: Candidate, network: Any) -> Any:
        """A draft as the engine runs it; `network` itself stays as it is."""
        config = self.config(candidate)
        config.dtype = self.dtype
        attention = AS_STORED.attention_of(config)
        if self.like:
            made = grow.network(network.state_dict(), network.config, config, self.device, attention)
        else:
            made = copy.deepcopy(network).to(self.device, self.dtype)
            made.set_attn_implementation(attention)
        return made.eval().requires_grad_(False)


def untrained(candidate: Candidate, target: Any, seed: int, embedding: Tensor | None = None) -> Any:
    """A draft that has learned nothing, for a target of this configuration."""
    return fresh(candidate.shape, target, seed, embedding=embedding)


def refuse_beyond_memory(backend: Backend, held: Held, candidates: Sequence[Candidate], engine: Engine) -> None:
    """UnusableModelError, before a weight is read, where the target and all drafts together are too large."""
    fit = fit_of(backend, [held])
    if fit is None:
        return
    sizes = [network_sizes(engine.config(one), engine.dtype, engine.device).weights for one in candidates]
    drafts = Part(f"{len(sizes)} drafts", "weights", sum(sizes))
    parts = [*fit.demand.parts, drafts]
    others = {name: [*some, drafts] for name, some in fit.demand.others.items()}
    refuse_too_large(replace(fit, demand=Demand(parts, fit.demand.loading, others)))
