"""EAGLE heads, which draft from the target's hidden states and the next token.

EAGLE-1, EAGLE-2 and HASS (Li et al. 2024, arXiv 2401.15077 and 2406.16858; Zhang et al. 2024, arXiv
2408.15766): one decoder layer on the last hidden state, as in SafeAILab's `cnets1.py`, with the norms
of vLLM's and speculators' variants if their weights exist. EAGLE-3 (Li et al. 2025, arXiv 2503.01840):
one decoder layer, twice as wide in its projections, on several hidden states, as in SafeAILab's
`cnets.py`; the switches are those of vLLM, SpecForge, NVIDIA's Model Optimizer and speculators.

MTP modules (DeepSeek-AI 2024, arXiv 2412.19437, section 2.2): one more decoder layer trained with a target, on its last
hidden state and the next token. transformers skips them when it loads a network, so they are read from the target's
files separately. The layer is of the target's own class, and so are its norms.
"""

import copy
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specbench.errors import UnusableModelError
from specbench.models.checkpoints.reduced import WEIGHT
from specbench.models.heads.parts import (
    Borrowed,
    Recurrent,
    decoder_layer,
    embedding,
    fill,
    layer_config,
    layers_in,
    linear,
    mask_for,
    norm,
    number_in,
    output,
    refuse_other,
    rotary,
    shape_of,
    stored,
)
from specbench.models.heads.recognition import MIMO, SPECULATORS, Head, part
from specbench.models.heads.taps import reads
from specbench.models.network.skipping import layers_of
from specbench.wording import first_line

NORMS = ("embedding_layernorm", "hidden_states_layernorm", "pre_lm_head_layernorm")
ROUTER = "layer.mlp.gate.weight"  # only a layer with experts has it
EXPERT = re.compile(r"(?P<list>layer\.mlp\.experts)\.(?P<number>\d+)\.(?P<part>gate|up|down)_proj\.weight")


class Eagle1(Recurrent):
    """Pair (z at t, token t+1) → logits of token t+2, and the state that replaces z in the next pair.

    Norms of the inputs and before the output exist if their weights do; vLLM reads the norm before
    the output in speculators' files as one of the incoming state, speculators itself as written here.
    """

    embedding_layernorm: nn.Module
    hidden_states_layernorm: nn.Module
    pre_lm_head_layernorm: Callable[[Tensor], Tensor]

    def __init__(self, head: Head, target: Borrowed) -> None:
        super().__init__()
        self.width = shape_of(head, "fc.weight")[0]
        refuse_other(head, target, shape_of(head, "fc.weight")[1] // 2)
        self.target, self.dtype = target, target.dtype
        self.config = layer_config(head, target)
        self.fc = linear(head.tensors, "fc")
        self.layers = nn.ModuleList(decoder_layer(head, self.config, number) for number in range(layers_in(head)))
        for name in NORMS:
            setattr(self, name, norm(self.config) if f"{name}.weight" in head.tensors else nn.Identity())
        self.embed_tokens, self.lm_head = embedding(head, target, self.width), output(head, self.config, target)
        self.rotary_emb = rotary(self.config, target)
        self.warnings = fill(self, head, target, stored(head, target))

    def through(self, embedded: Tensor, states: Tensor, positions: Tensor, masks: Any, cache: Any) -> Tensor:
        x: Tensor = self.fc(torch.cat([self.embedding_layernorm(embedded), self.hidden_states_layernorm(states)], -1))
        angles = self.rotary_emb(x, positions)
        for number, layer in enumerate(self.layers):
            mask = mask_for(masks, self.config, number)
            x = layer(x, attention_mask=mask, position_embeddings=angles, past_key_values=cache)
        return x

    def normed(self, states: Tensor) -> Tensor:
        return self.pre_lm_head_layernorm(states)


Z: tuple[int | str, ...] = ("z",)


class FirstLayer(nn.Module):
    """The layer that takes in the token: attention over [embedding; state], both normed, with a residual of the state.

    residual_is_normed: whether the residual is the state after its norm (`norm_before_residual`).
    needs_norm: whether that norm must have weights; otherwise it is optional.
    """

    def __init__(self, head: Head, config: Any, residual_is_normed: bool, needs_norm: bool) -> None:
        super().__init__()
        layer = decoder_layer(head, config, 0)
        self.self_attn, self.mlp = layer.self_attn, layer.mlp
        self.input_layernorm, self.post_attention_layernorm = norm(config), layer.post_attention_layernorm
        normed = needs_norm or "layers.0.hidden_norm.weight" in head.tensors
        self.hidden_norm = norm(config) if normed else nn.Identity()
        self.residual_is_normed = residual_is_normed

    def forward(self, embedded: Tensor, state: Tensor, **attention: Any) -> Tensor:
        normed: Tensor = self.hidden_norm(state)
        x = torch.cat([self.input_layernorm(embedded), normed], -1)
        x = (normed if self.residual_is_normed else state) + self.self_attn(hidden_states=x, **attention)[0]
        done: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return done


class Eagle3(Recurrent):
    """Pair (features at t, token t+1) → logits of token t+2, and the state that replaces `enter` in the next pair.

    With `norm_output`, in this meaning only in the speculators format, that state is the normed one. override: the
    boundaries to read, if the user names them. why: a sentence with the boundaries read, and the rule for them.
    """

    def __init__(self, head: Head, target: Borrowed, override: Sequence[int] | None = None) -> None:
        super().__init__()
        self.target, self.dtype, own = target, target.dtype, head.format == SPECULATORS
        self.config = layer_config(head, target)
        self.width = int(self.config.hidden_size)
        wide = number_in(head, "target_hidden_size") or self.width
        refuse_other(head, target, wide)
        if _key(part(head.config, "eagle_config"), "use_aux_hidden_state", True):
            found = reads(head, target, wide, override)
            self.taps, self.why = found.taken, found.why
        else:
            self.taps, self.why = Z, "reads the last hidden state: its config.json sets use_aux_hidden_state false"
        self.fc = linear(head.tensors, "fc") if self.taps != Z else None
        self.input_norm = (
            norm(self.config, self.fc.in_features) if self.fc and "input_norm.weight" in head.tensors else None
        )
        self.fc_norm = nn.ModuleList(
            norm(self.config, target.width) for name in head.tensors if name.startswith("fc_norm.")
        )
        residual = _key(head, "norm_before_residual", own and head.kind == "eagle3")
        self.layers = nn.ModuleList([FirstLayer(head, self.config, residual, self.taps != Z)])
        self.layers.extend(decoder_layer(head, self.config, number) for number in range(1, layers_in(head)))
        self.norm, self.feeds_normed = norm(self.config), own and _key(head, "norm_output", False)
        self.embed_tokens, self.lm_head = embedding(head, target, self.width), output(head, self.config, target)
        self.tied = self.lm_head is None and not own and _key(head, "tie_word_embeddings", False)
        if self.lm_head is None and not self.tied and self.width != target.width:
            raise UnusableModelError(f"{head.name}: weights are missing: {WEIGHT}")
        self.rotary_emb = rotary(self.config, target)
        unused = () if self.fc else [name for name in head.tensors if name.startswith("fc.")]
        self.warnings = fill(self, head, target, stored(head, target), unused)

    def enter(self, features: Tensor) -> Tensor:
        if self.input_norm is not None:
            features = self.input_norm(features)
        if self.fc_norm:
            chunks = features.chunk(len(self.fc_norm), -1)
            features = torch.cat([scale(chunk) for scale, chunk in zip(self.fc_norm, chunks, strict=True)], -1)
        return features if self.fc is None else self.fc(features)

    def through(self, embedded: Tensor, states: Tensor, positions: Tensor, masks: Any, cache: Any) -> Tensor:
        angles = self.rotary_emb(states, positions)
        for number, layer in enumerate(self.layers):
            keywords = {"attention_mask": mask_for(masks, self.config, number), "position_embeddings": angles}
            keywords["past_key_values"] = cache
            states = layer(states, **keywords) if number else layer(embedded, states, **keywords)
        return states

    def logits(self, normed: Tensor) -> Tensor:
        if self.tied:
            embedding: Any = self.embed_tokens or self.target.network.get_input_embeddings()
            return F.linear(normed, embedding.weight)
        return super().logits(normed)


def _key(config: Any, key: str, otherwise: bool) -> bool:
    """A switch of config.json; null counts as missing."""
    found = (config.config if isinstance(config, Head) else config).get(key)
    return otherwise if found is None else bool(found)


# --- MTP --------------------------------------------------------------------------------------------------------------


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
        keywords = {"attention_mask": mask, "position_ids": positions, "position_embeddings": angles}
        found: Tensor = self.layer(x, past_key_values=cache, **keywords)
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
