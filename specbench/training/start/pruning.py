"""Drafts that are parts of their target: some of its layers, and of these some of their width.

Knows how layers are chosen and taken out of a network of any architecture; `narrowing` knows how widths are cut. Must
not know what a draft is trained on. What is cut comes with memory of its own, to be trained and saved as it is.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
import transformers
from torch import Tensor, nn

from specbench.errors import UsageError
from specbench.models.network.layers import layers_of
from specbench.training.start import narrowing
from specbench.wording import first_line

Keep = Literal["even", "first", "importance"]
PER_LAYER = ("layer_types", "mlp_layer_types", "layers_block_type", "no_rope_layers")  # lists with an entry per layer


@torch.no_grad()
def pruned(
    target: Any,
    *,
    layers: int | None = None,
    hidden: int | None = None,
    keep: Keep = "even",
    texts: Sequence[Sequence[int]] = (),
) -> Any:
    """A draft of so many of the target's layers and so much of its width (None: all of it), in the target's dtype.

    keep: evenly spaced layers with the first and the last, the first ones, or those that change most what runs through
    them on `texts`, which are sequences of ids. Widths are cut by what these texts need. UsageError for what cannot be
    cut.
    """
    depth = target.config.get_text_config(decoder=True).num_hidden_layers
    kept = list(range(depth)) if layers is None else chosen_layers(target, layers, keep, texts)
    draft = with_own_layers(target, kept)
    return draft if hidden is None else rebuilt(draft, *narrowing.narrowed(draft, hidden, texts))


def chosen_layers(target: Any, layers: int, keep: Keep, texts: Sequence[Sequence[int]]) -> list[int]:
    """The indices of the layers that are kept, in rising order."""
    depth = target.config.get_text_config(decoder=True).num_hidden_layers
    if not 1 <= layers <= depth:
        raise UsageError(f"a draft keeps 1 to {depth} of the layers of {type(target).__name__}, not {layers}")
    if keep == "first":
        return list(range(layers))
    if keep == "even":
        return [round(index * (depth - 1) / max(layers - 1, 1)) for index in range(layers)]
    influence = torch.tensor(block_influence(target, texts))
    return sorted(influence.argsort(descending=True, stable=True)[:layers].tolist())


@torch.no_grad()
def block_influence(network: Any, texts: Sequence[Sequence[int]]) -> list[float]:
    """1 − cos(in, out) of every layer, the mean over all tokens of the texts (ShortGPT, Men et al. 2024, arXiv
    2403.03853, §2.2)."""
    _, _, layers = layers_of(network, network.config.get_text_config(decoder=True).num_hidden_layers)
    found = [0.0] * len(layers)

    def add(index: int, before: Tensor, after: Tensor) -> None:
        found[index] += float((1 - torch.cosine_similarity(before.double(), after.double(), dim=-1)).sum())

    with watching(layers, add):
        tokens = narrowing.read(network, texts)
    return [total / tokens for total in found]


@contextmanager
def watching(layers: nn.ModuleList, told: Any) -> Iterator[None]:
    """told(index, hidden states before, hidden states after), for every layer that is run."""

    def hook(index: int) -> Any:
        def run(_: nn.Module, args: tuple[Any, ...], named: Mapping[str, Any], out: Any) -> None:
            told(index, args[0] if args else named["hidden_states"], out if isinstance(out, Tensor) else out[0])

        return run

    hooks = [layer.register_forward_hook(hook(index), with_kwargs=True) for index, layer in enumerate(layers)]
    try:
        yield
    finally:
        for one in hooks:
            one.remove()


def with_own_layers(target: Any, kept: Sequence[int]) -> Any:
    """A copy of the target with these layers alone, as a network of its architecture would be loaded."""
    config = copy.deepcopy(target.config)
    text = config.get_text_config(decoder=True)
    _, _, layers = layers_of(target, text.num_hidden_layers)
    for name in PER_LAYER:
        if len(entries := getattr(text, name, None) or ()) == text.num_hidden_layers:
            setattr(text, name, [entries[index] for index in kept])
    text.num_hidden_layers = len(kept)
    prefix = next(name for name, module in target.named_modules() if module is layers)
    return rebuilt(target, config, renumbered(target.state_dict(), prefix, kept))


def renumbered(weights: Mapping[str, Tensor], prefix: str, kept: Sequence[int]) -> dict[str, Tensor]:
    """The weights without those of layers that are not kept, the others numbered from 0 on."""
    found = {name: weight for name, weight in weights.items() if not name.startswith(f"{prefix}.")}
    for place, index in enumerate(kept):
        own = f"{prefix}.{index}."
        found |= {
            f"{prefix}.{place}.{name.removeprefix(own)}": weight
            for name, weight in weights.items()
            if name.startswith(own)
        }
    return found


def rebuilt(original: Any, config: Any, weights: Mapping[str, Tensor]) -> Any:
    """A network of this configuration with these weights, copied; UsageError where they do not make one."""
    try:
        with torch.device(original.device):
            network = transformers.AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config, dtype=original.dtype, attn_implementation=original.config._attn_implementation
            )
        network.load_state_dict(weights)
    except (RuntimeError, ValueError, TypeError, KeyError) as error:
        raise UsageError(
            f"{type(original).__name__} cannot lose layers or width here ({first_line(error)}): start from a fresh "
            "draft, or keep all of it"
        ) from error
    network.generation_config = copy.deepcopy(original.generation_config)
    return network.eval()
