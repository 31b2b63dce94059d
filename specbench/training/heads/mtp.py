"""MTP modules that have learned nothing or go on learning, and their files in the format of speculators.

DeepSeek-AI 2024, arXiv 2412.19437, §2.2. Embedding and output are the target's and stay it, so they are in no file.
Knows names, shapes and config.json; must not know how heads learn.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from specbench.errors import UnusableModelError
from specbench.models.heads.build import built
from specbench.models.heads.mtp import ROUTER, hidden_first, module_config, parts
from specbench.models.heads.parts import Borrowed
from specbench.models.heads.recognition import MIMO_PARTS, MTP_PREFIXES, SPECULATORS, renamed
from specbench.models.network.layers import layers_of
from specbench.models.network.passes import windows_of
from specbench.training.heads.layouts import Asked, Layout, speculators_keys

WRITES = ("o_proj", "down_proj")  # what a layer adds to its residual stream, of which a fresh one adds little
MODULES = ("num_nextn_predict_layers", "num_mtp_layers")  # in the configurations of targets that have some


def begun(network: Any, asked: Asked) -> tuple[Layout, dict[str, Tensor]]:
    """The module that `asked` goes on from, or a fresh one.

    UnusableModelError for a target of whose layers none can be made, and for a module with an output of its own.
    """
    target = Borrowed(network)
    tensors, normed = (fresh(target, asked.seed), True) if asked.begin is None else taken(asked, target)
    config = module_config(target, experts=ROUTER in tensors)
    if any(windows_of(config).values()):
        raise UnusableModelError("the layers of this target look through windows: train an EAGLE-3 head for it")
    return Layout(described(network, asked, normed), "model.safetensors", stored), tensors


def fresh(target: Borrowed, seed: int) -> dict[str, Tensor]:
    """A layer like the target's that writes little; the state begins as the target's last one."""
    experts = ROUTER.removeprefix("layer.") in dict(last_layer(target).named_parameters())
    layer, *norms = parts("the target", target, module_config(target, experts), "cpu")
    generator = torch.Generator().manual_seed(seed)
    names = ("embed_norm.weight", "hidden_norm.weight", "norm.weight")
    found = {name: norm.weight.detach().float() for name, norm in zip(names, norms, strict=True)}
    found["norm.weight"] = found["norm.weight"] + scale_of(target, norms[0]) - 1
    found["proj.weight"] = projection(target, generator)
    kept = {name for name, part in layer.named_modules() if type(part).__name__.endswith("Norm")}
    for name, tensor in layer.state_dict().items():
        found[f"layer.{name}"] = tensor if name.rpartition(".")[0] in kept else drawn(name, tensor, generator)
    return found


def last_layer(target: Borrowed) -> nn.Module:
    layer: nn.Module = layers_of(target.network, target.layers)[2][-1]
    return layer


def scale_of(target: Borrowed, norm: Any) -> float:
    """The size of the target's last states, by its last norm; 1 where that is of another class than `norm`, which is
    as transformers makes it: its weights of ones or, in classes that add one to them, of zeros."""
    last: Any = getattr(target.network.get_decoder(), "norm", None)
    if type(last) is not type(norm):
        return 1.0
    gain = last.weight.detach().float().cpu() - norm.weight.detach().float() + 1
    return float(gain.square().mean().sqrt())


def projection(target: Borrowed, generator: torch.Generator) -> Tensor:
    """[H, 2H] the hidden state as it is, and a little of everything."""
    width = target.width
    found = torch.randn(width, 2 * width, generator=generator) * (0.1 / math.sqrt(2 * width))
    half = slice(0, width) if hidden_first(SPECULATORS, target) else slice(width, None)
    found[:, half] += torch.eye(width)
    return found


def drawn(name: str, tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Weights by the number of what they read; zeros for biases and the like."""
    if tensor.ndim < 2:
        return torch.zeros_like(tensor)
    scale = 0.5 if any(part in name for part in WRITES) else 1.0
    return torch.randn(tensor.shape, generator=generator) * (scale / math.sqrt(tensor.shape[-1]))


def taken(asked: Asked, target: Borrowed) -> tuple[dict[str, Tensor], bool]:
    """The tensors of a module by the names and in the order of speculators, and whether it is fed normed states."""
    assert asked.begin is not None
    module = built(asked.begin, target.network)
    if module.embed_tokens is not None or module.lm_head is not None:
        raise UnusableModelError(
            f"{asked.begin.name}: it has an embedding or an output of its own, for which the format of speculators has "
            "no place: only modules that use their target's can learn on"
        )
    found = {name: tensor.detach().cpu() for name, tensor in module.state_dict().items()}
    if module.hidden_first and not hidden_first(SPECULATORS, target):
        found["proj.weight"] = torch.cat(found["proj.weight"].chunk(2, 1)[::-1], 1)
    return found, module.post_norm


def described(network: Any, asked: Asked, normed: bool) -> dict[str, Any]:
    """config.json as speculators writes it. `norm_output`, which it has for EAGLE-3, says what was fed back."""
    layer = network.config.get_text_config(decoder=True).to_diff_dict()
    return {
        **speculators_keys(network, asked, "mtp", "MTPDraftModel"),
        "transformer_layer_config": {key: value for key, value in layer.items() if key not in MODULES},
        "num_nextn_predict_layers": 1,
        "norm_output": normed,
        "tie_word_embeddings": False,
    }


def stored(head: Any) -> dict[str, Tensor]:
    """The tensors of a module by their names in its file."""
    theirs = {ours: name for name, ours in MIMO_PARTS.items()} | {"layer.": ""}
    prefix = MTP_PREFIXES[SPECULATORS]
    return {prefix + renamed(name, theirs): tensor for name, tensor in head.state_dict().items()}
