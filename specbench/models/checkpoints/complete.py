"""What transformers reports about weights that it has loaded: what is missing is refused, what is left over is said.

Knows the report of `from_pretrained`; must not know files or how a network is used.
"""

from collections.abc import Collection, Mapping
from typing import Any

from specbench.errors import UnusableModelError
from specbench.models.checkpoints.pairs import Checkpoint
from specbench.models.scale import growth


def refuse_incomplete(checkpoint: Checkpoint, info: dict[str, Any]) -> None:
    # transformers fills what is missing with random numbers. Tied weights are not among what it calls missing.
    if info["mismatched_keys"]:
        name, stored, wanted = min(info["mismatched_keys"], key=lambda entry: str(entry[0]))
        raise UnusableModelError(
            f"{checkpoint.name}: weights do not fit config.json: {name} is {list(stored)}, not {list(wanted)}"
        )
    if info["missing_keys"]:
        raise UnusableModelError(f"{checkpoint.name}: weights are missing: {some(info['missing_keys'])}")
    if info["error_msgs"]:
        raise UnusableModelError(f"{checkpoint.name}: weights do not load: {' '.join(info['error_msgs'][0].split())}")


def refuse_other_types(checkpoint: Checkpoint, model: Any, no_floats: Mapping[str, str]) -> None:
    """UnusableModelError for weights that are stored as no floats (their names and types) and are computed as such."""
    floats = {name for name, weight in model.named_parameters() if weight.is_floating_point()}
    for name, kind in sorted(no_floats.items()):
        if {name, f"{model.base_model_prefix}.{name}"} & floats:
            raise UnusableModelError(
                f"{checkpoint.name}: {name} is stored as {kind}, and config.json names no way of quantising: write the "
                "weights as float32, float16 or bfloat16, or name in quantization_config how they are quantised"
            )


def loading_warnings(checkpoint: Checkpoint, config: Any, info: dict[str, Any], pickled: bool) -> tuple[str, ...]:
    warnings = growth.warnings(checkpoint.name, config)
    if pickled:
        warnings.append(f"{checkpoint.name}: pickled weights (.bin), read by torch's weights-only loader")
    if info["unexpected_keys"]:
        warnings.append(f"{checkpoint.name}: weights that the model does not use: {some(info['unexpected_keys'])}")
    return tuple(warnings)


def some(names: Collection[str]) -> str:
    """The first of some names, in the order of the alphabet, and how many there are besides."""
    first = ", ".join(sorted(names)[:3])
    return first if len(names) <= 3 else f"{first} and {len(names) - 3} more"
