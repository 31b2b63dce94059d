"""EAGLE-3 heads that have learned nothing, and their files in the format of speculators, which vLLM serves.

Knows names, shapes and config.json; must not know how heads learn.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from specbench.models.checkpoints import reduced
from specbench.models.checkpoints.check import context_length
from specbench.models.checkpoints.reduced import MASK, OFFSETS, WEIGHT
from specbench.models.network.reduced import ReducedHead
from specbench.training.heads.layouts import Asked, Layout, output_of, speculators_keys
from specbench.training.start.starting import LONGEST, rope_base

LEAST = 7  # layers of a target that has the usual boundaries in rising order
NORMS = ("hidden_norm", "input_layernorm", "post_attention_layernorm")
PLAIN = ("Llama", "Mistral", "Qwen2", "Qwen3RMS", "SmolLM3")  # norms that multiply by their weights as they are


def begun(network: Any, asked: Asked) -> tuple[Layout, dict[str, Tensor]]:
    """A fresh head: one layer of the target's sizes on three hidden states.

    The embedding is borrowed; the output begins as the target's, after its last norm; what the layer writes is small,
    and the state begins as the last of the three.
    """
    text = network.config.get_text_config(decoder=True)
    layer = layer_of(text, asked.intermediate)
    read = taken(int(text.num_hidden_layers))
    config = described(network, asked, layer, list(read))
    tensors = drawn(layer, len(read), asked.seed)
    tensors["norm.weight"] = last_norm(network, layer["hidden_size"])
    return Layout(config, "model.safetensors", stored), {**tensors, **output(network, asked.known)}


def taken(layers: int) -> tuple[int, ...]:
    """The boundaries that a head reads: near the beginning, the middle and near the end, as EAGLE-3 has them; of a
    target with few layers, the first, the middle and the last."""
    usual = (2, layers // 2, layers - 3) if layers >= LEAST else (1, (1 + layers) // 2, layers)
    return tuple(sorted(set(usual)))


def layer_of(text: Any, intermediate: int | None) -> dict[str, Any]:
    """The decoder layer of a head of Llama's kind, in the sizes of a target."""
    heads = int(text.num_attention_heads)
    return {
        "model_type": "llama",
        "hidden_size": int(text.hidden_size),
        "intermediate_size": intermediate or int(getattr(text, "intermediate_size", None) or 4 * text.hidden_size),
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": int(getattr(text, "num_key_value_heads", None) or heads),
        "head_dim": int(getattr(text, "head_dim", None) or text.hidden_size // heads),
        "hidden_act": "silu",
        "rms_norm_eps": float(getattr(text, "rms_norm_eps", None) or 1e-5),
        "max_position_embeddings": min(context_length(text), LONGEST),
        "rope_theta": rope_base(text),
        "rope_scaling": None,
        "attention_bias": False,
        "mlp_bias": False,
        "vocab_size": int(text.vocab_size),
    }


def described(network: Any, asked: Asked, layer: Mapping[str, Any], read: list[int]) -> dict[str, Any]:
    """config.json as speculators writes it."""
    return {
        **speculators_keys(network, asked, "eagle3", "Eagle3Speculator"),
        "transformer_layer_config": dict(layer),
        "draft_vocab_size": layer["vocab_size"] if asked.known is None else len(asked.known),
        "norm_before_residual": True,
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": read,
        "embed_requires_grad": False,
        "tie_word_embeddings": False,
    }


def drawn(layer: Mapping[str, Any], read: int, seed: int) -> dict[str, Tensor]:
    """The tensors of the layer, and of what comes before it."""
    width, inner, size = layer["hidden_size"], layer["intermediate_size"], layer["head_dim"]
    queries, keys = size * layer["num_attention_heads"], size * layer["num_key_value_heads"]
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int, scale: float = 1.0) -> Tensor:
        return torch.randn(rows, columns, generator=generator) * (scale / math.sqrt(columns))

    first = matrix(width, read * width, 0.1)
    first[:, -width:] += torch.eye(width)
    attention, mlp = "layers.0.self_attn.", "layers.0.mlp."
    return {
        "fc.weight": first,
        **{f"layers.0.{name}.weight": torch.ones(width) for name in NORMS},
        f"{attention}q_proj.weight": matrix(queries, 2 * width),
        f"{attention}k_proj.weight": matrix(keys, 2 * width),
        f"{attention}v_proj.weight": matrix(keys, 2 * width),
        f"{attention}o_proj.weight": matrix(width, queries, 0.5),
        f"{mlp}gate_proj.weight": matrix(inner, width),
        f"{mlp}up_proj.weight": matrix(inner, width),
        f"{mlp}down_proj.weight": matrix(width, inner, 0.5),
    }


def last_norm(network: Any, width: int) -> Tensor:
    """The weights of the last norm of a target; ones where it has another kind of norm than heads have."""
    norm = getattr(network.get_decoder(), "norm", None)
    weight = getattr(norm, "weight", None)
    plain = isinstance(weight, Tensor) and weight.shape == (width,) and type(norm).__name__.startswith(PLAIN)
    return weight.detach().float().cpu().clone() if plain and weight is not None else torch.ones(width)


def output(network: Any, known: Sequence[int] | None) -> dict[str, Tensor]:
    """lm_head.weight as the target has it, of the known tokens, and which these are."""
    weight = output_of(network)
    if known is None:
        return {WEIGHT: weight}
    ids = torch.tensor(list(known))
    mask = torch.zeros(len(weight), dtype=torch.bool).index_fill(0, ids, value=True)
    return {WEIGHT: weight[ids].clone(), OFFSETS: ids - torch.arange(len(ids)), MASK: mask}


def stored(head: Any) -> dict[str, Tensor]:
    """The tensors of a module by their names in its file; which tokens it knows as offsets, and as a mask."""
    found = {name: tensor for name, tensor in head.state_dict().items() if not name.startswith("lm_head.")}
    if isinstance(head.lm_head, ReducedHead):
        return {**found, **reduced.stored(head.lm_head)}
    return {**found, WEIGHT: head.lm_head.weight}
