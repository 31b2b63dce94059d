"""Tiny trained heads of every kind and format, written as folders by the published layouts, with random weights.

    write_head(tmp_path / "head", "eagle3", network("llama").config, vocab=2, aux=(1, 2))

The switches of a kind are those of its function in `head_tensors`; `names` says in which engine's words it is written.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from tests.support.head_tensors import KINDS, Maker

MIDLAYER = re.compile(r"midlayer\.(\d+)\.")
FILES = {"medusa": "medusa_lm_head.safetensors"}
TYPES = {
    "eagle1": "eagle",
    "eagle3": "eagle3",
    "peagle": "peagle",
    "dflash": "dflash",
    "dspark": "dspark",
    "mtp": "mtp",
}
OLD = {"fc.": "fusion_fc.", "layers.0.": "transformer."}
SPECULATORS = "speculators"

# The words of engines: SafeAILab's own; speculators, NVIDIA, vLLM; SGLang with several layers.
NAMES: dict[str, Callable[[str], str]] = {
    "midlayer": lambda name: MIDLAYER.sub(lambda m: "midlayer." if m[1] == "0" else f"layers.{m[1]}.", name),
    "layers": lambda name: MIDLAYER.sub(r"layers.\1.", name),
    "midlayers": lambda name: MIDLAYER.sub(r"midlayers.\1.", name),
    "model": lambda name: "model." + NAMES["layers"](name) if name.split(".")[0] not in ("lm_head", "d2t") else name,
    "draft_model": lambda name: "draft_model." + NAMES["midlayer"](name),
    SPECULATORS: lambda name: NAMES["layers"](name),
    "old": lambda name: next((new + name.removeprefix(old) for old, new in OLD.items() if name.startswith(old)), name),
}


def write_head(folder: Path, kind: str, target: Any, *, names: str = "midlayer", file: str | None = None,
               seed: int = 0, scale: float = 0.4, width: int | None = None, dtype: torch.dtype = torch.float32,
               config: Mapping[str, Any] | None = None, change: Callable[[dict[str, Tensor]], object] | None = None,
               **switches: Any) -> Path:  # fmt: skip
    """Write a head of some kind for a target with this configuration; returns the folder.

    names: of `NAMES`; "speculators" and "old" (EAGLE-1) write that format's config.json as well. file: its name, by
    which it may be a pickle (.bin, .pt), or "sharded". config: keys that are added or, where None, left out. change:
    done to the tensors, by their names in the file. width: of the head, where it is another.
    """
    if kind in ("pard", "mtp"):
        return (write_pard if kind == "pard" else write_mtp)(folder, target, seed=seed, scale=scale, **switches)
    made, tensors = KINDS[kind](Maker(target, width or target.hidden_size, seed, scale), **switches)
    stored = {NAMES[names](name): in_dtype(tensor, dtype) for name, tensor in tensors.items()}
    if change is not None:
        change(stored)
    made = speculators(made, TYPES[kind]) if names in (SPECULATORS, "old") else made
    made = {key: value for key, value in {**made, **(config or {})}.items() if value is not None}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(made))
    save(stored, folder, file or FILES.get(kind, "model.safetensors"))
    return folder


def in_dtype(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def save(tensors: Mapping[str, Tensor], folder: Path, file: str) -> None:
    if file == "sharded":
        parts = [dict(list(tensors.items())[begin::2]) for begin in range(2)]
        where = {name: f"part{number}.safetensors" for number, part in enumerate(parts) for name in part}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
        for number, part in enumerate(parts):
            save_file(part, folder / f"part{number}.safetensors")
    elif file.endswith(".safetensors"):
        save_file(dict(tensors), folder / file)
    else:
        torch.save(dict(tensors), folder / file)


def speculators(config: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The same description as speculators writes it: the keys of the layer apart, the ids of layers on top."""
    own = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "draft_vocab_size", "mask_token_id")
    own += ("target_hidden_size", "block_size", "sample_from_anchor", "tie_word_embeddings")
    layer = {key: value for key, value in config.items() if key not in (*own, "architectures", "eagle_config")}
    top = {key: config[key] for key in own if key in config}
    ids = (config.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    nested = layer.pop("dflash_config", None)
    top |= {"eagle_aux_hidden_state_layer_ids": ids} if ids else {}
    top |= (
        {"aux_hidden_state_layer_ids": nested["target_layer_ids"], "mask_token_id": nested["mask_token_id"]}
        if nested
        else {}
    )
    greedy = {"proposal_type": "greedy", "speculative_tokens": 3, "verifier_accept_k": 1, "accept_tolerance": 0.0}
    about = {"algorithm": kind, "default_proposal_method": "greedy", "proposal_methods": [greedy]}
    about |= {"verifier": {"name_or_path": "org/target", "architectures": ["LlamaForCausalLM"]}}
    return {"architectures": ["Speculator"], "speculators_model_type": kind, "speculators_version": "0.3.0", **top,
            "transformer_layer_config": layer, "speculators_config": about}  # fmt: skip


def write_pard(folder: Path, target: Any, *, seed: int = 0, scale: float = 0.4, layers: int = 1) -> Path:
    """A whole small network that knows one token more than the target uses: the mask."""
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_hidden_layers": layers}
    config = LlamaConfig(vocab_size=target.vocab_size, bos_token_id=None, eos_token_id=None, pad_token_id=None, **shape)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = LlamaForCausalLM(config)
        for weight in (weight for weight in network.parameters() if weight.ndim > 1):
            weight.data.normal_(std=scale)
    network.config.pard_token = target.vocab_size - 1
    network.save_pretrained(folder)
    return folder


def write_mtp(folder: Path, target: Any, *, seed: int = 0, scale: float = 0.4, family: str = "DeepSeek",
              layer: Mapping[str, Tensor] | None = None, head: bool = False) -> Path:  # fmt: skip
    """Add an MTP module to the checkpoint of a target in `folder` (of speculators: a head of its own).

    layer: the tensors of a decoder layer of the target's class, as checkpoints store them.
    """
    make, width = Maker(target, target.hidden_size, seed, scale), target.hidden_size
    words = MTP_WORDS[family]
    for name in words[:2]:
        make.norm(name, width)
    make.matrix(words[2], width, 2 * width)
    make.norm(words[3], width)
    if head:
        make.matrix(words[5], target.vocab_size, width)
    dtype = next(iter(layer.values())).dtype if layer else torch.float32
    prefix = MTP_PREFIXES[family].format(L=target.num_hidden_layers)
    stored = {prefix + name: in_dtype(tensor, dtype) for name, tensor in make.tensors.items()}
    stored |= {prefix + words[4] + name: tensor.clone() for name, tensor in (layer or {}).items()}
    folder.mkdir(parents=True, exist_ok=True)
    if family == SPECULATORS:
        (folder / "config.json").write_text(json.dumps(speculators({"model_type": target.model_type}, "mtp")))
        return save(stored, folder, "model.safetensors") or folder
    whole = load_file(folder / "model.safetensors")
    save_file({**whole, **stored}, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


MTP_PREFIXES = {
    "DeepSeek": "model.layers.{L}.",
    "Qwen3-Next": "mtp.",
    "MiMo": "model.mtp_layers.0.",
    SPECULATORS: "mtp_layers.0.",
}
MIMO = ("token_layernorm.weight", "hidden_layernorm.weight", "input_proj.weight", "final_layernorm.weight", "", "")
MTP_WORDS = {  # norm of the embedding, of the hidden state, projection, last norm, prefix of the layer, head
    "DeepSeek": (
        "enorm.weight",
        "hnorm.weight",
        "eh_proj.weight",
        "shared_head.norm.weight",
        "",
        "shared_head.head.weight",
    ),
    "Qwen3-Next": (
        "pre_fc_norm_embedding.weight",
        "pre_fc_norm_hidden.weight",
        "fc.weight",
        "norm.weight",
        "layers.0.",
        "",
    ),
    "MiMo": MIMO,
    SPECULATORS: MIMO,
}


def with_separate_experts(layer: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a decoder layer as checkpoints have them, with three matrices for every expert."""
    found = dict(layer)
    if "mlp.experts.gate_up_proj" not in found:
        return found
    for number, both in enumerate(found.pop("mlp.experts.gate_up_proj")):
        for name, matrix in zip(("gate", "up"), both.chunk(2), strict=True):
            found[f"mlp.experts.{number}.{name}_proj.weight"] = matrix
    for number, matrix in enumerate(found.pop("mlp.experts.down_proj")):
        found[f"mlp.experts.{number}.down_proj.weight"] = matrix
    return {name: tensor.clone().contiguous() for name, tensor in found.items()}


def layer_like(target: Any, number: int, seed: int = 1) -> dict[str, Tensor]:
    """The tensors of a layer like one of the target's, with other values."""
    layer = target.get_decoder().layers[number].state_dict()

    def noise(tensor: Tensor) -> Tensor:
        drawn = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return 0.2 * drawn.to(tensor.dtype)

    return {name: tensor + noise(tensor) for name, tensor in layer.items()}
