"""MTP modules: one more decoder layer trained with a target, on its last hidden state and the next token.

DeepSeek-AI 2024, arXiv 2412.19437, section 2.2. transformers skips them when it loads a network, so they
are read from the target's files separately. The layer is of the target's own class, and so are its norms.
"""

import copy
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from specbench.errors import UnusableModelError
from specbench.models.heads.parts import Borrowed, Recurrent, embedding, fill, linear, output, refuse_other, shape_of
from specbench.models.heads.recognition import MIMO, SPECULATORS, Head
from specbench.models.network.skipping import layers_of
from specbench.wording import first_line

ROUTER = "layer.mlp.gate.weight"  # only a layer with experts has it
EXPERT = re.compile(r"(?P<list>layer\.mlp\.experts)\.(?P<number>\d+)\.(?P<part>gate|up|down)_proj\.weight")


class Mtp(Recurrent):
    """Pair (z at t, token t+1) → logits of token t+2, and the state that replaces z in the next pair.

    That state is the normed input of the logits (SGLang, transformers), or the same before its norm if feeds_normed is
    False (vLLM for long). The right one is declared in config.json in the format of speculators (`norm_output`); for
    others only the acceptance after the first token shows it. One module drafts all tokens, each from the state before.
    """

    def __init__(self, head: Head, target: Borrowed) -> None:
        super().__init__()
        self.target, self.dtype, self.width = target, target.dtype, target.width
        # true is the default in training
        self.feeds_normed = head.format != SPECULATORS or head.config.get("norm_output") is not False
        refuse_other(head, target, shape_of(head, "proj.weight")[1] // 2)
        self.config = module_config(target, experts=ROUTER in head.tensors)
        self.hidden_first = hidden_first(head.format, target)
        self.layer, *norms = parts(head.name, target, self.config)
        self.embed_norm, self.hidden_norm, self.norm = norms
        self.proj = linear(head.tensors, "proj")
        self.embed_tokens, self.lm_head = embedding(head, target, self.width), output(head, self.config, target)
        self.warnings = fill(self, head, target, with_fused_experts(head.tensors))
        if (count := head.config.get("num_nextn_predict_layers") or 1) > 1:
            self.warnings = (f"{head.name}: the first of its {count} MTP modules drafts all tokens", *self.warnings)

    def through(self, embedded: Tensor, states: Tensor, positions: Tensor, masks: Any, cache: Any) -> Tensor:
        token, state = self.embed_norm(embedded.to(states.dtype)), self.hidden_norm(states)
        x = self.proj(torch.cat([state, token] if self.hidden_first else [token, state], -1))
        mask = next(iter(masks.values())) if isinstance(masks, dict) else masks
        angles = self.target.angles(x, positions)
        told = {"attention_mask": mask, "position_ids": positions, "position_embeddings": angles}
        found: Tensor = self.layer(x, past_key_values=cache, **told)
        return found


def hidden_first(written: str, target: Borrowed) -> bool:
    """Whether the projection of a module in this format reads the hidden state before the embedding."""
    return written == MIMO or bool(getattr(target.config, "mtp_hidden_states_first", False))


def module_config(target: Borrowed, experts: bool) -> Any:
    """The configuration of the target, with one layer of full attention, with experts or without."""
    config = copy.deepcopy(target.config)
    config.num_hidden_layers, config.per_layer_config = 1, None
    for key, value in (
        ("layer_types", ["full_attention"]),
        ("mlp_layer_types", ["sparse" if experts else "dense"]),
        ("first_k_dense_replace", 0 if experts else 1),
        ("mlp_only_layers", [] if experts else [0]),
        ("decoder_sparse_step", 1),
    ):
        if getattr(config, key, None) is not None:
            setattr(config, key, value)
    return config


def parts(name: str, target: Borrowed, config: Any, device: str = "meta") -> list[Any]:
    """A layer like the target's and three norms like its own, as transformers makes them."""
    layers = layers_of(target.network, target.layers)[2]
    try:
        with torch.device(device):
            made: Any = type(layers[-1])(config, 0)
            norms = [type(made.input_layernorm)(target.width, eps=config.rms_norm_eps) for _ in range(3)]
        target.angles(
            torch.zeros(1, 1, device=target.device), torch.zeros(1, 1, dtype=torch.long, device=target.device)
        )
        return [made, *norms]
    except Exception as error:  # a class with another constructor than all those that have such a module
        raise UnusableModelError(
            f"{name}: no MTP module can be made of a {type(layers[-1]).__name__}: {first_line(error)}"
        ) from error


def with_fused_experts(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with a layer's experts in two tensors, gate and up in one, as in transformers."""
    kept = {name: tensor for name, tensor in tensors.items() if not EXPERT.fullmatch(name)}
    parts: dict[str, dict[int, Tensor]] = {"gate": {}, "up": {}, "down": {}}
    for name, tensor in tensors.items():
        if found := EXPERT.fullmatch(name):
            parts[found["part"]][int(found["number"])] = tensor
    gate, up, down = ([by_number[n] for n in sorted(by_number)] for by_number in parts.values())
    if gate and len(gate) == len(up) == len(down):
        both = (torch.cat(pair) for pair in zip(gate, up, strict=True))
        kept["layer.mlp.experts.gate_up_proj"] = torch.stack(list(both))
        kept["layer.mlp.experts.down_proj"] = torch.stack(down)
    return kept
