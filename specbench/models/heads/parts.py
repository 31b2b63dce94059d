"""Parts of heads: decoder layers, embedding and output, parts borrowed from the target, and their weights.

Decoder layers are transformers' own modules, with sizes from the shapes of weights and the rest
from config.json. A head may have a reduced vocabulary (`d2t`, `t2d`; see `checkpoints.reduced`);
its embedding is complete. Modules are made without memory for their weights, which `fill` adds. A
head with one tensor missing or left over still drafts, only worse, so either is refused.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RotaryEmbedding

from specbench.errors import UnusableModelError
from specbench.models.checkpoints.reduced import MASK, OFFSETS, WEIGHT, refuse_wrong, tokens
from specbench.models.heads.recognition import Head
from specbench.models.network.sampling import SIZE, ReducedHead, cut
from specbench.wording import first_line, some


@dataclass(frozen=True)
class Borrowed:
    """The target of a head. `width` and `vocabulary` are those of its hidden states and of its logits."""

    network: Any

    def __deepcopy__(self, memo: dict[int, Any]) -> "Borrowed":
        """A copied head borrows from the same target, or from an existing copy of it."""
        return Borrowed(memo.get(id(self.network), self.network))

    @property
    def config(self) -> Any:
        return self.network.config.get_text_config(decoder=True)

    @property
    def width(self) -> int:
        return int(self.config.hidden_size)

    @property
    def vocabulary(self) -> int:
        return int(self.config.vocab_size)

    @property
    def layers(self) -> int:
        return int(self.config.num_hidden_layers)

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.network.dtype
        return dtype

    @property
    def device(self) -> torch.device:
        device: torch.device = self.network.get_input_embeddings().weight.device
        return device

    def embed(self, ids: Tensor) -> Tensor:
        """[B, q, H] the target's embeddings of ids [B, q]."""
        found: Tensor = self.network.get_input_embeddings()(ids)
        return found

    def angles(self, hidden: Tensor, positions: Tensor) -> Any:
        """The rotary angles of positions [B, q], in the form of the target's layers."""
        return self.network.get_decoder().rotary_emb(hidden, positions)

    def logits(self, hidden: Tensor) -> Tensor:
        """[B, q, V] the target's logits of a normed last hidden state [B, q, H]: its head, scaled and capped."""
        logits: Tensor = self.network.get_output_embeddings()(hidden)
        if scale := getattr(self.config, "logits_scaling", None):  # Granite
            logits = logits / scale
        if scale := getattr(self.config, "logit_scale", None):  # Cohere
            logits = logits * scale
        if cap := getattr(self.config, "final_logit_softcapping", None):  # Gemma
            logits = torch.tanh(logits / cap) * cap
        return logits


ROPE = ("rope_parameters", "rope_theta", "rope_scaling")
SAME = ("max_position_embeddings", "rms_norm_eps", "hidden_act", *ROPE)  # keys that are copied
LINEAR = (
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)


class Recurrent(nn.Module):
    """A head that drafts one token after the other: `forward` takes pairs of a state and the token after it.

    ids [B, q], states [B, q, W], positions [B, q], masks and a cache → logits [B, q, V], −inf for unknown
    tokens, of the last `keep` pairs alone unless that is 0; and the states of the next pairs [B, q, W].
    """

    target: Borrowed
    embed_tokens: nn.Module | None
    lm_head: Callable[[Tensor], Tensor] | None
    norm: Callable[[Tensor], Tensor]
    feeds_normed = False  # whether the states of the next pairs are the normed ones
    taps: tuple[int | str, ...] = ("z",)
    at_once = False
    steps: int | None = None
    why = ""

    def enter(self, features: Tensor) -> Tensor:
        """[B, q, A·H] hidden states of the target → [B, q, W] the states of true pairs."""
        return features

    def forward(
        self, ids: Tensor, states: Tensor, positions: Tensor, masks: Any, cache: Any = None, keep: int = 0
    ) -> tuple[Tensor, Tensor]:
        embedded = (self.embed_tokens or self.target.embed)(ids)
        states = self.through(embedded, states, positions, masks, cache)
        normed = self.normed(states)
        return self.logits(normed[:, -keep:]), normed if self.feeds_normed else states

    def through(self, embedded: Tensor, states: Tensor, positions: Tensor, masks: Any, cache: Any) -> Tensor:
        """[B, q, W] the output of the layers for embedded tokens [B, q, H] and states [B, q, W]."""
        raise NotImplementedError

    def judged(self, states: Tensor) -> Tensor:
        """states [..., W] as returned by `forward` → their logits."""
        return self.logits(states if self.feeds_normed else self.normed(states))

    def normed(self, states: Tensor) -> Tensor:
        return self.norm(states)

    def logits(self, normed: Tensor) -> Tensor:
        """A module being trained computes in float32, and the borrowed output in the dtype of its target."""
        if self.lm_head is None:
            return self.target.logits(normed.to(self.target.dtype))
        return self.lm_head(normed)


def shape_of(head: Head, name: str) -> tuple[int, ...]:
    """The shape of a required tensor of this kind of head. UnusableModelError if missing."""
    if name not in head.tensors:
        raise UnusableModelError(f"{head.name}: weights are missing: {name}")
    return tuple(head.tensors[name].shape)


def number_in(head: Head, key: str) -> int | None:
    """A number of config.json, None if null or missing. UnusableModelError if it is not a positive integer."""
    found = head.config.get(key)
    if found is not None and (type(found) is not int or found < 1):
        raise UnusableModelError(f"{head.name}: unusable config.json: {key} is {found!r:.40}")
    return found


def layers_in(head: Head) -> int:
    """The number of decoder layers of a head, from the names of its tensors."""
    numbers = {name.split(".")[1] for name in head.tensors if name.startswith("layers.")}
    return sum(number.isdigit() for number in numbers)


def layer_config(head: Head, target: Borrowed) -> Any:
    """The configuration of a head's decoder layers: of Qwen3 if queries and keys are normed, else of Llama.

    Widths are those of the weights. `vocab_size` and the attention implementation are the
    target's. UnusableModelError if config.json and weights do not fit each other.
    """
    heads, groups, size = _heads(head)
    count, normed = layers_in(head), "layers.0.self_attn.q_norm.weight" in head.tensors
    keys: dict[str, Any] = {key: head.config[key] for key in SAME if head.config.get(key) is not None}
    keys |= {"hidden_size": shape_of(head, "layers.0.post_attention_layernorm.weight")[0]}
    keys |= {"intermediate_size": shape_of(head, "layers.0.mlp.gate_proj.weight")[0], "head_dim": size}
    keys |= {"num_attention_heads": heads, "num_key_value_heads": groups, "num_hidden_layers": count}
    nobody: dict[str, Any] = {
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "vocab_size": target.vocabulary,
    }
    try:
        config: Any = (Qwen3Config if normed else LlamaConfig)(**keys, **nobody)
    except Exception as error:  # wrong types raise arbitrary errors
        raise UnusableModelError(f"{head.name}: unusable config.json: {first_line(error)}") from error
    types = list(head.config.get("layer_types") or ())[:count]
    types += ["full_attention"] * (count - len(types))
    if not any("sliding" in name for name in types):
        config.layer_types, config.sliding_window = types, None
    else:
        if (window := number_in(head, "sliding_window")) is None:
            raise UnusableModelError(f"{head.name}: unusable config.json: it has sliding layers and no sliding_window")
        config.layer_types, config.sliding_window = types, window
    config.use_sliding_window = config.sliding_window is not None  # otherwise Qwen3's would have none
    config._attn_implementation = target.config._attn_implementation
    return config


def _heads(head: Head) -> tuple[int, int, int]:
    """(heads, heads of keys, width of a head)."""
    heads = number_in(head, "num_attention_heads") or 0
    groups = number_in(head, "num_key_value_heads") or heads
    query, key = (shape_of(head, f"layers.0.self_attn.{name}_proj.weight")[0] for name in "qk")
    if not heads or query % heads or key * heads != query * groups:
        raise UnusableModelError(
            f"{head.name}: weights do not fit config.json: queries are {query} wide and keys {key}, with {heads} heads "
            f"and {groups} heads of keys"
        )
    return heads, groups, query // heads


def rotary(config: Any, target: Borrowed) -> nn.Module:
    kind = Qwen3RotaryEmbedding if isinstance(config, Qwen3Config) else LlamaRotaryEmbedding
    return kind(config=config).to(target.device)


def norm(config: Any, size: int | None = None) -> nn.Module:
    with torch.device("meta"):
        return LlamaRMSNorm(size or config.hidden_size, eps=config.rms_norm_eps)


def linear(tensors: Mapping[str, Tensor], name: str) -> nn.Linear:
    """A linear module as wide as the tensor `name`.weight, with a bias if one exists; no memory yet."""
    rows, columns = tensors[f"{name}.weight"].shape
    return nn.Linear(columns, rows, bias=f"{name}.bias" in tensors, device="meta")


def decoder_layer(head: Head, config: Any, number: int) -> Any:
    """Layer `number` of a head, in the widths of its weights; the first has no norm if none is stored."""
    with torch.device("meta"):
        kind = Qwen3DecoderLayer if isinstance(config, Qwen3Config) else LlamaDecoderLayer
        layer: Any = kind(config, number)
    for name in LINEAR:
        prefix = f"layers.{number}.{name}"
        shape_of(head, f"{prefix}.weight")
        holder, last = layer.get_submodule(name.split(".")[0]), name.split(".")[1]
        setattr(holder, last, linear(head.tensors, prefix))
    if not number and "layers.0.input_layernorm.weight" not in head.tensors:
        layer.input_layernorm = nn.Identity()
    return layer


def mask_for(masks: Any, config: Any, number: int) -> Any:
    """The mask of one layer, from one mask per type of layer or one for all."""
    return masks[config.layer_types[number]] if isinstance(masks, dict) else masks


EMBEDDING = "embed_tokens.weight"


def without_copies(head: Head, target: Borrowed) -> Head:
    """The head without copies of its target's embedding and output, as in files without them:
    these are borrowed, which saves their memory."""
    network = target.network
    own = {EMBEDDING: network.get_input_embeddings()}
    own |= {WEIGHT: network.get_output_embeddings()} if head.kind in ("mtp", "eagle1") else {}
    copies = {name for name, part in own.items() if _same(head.tensors.get(name), part.weight)}
    return replace(head, tensors={name: tensor for name, tensor in head.tensors.items() if name not in copies})


def _same(stored: Tensor | None, weight: Tensor) -> bool:
    if stored is None or stored.shape != weight.shape:
        return False
    there = type(weight) in (Tensor, nn.Parameter) and not weight.is_meta  # and not quantised
    return there and torch.equal(stored.to(weight), weight)


def refuse_other(head: Head, target: Borrowed, width: int) -> None:
    """UnusableModelError for a head that reads hidden states of another width, or has another
    vocabulary in its config.json or its embedding."""
    said = number_in(head, "vocab_size") or target.vocabulary
    rows = len(head.tensors[EMBEDDING]) if EMBEDDING in head.tensors else said
    for what, own, wanted in (("width", width, target.width), ("vocabulary", said, target.vocabulary),
                              ("vocabulary", rows, target.vocabulary)):  # fmt: skip
        if own != wanted:
            raise UnusableModelError(
                f"{head.name}: it is for a target of {what} {own:,}, and this one's is {wanted:,}: give the target "
                "that it was trained with"
            )


def embedding(head: Head, target: Borrowed, width: int) -> nn.Embedding | None:
    """The embedding of a head with its own weights; None if it uses its target's."""
    if EMBEDDING not in head.tensors:
        if width != target.width:
            raise UnusableModelError(
                f"{head.name}: weights are missing: {EMBEDDING}: it is {width} wide, and its target {target.width}"
            )
        return None
    return nn.Embedding(target.vocabulary, width, device="meta")


def output(head: Head, config: object, target: Borrowed) -> nn.Module | None:
    """The output of a head with its own weights, of all tokens or of some; None if it uses its target's.

    A head with a reduced vocabulary declares `draft_vocab_size`. UnusableModelError for tensors
    that do not fit each other or the target.
    """
    if WEIGHT not in head.tensors and OFFSETS not in head.tensors:
        return None
    shape_of(head, WEIGHT)
    rows, width = head.tensors[WEIGHT].shape
    if rows != target.vocabulary and OFFSETS not in head.tensors:
        raise UnusableModelError(
            f"{head.name}: its {WEIGHT} has {rows:,} rows and the target {target.vocabulary:,} tokens, and it has no "
            f"{OFFSETS} to map them"
        )
    if rows != target.vocabulary:
        refuse_wrong(head.name, head.tensors[OFFSETS], head.tensors.get(MASK), rows, target.vocabulary)
    return output_of(config, rows, width, target)


def output_of(config: object, rows: int, width: int, target: Borrowed) -> nn.Module:
    """The output of all tokens, or of `rows` of them, from states of this width; no memory yet."""
    if rows == target.vocabulary:
        return nn.Linear(width, rows, bias=False, device="meta")
    setattr(config, SIZE, rows)
    with torch.device("meta"):
        return ReducedHead(torch.empty(rows, width), torch.empty(rows, dtype=torch.long), target.vocabulary)


def reduce_output(head: Any, target: Any, ids: Sequence[int]) -> Any:
    """Reduce the output of a `cuttable` head in place to the rows of these tokens: its own or
    borrowed output, or the embedding, if the two are one."""
    shared = (head.embed_tokens or target.get_input_embeddings()) if getattr(head, "tied", False) else None
    head.lm_head = cut(shared or head.lm_head or target.get_output_embeddings(), ids, type(head).__name__)
    head.tied = False
    setattr(head.config, SIZE, len(head.lm_head.ids))
    return head


def stored(head: Head, target: Borrowed) -> dict[str, Tensor]:
    """The tensors of a head as in its module: the ids of known tokens instead of offsets."""
    tensors: Mapping[str, Tensor] = head.tensors
    known = {name: tensor for name, tensor in tensors.items() if name not in (OFFSETS, MASK)}
    if OFFSETS in tensors and WEIGHT in tensors and len(tensors[WEIGHT]) != target.vocabulary:
        known["lm_head.ids"] = tokens(tensors[OFFSETS])
    return known


# Harmless leftovers: angles computed from the configuration, and copies of the target's weights.
HARMLESS = re.compile(r"(.*\.)?rotary_emb\.(inv_freq|cos_cached|sin_cached)|verifier_(norm|lm_head)\..*")
EXACT = re.compile(r".*e_score_correction_bias")  # of routers: added to scores in float32, whatever the other dtypes


def fill(
    module: nn.Module,
    head: Head,
    target: Borrowed,
    tensors: Mapping[str, Tensor] | None = None,
    harmless: Collection[str] = (),
) -> tuple[str, ...]:
    """Load the tensors of a head into its module, on the device and in the dtype of the target.

    tensors: those of the head by default. harmless: leftover names allowed besides `HARMLESS`. Returns warnings,
    one line each. UnusableModelError for a tensor that is missing, left over, quantised, or of another shape.
    """
    given, wanted = dict(head.tensors if tensors is None else tensors), module.state_dict(keep_vars=True)
    if missing := wanted.keys() - given.keys():
        raise UnusableModelError(f"{head.name}: weights are missing: {some(missing)}")
    left = given.keys() - wanted.keys()
    if strange := {name for name in left - set(harmless) if not HARMLESS.fullmatch(name)}:
        raise UnusableModelError(
            f"{head.name}: it has weights that are not used ({head.words}): {some(strange)}; without them it would not "
            "be the head that was trained"
        )
    for name, place in wanted.items():
        _check(head, name, given[name], place)
    ready = {name: _placed(name, given[name], target) for name in wanted}
    module.load_state_dict(ready, assign=True)
    module.requires_grad_(False).eval()
    return (f"{head.name}: weights that are not used: {some(left)}",) if left else ()


def _check(head: Head, name: str, given: Tensor, place: Tensor) -> None:
    if given.shape != place.shape:
        raise UnusableModelError(
            f"{head.name}: weights do not fit config.json: {name} is {list(given.shape)}, not {list(place.shape)}"
        )
    if place.is_floating_point() and (not given.is_floating_point() or given.itemsize == 1):
        kind = str(given.dtype).removeprefix("torch.")
        raise UnusableModelError(f"{head.name}: its weights are quantised ({name} is {kind}): use one that is not")


def _placed(name: str, given: Tensor, target: Borrowed) -> Tensor:
    dtype = target.dtype if given.is_floating_point() else given.dtype
    if EXACT.fullmatch(name):
        dtype = torch.promote_types(dtype, torch.float32)
    # A copy: tensors in a mapped file are at any multiple of 16 bytes, and processors load from multiples of 64.
    return given.to(device=target.device, dtype=dtype, copy=True)
