"""A network that several processes hold together: every layer is split, and each holds the same part of all of them.

transformers splits it while it reads the weights, by the plan that comes with the architecture: its modelling code is
what we run, so its plan is the one that fits, for every architecture that has one. Knows configurations and plans; must
not know what a network is used for.
"""

from collections.abc import Mapping
from typing import Any

import torch
from transformers.distributed.configuration_utils import DistributedConfig

from specbench.errors import UnusableModelError, UsageError
from specbench.models.checkpoints import divided
from specbench.models.checkpoints.architectures import network_class
from specbench.models.checkpoints.how import How
from specbench.models.checkpoints.pairs import Checkpoint
from specbench.models.execution import processes

OPTION = "--tensor-parallel"
START = "torchrun --nproc-per-node {} -m specbench run …"
STYLES = {  # those whose rows were compared with the ones of a whole network
    *("colwise", "rowwise", "colwise_gather_output", "replicated_with_grad_allreduce", "embedding_rowwise"),
}
SPLIT = ("num_attention_heads", "num_key_value_heads", "intermediate_size")


def refuse_unable(checkpoint: Checkpoint, config: Any, how: How, device: torch.device) -> None:
    """UsageError or UnusableModelError, before a weight is read, where the processes cannot hold a network together."""
    count = how.parallel or 1
    if processes.joined() != count:
        raise UsageError(
            f"{OPTION} {count}: {processes.joined()} of {count} processes are there: start with {START.format(count)}"
        )
    if how.device_map is not None:
        raise UsageError(f"{OPTION} and {divided.OPTION} divide the target in two ways: leave one out")
    if device.type == "cpu" and torch.cuda.is_available():
        raise UsageError(f"{OPTION} computes on GPUs where there are any: leave --device {device} out")
    if reason := divided.obstacle(checkpoint, how.quantize):
        raise UsageError(f"{OPTION}: {checkpoint.name} cannot be split: {reason}")
    refuse_uneven(checkpoint.name, config.get_text_config(decoder=True), count)
    refuse_unplanned(checkpoint.name, config)


def refuse_uneven(name: str, config: Any, count: int) -> None:
    """UnusableModelError where some size of a network does not divide by the number of processes."""
    sizes = {part: size for part in SPLIT if isinstance(size := getattr(config, part, None), int)}
    if uneven := [part for part, size in sizes.items() if size % count]:
        able = [n for n in range(2, min(sizes.values()) + 1) if not any(size % n for size in sizes.values())]
        use = f"use {', '.join(map(str, able[:6]))}" if able else "it can only be held whole"
        raise UnusableModelError(
            f"{OPTION} {count}: {name} has {uneven[0]} = {sizes[uneven[0]]}, which does not divide by {count}: {use}"
        )


def refuse_unplanned(name: str, config: Any) -> None:
    """UnusableModelError where transformers has no plan for an architecture, or one that nobody has checked here."""
    plan = plan_of(config)
    if not plan:
        raise UnusableModelError(f"{OPTION}: transformers has no plan for {config.model_type}, which {name} is")
    if unknown := sorted(set(plan.values()) - STYLES):
        raise UnusableModelError(f"{OPTION}: {name} is split by {unknown[0]}, which is not supported here")


def plan_of(config: Any) -> Mapping[str, str]:
    """How transformers splits a network: the ways, by the names of its parts."""
    base = getattr(config.get_text_config(decoder=True), "base_model_tp_plan", None) or {}
    return {**base, **(getattr(network_class(config), "_tp_plan", None) or {})} if base else {}


def settings(count: int) -> dict[str, Any]:
    """What transformers is told; it places every part on the device of its process."""
    return {"distributed_config": DistributedConfig(tp_size=count), "device_map": None}


def label(how: How) -> str:
    """What results say about it; empty for a network that one process holds."""
    return f"split over {how.parallel} processes" if how.parallel else ""
