"""Untrained heads of each kind, and their file formats: EAGLE-3 and MTP in the format of
speculators, which vLLM serves, Medusa as its authors."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from specbench.errors import UnusableModelError, UsageError
from specbench.files import filling
from specbench.models.checkpoints import reduced
from specbench.models.checkpoints.check import context_length
from specbench.models.checkpoints.reduced import MASK, OFFSETS, WEIGHT
from specbench.models.heads.build import built
from specbench.models.heads.eagle import ROUTER, hidden_first, module_config, parts
from specbench.models.heads.medusa import KNOWN
from specbench.models.heads.parts import Borrowed
from specbench.models.heads.recognition import MIMO_PARTS, MTP_PREFIXES, SPECULATORS, Head, flat, renamed
from specbench.models.network.passes import windows_of
from specbench.models.network.sampling import SIZE, ReducedHead
from specbench.models.network.skipping import layers_of
from specbench.training.heads import Beside, Unrolled
from specbench.training.start import LONGEST, in_dtype, rope_base
from specbench.wording import first_line

CONFIG = "config.json"


@dataclass(frozen=True)
class HeadOptions:
    """The settings of a new head. known: the ids of its known tokens, in rising order; None for all.

    steps: the drafts of Medusa, and the proposed drafts per round of others; verifier: the target's name in its
    files; intermediate: the width of its MLP, by default the target's; begin: the head that it continues from.
    """

    known: Sequence[int] | None
    steps: int
    verifier: str
    intermediate: int | None = None
    seed: int = 0
    begin: Head | None = None


@dataclass(frozen=True)
class Layout:
    """The files of a head: `config` for config.json; `file` for the tensors; `stored`, which
    maps a module to its tensors by their names there."""

    config: Mapping[str, Any]
    file: str
    stored: Callable[[Any], dict[str, Tensor]]


def output_of(network: Any) -> Tensor:
    """[V, H] the output of a target, in float32, with the target's scale of logits."""
    text = network.config.get_text_config(decoder=True)
    weight: Tensor = network.get_output_embeddings().weight.detach().float().cpu().clone()
    return weight / (getattr(text, "logits_scaling", None) or 1.0) * (getattr(text, "logit_scale", None) or 1.0)


def speculators_keys(network: Any, options: HeadOptions, algorithm: str, architecture: str) -> dict[str, Any]:
    """The common keys of speculators' config.json: the algorithm and the target."""
    greedy = {"proposal_type": "greedy", "speculative_tokens": options.steps, "verifier_accept_k": 1,
              "accept_tolerance": 0.0}  # fmt: skip
    return {
        "architectures": [architecture],
        "speculators_model_type": algorithm,
        "speculators_version": "0.3.0",
        "speculators_config": {
            "algorithm": algorithm,
            "default_proposal_method": "greedy",
            "proposal_methods": [greedy],
            "verifier": {
                "name_or_path": options.verifier,
                "architectures": list(getattr(network.config, "architectures", None) or [type(network).__name__]),
            },
        },
    }


LEAST = 7  # minimum layers of a target for the usual boundaries in rising order
NORMS = ("hidden_norm", "input_layernorm", "post_attention_layernorm")
PLAIN = ("Llama", "Mistral", "Qwen2", "Qwen3RMS", "SmolLM3")  # norms that multiply by their weights unchanged


def eagle3_begun(network: Any, options: HeadOptions) -> tuple[Layout, dict[str, Tensor]]:
    """A fresh head: one layer of the target's sizes on three hidden states.

    The embedding is borrowed; the output is initially the target's, after its last norm; the
    layer's output is small, and the state is initially the last of the three.
    """
    text = network.config.get_text_config(decoder=True)
    layer = layer_of(text, options.intermediate)
    layers = int(text.num_hidden_layers)
    usual = (2, layers // 2, layers - 3) if layers >= LEAST else (1, (1 + layers) // 2, layers)
    read = tuple(sorted(set(usual)))
    config = eagle3_described(network, options, layer, list(read))
    tensors = eagle3_drawn(layer, len(read), options.seed)
    width = layer["hidden_size"]
    norm = getattr(network.get_decoder(), "norm", None)
    weight = getattr(norm, "weight", None)
    plain = isinstance(weight, Tensor) and weight.shape == (width,) and type(norm).__name__.startswith(PLAIN)
    tensors["norm.weight"] = (
        weight.detach().float().cpu().clone() if plain and weight is not None else torch.ones(width)
    )
    return Layout(config, "model.safetensors", eagle3_stored), {**tensors, **output(network, options.known)}


def layer_of(text: Any, intermediate: int | None) -> dict[str, Any]:
    """The decoder layer of a Llama-type head, in the sizes of a target."""
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


def eagle3_described(network: Any, options: HeadOptions, layer: Mapping[str, Any], read: list[int]) -> dict[str, Any]:
    """config.json as written by speculators."""
    return {
        **speculators_keys(network, options, "eagle3", "Eagle3Speculator"),
        "transformer_layer_config": dict(layer),
        "draft_vocab_size": layer["vocab_size"] if options.known is None else len(options.known),
        "norm_before_residual": True,
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": read,
        "embed_requires_grad": False,
        "tie_word_embeddings": False,
    }


def eagle3_drawn(layer: Mapping[str, Any], read: int, seed: int) -> dict[str, Tensor]:
    """The tensors of the layer, and of the parts before it."""
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


def output(network: Any, known: Sequence[int] | None) -> dict[str, Tensor]:
    """The target's lm_head.weight for the known tokens, and their ids."""
    weight = output_of(network)
    if known is None:
        return {WEIGHT: weight}
    ids = torch.tensor(list(known))
    mask = torch.zeros(len(weight), dtype=torch.bool).index_fill(0, ids, value=True)
    return {WEIGHT: weight[ids].clone(), OFFSETS: ids - torch.arange(len(ids)), MASK: mask}


def eagle3_stored(head: Any) -> dict[str, Tensor]:
    """The tensors of a module by their names in its file; its known tokens as offsets, and as a mask."""
    found = {name: tensor for name, tensor in head.state_dict().items() if not name.startswith("lm_head.")}
    if isinstance(head.lm_head, ReducedHead):
        return {**found, **reduced.stored(head.lm_head)}
    return {**found, WEIGHT: head.lm_head.weight}


def medusa_begun(network: Any, options: HeadOptions) -> tuple[Layout, dict[str, Tensor]]:
    """A fresh head for every draft: the target's own output after an identity block (Cai et al.
    2024, arXiv 2401.10774, §2.1.1)."""
    weight = output_of(network)
    width = weight.shape[1]
    found: dict[str, Tensor] = {}
    for number in range(options.steps):
        found |= {f"{number}.0.linear.weight": torch.zeros(width, width), f"{number}.0.linear.bias": torch.zeros(width)}
        found[f"{number}.1.weight"] = weight.clone()
    if options.known is None:
        config = {
            "medusa_num_heads": options.steps,
            "medusa_num_layers": 1,
            "base_model_name_or_path": options.verifier,
            "version": "2",
        }
        return Layout(config, "medusa_lm_head.safetensors", lambda head: dict(head.state_dict())), found
    ids = torch.tensor(list(options.known))
    found = {name: tensor[ids].clone() if name.endswith(".1.weight") else tensor for name, tensor in found.items()}
    return Layout(for_vllm(options, weight), "model.safetensors", as_vllm), {**found, KNOWN: ids}


def for_vllm(options: HeadOptions, weight: Tensor) -> dict[str, Any]:
    """config.json in vLLM's format."""
    assert options.known is not None
    return {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "num_heads": options.steps,
        "num_hidden_layers": 1,
        "hidden_size": weight.shape[1],
        "vocab_size": len(weight),
        "truncated_vocab_size": len(options.known),
        "medusa_fc_bias": True,
        "base_model_name_or_path": options.verifier,
    }


def as_vllm(head: Any) -> dict[str, Tensor]:
    """The tensors of a module by the names of vLLM."""
    found: dict[str, Tensor] = {KNOWN: head.known}
    for name, tensor in head.state_dict().items():
        number, part, *_, kind = name.split(".")
        if part == "0":
            found[f"blocks.{number}.layers.0.{kind}"] = tensor
        elif kind == "weight":
            found[f"lm_heads.{number}.weight"] = tensor
    return found


WRITES = ("o_proj", "down_proj")  # a layer's writes to its residual stream, small in a fresh one
MODULES = ("num_nextn_predict_layers", "num_mtp_layers")  # in the configurations of targets that have modules


def mtp_begun(network: Any, options: HeadOptions) -> tuple[Layout, dict[str, Tensor]]:
    """The module that `options` continues from, or a fresh one.

    UnusableModelError for a target with unsupported layers, and for a module with its own output.
    """
    target = Borrowed(network)
    tensors, normed = (mtp_fresh(target, options.seed), True) if options.begin is None else mtp_taken(options, target)
    config = module_config(target, experts=ROUTER in tensors)
    if any(windows_of(config).values()):
        raise UnusableModelError("the layers of this target use sliding-window attention: train an EAGLE-3 head for it")
    return Layout(mtp_described(network, options, normed), "model.safetensors", mtp_stored), tensors


def mtp_fresh(target: Borrowed, seed: int) -> dict[str, Tensor]:
    """A layer like the target's that writes little; the state is initially the target's last one."""
    last: nn.Module = layers_of(target.network, target.layers)[2][-1]
    experts = ROUTER.removeprefix("layer.") in dict(last.named_parameters())
    layer, *norms = parts("the target", target, module_config(target, experts), "cpu")
    generator = torch.Generator().manual_seed(seed)
    names = ("embed_norm.weight", "hidden_norm.weight", "norm.weight")
    found = {name: norm.weight.detach().float() for name, norm in zip(names, norms, strict=True)}
    found["norm.weight"] = found["norm.weight"] + scale_of(target, norms[0]) - 1
    width = target.width
    weights = torch.randn(width, 2 * width, generator=generator) * (0.1 / math.sqrt(2 * width))
    half = slice(0, width) if hidden_first(SPECULATORS, target) else slice(width, None)
    weights[:, half] += torch.eye(width)
    found["proj.weight"] = weights
    kept = {name for name, part in layer.named_modules() if type(part).__name__.endswith("Norm")}
    for name, tensor in layer.state_dict().items():
        found[f"layer.{name}"] = tensor if name.rpartition(".")[0] in kept else mtp_drawn(name, tensor, generator)
    return found


def scale_of(target: Borrowed, norm: Any) -> float:
    """The size of the target's last states, by its last norm; 1 if its class is not that of `norm`, which
    is fresh from transformers: its weights are ones or, in classes that add one to them, zeros."""
    last: Any = getattr(target.network.get_decoder(), "norm", None)
    if type(last) is not type(norm):
        return 1.0
    gain = last.weight.detach().float().cpu() - norm.weight.detach().float() + 1
    return float(gain.square().mean().sqrt())


def mtp_drawn(name: str, tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Weights scaled by the number of inputs; zeros for biases and the like."""
    if tensor.ndim < 2:
        return torch.zeros_like(tensor)
    scale = 0.5 if any(part in name for part in WRITES) else 1.0
    return torch.randn(tensor.shape, generator=generator) * (scale / math.sqrt(tensor.shape[-1]))


def mtp_taken(options: HeadOptions, target: Borrowed) -> tuple[dict[str, Tensor], bool]:
    """The tensors of a module by the names and in the order of speculators, and whether its input states are normed."""
    assert options.begin is not None
    module = built(options.begin, target.network)
    if module.embed_tokens is not None or module.lm_head is not None:
        raise UnusableModelError(
            f"{options.begin.name}: it has an embedding or an output of its own, for which the format of speculators "
            "has no place: only modules that use their target's can be trained further"
        )
    found = {name: tensor.detach().cpu() for name, tensor in module.state_dict().items()}
    if module.hidden_first and not hidden_first(SPECULATORS, target):
        found["proj.weight"] = torch.cat(found["proj.weight"].chunk(2, 1)[::-1], 1)
    return found, module.feeds_normed


def mtp_described(network: Any, options: HeadOptions, normed: bool) -> dict[str, Any]:
    """config.json as written by speculators. `norm_output`, used there for EAGLE-3, declares the state fed back."""
    layer = network.config.get_text_config(decoder=True).to_diff_dict()
    return {
        **speculators_keys(network, options, "mtp", "MTPDraftModel"),
        "transformer_layer_config": {key: value for key, value in layer.items() if key not in MODULES},
        "num_nextn_predict_layers": 1,
        "norm_output": normed,
        "tie_word_embeddings": False,
    }


def mtp_stored(head: Any) -> dict[str, Tensor]:
    """The tensors of a module by their names in its file."""
    theirs = {ours: name for name, ours in MIMO_PARTS.items()} | {"layer.": ""}
    prefix = MTP_PREFIXES[SPECULATORS]
    return {prefix + renamed(name, theirs): tensor for name, tensor in head.state_dict().items()}


HeadKind = Literal["eagle3", "medusa", "mtp"]
Beginning = Callable[[Any, HeadOptions], tuple[Layout, dict[str, Tensor]]]
# how a head is initialised, its format, and its student
KINDS: Mapping[HeadKind, tuple[Beginning, str, Callable[[Any], nn.Module]]] = {
    "eagle3": (eagle3_begun, SPECULATORS, Unrolled),
    "medusa": (medusa_begun, "", Beside),
    "mtp": (mtp_begun, SPECULATORS, Unrolled),
}


def beginning(kind: HeadKind, network: Any, options: HeadOptions) -> tuple[Any, Layout]:
    """A student (see `heads`) on its target, untrained or continued from another head, and its layout.

    UnusableModelError or UsageError for a target that does not support such a head.
    """
    begun, form, student = KINDS[kind]
    layout, tensors = begun(network, options)
    head = built(Head(kind, form, flat(layout.config), tensors, Path(), "the head"), network)
    if options.known is not None:
        setattr(head.config, SIZE, len(options.known))
    return student(head), layout


def save_head(student: Any, layout: Layout, folder: Path, dtype: torch.dtype) -> None:
    """Write a head into `folder`, each file wholly or not at all, the weights last. UsageError on failure."""
    tensors = {name: in_dtype(tensor, dtype).contiguous() for name, tensor in layout.stored(student.head).items()}
    config = {**layout.config, "dtype": str(dtype).removeprefix("torch.")}
    try:
        with filling(folder, layout.file) as scratch:
            (scratch / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
            save_file(tensors, scratch / layout.file, metadata={"format": "pt"})
            (scratch / layout.file).chmod((scratch / CONFIG).stat().st_mode)  # else unreadable for others
    except (OSError, SafetensorError) as error:
        raise UsageError(f"cannot write the head to {folder}: {first_line(error)}") from error
