"""Scale models as configurations: what a Llama checkpoint becomes when it is grown to another shape, and its name.

Knows sizes and where the parts of a model go; must not know weights (`grow` places them) or files.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, PreTrainedConfig

from specbench.models.scale.shapes import Shape

KEY = "specbench_scale_model"  # in config.json: where a scale model comes from
ROPES = ("default", "linear", "llama3")  # scalings that hang on a pair's frequency alone, not on its index
NEVER_FEWER = ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size")
SIZES = (*NEVER_FEWER, "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings")


@dataclass(frozen=True)
class Growth:
    """The sizes of the original `small`, those of what it is grown to, and where its parts lie there."""

    small: Shape
    large: Shape

    @staticmethod
    def of(small: PreTrainedConfig, large: PreTrainedConfig) -> "Growth":
        return Growth(sizes_of(small), sizes_of(large))

    @property
    def scale(self) -> float:
        """√(d/D): the share of the root mean square that is left when zeros stand beside the original's dimensions."""
        return math.sqrt(self.small.hidden_size / self.large.hidden_size)

    @property
    def constant(self) -> float:
        """What the spare dimension of the residual stream carries; 0 where none is needed."""
        return spare_constant(self.small, self.large.vocab_size)

    @cached_property
    def kv_heads(self) -> list[int]:
        """For every key/value head in use, from the first on, the original's that it carries."""
        return carried(self.small, self.large)

    @cached_property
    def heads(self) -> list[int]:
        """The place of every query head of the original: in the group of a key/value head that carries its own."""
        room, copies = self.large.group, math.ceil(self.small.group / self.large.group)
        return [
            (old * copies + member // room) * room + member % room
            for old in range(self.small.num_key_value_heads)
            for member in range(self.small.group)
        ]

    @cached_property
    def dims(self) -> Tensor:
        """The place of every dimension of a head: rotary pair j becomes pair r·j, which turns at the same frequency."""
        ratio, half = self.large.head_dim // self.small.head_dim, self.small.head_dim // 2
        pairs = ratio * torch.arange(half)
        return torch.cat([pairs, pairs + self.large.head_dim // 2])

    def rows(self, heads: list[int]) -> Tensor:
        """The rows of a projection to heads that are the dimensions of the given ones."""
        return (torch.tensor(heads)[:, None] * self.large.head_dim + self.dims).flatten()


def sizes_of(config: PreTrainedConfig) -> Shape:
    """The sizes of a Llama checkpoint."""
    known = (*SIZES, "rms_norm_eps", "tie_word_embeddings")
    return Shape(name="", **{name: getattr(config, name) for name in known}, rope_theta=rope_of(config)["rope_theta"])


def rope_of(config: PreTrainedConfig) -> dict[str, Any]:
    return dict(getattr(config, "rope_parameters", None) or {})


def carried(small: Shape, large: Shape) -> list[int]:
    """The original's key/value heads in the large model, each as often as its queries need groups there."""
    copies = math.ceil(small.group / large.group)
    return [old for old in range(small.num_key_value_heads) for _ in range(copies)]


def spare_constant(small: Shape, vocabulary: int) -> float:
    """The largest power of two whose square is at most eps · d / 2: the norms' eps pays for it, see `grown_config`."""
    if vocabulary == small.vocab_size:
        return 0.0
    return float(2.0 ** math.floor(math.log2(small.rms_norm_eps * small.hidden_size / 2) / 2))


def obstacle(config: PreTrainedConfig, shape: Shape) -> str | None:
    """Why a checkpoint with this configuration cannot be grown to `shape`; None if it can."""
    if type(config) is not LlamaConfig:
        return f"only Llama checkpoints can be grown to another shape, and this one is {config.model_type}"
    if config.attention_bias or config.mlp_bias:
        return "its projections have biases, which shapes have not: it cannot be grown"
    if (rope := rope_of(config)["rope_type"]) not in ROPES:
        return f"its rope scaling is {rope}: only {', '.join(ROPES)} can be grown"
    small = sizes_of(config)
    for name in NEVER_FEWER:
        if (have := getattr(small, name)) > (room := getattr(shape, name)):
            return f"its {name} is {have}, more than the {room} of {shape.name}: choose a larger shape"
    return _obstacle_of_heads(small, shape) or _obstacle_of_vocabulary(small, shape)


def _obstacle_of_heads(small: Shape, shape: Shape) -> str | None:
    if shape.head_dim % small.head_dim:
        return f"the head_dim of {shape.name}, {shape.head_dim}, is no multiple of its {small.head_dim}"
    if (need := len(carried(small, shape))) > shape.num_key_value_heads:
        return (
            f"its {small.num_attention_heads} heads on {small.num_key_value_heads} key/value heads need {need} "
            f"key/value heads of {shape.name}, which has {shape.num_key_value_heads}: choose a larger shape"
        )
    return None


def _obstacle_of_vocabulary(small: Shape, shape: Shape) -> str | None:
    if shape.vocab_size == small.vocab_size:
        return None
    if shape.hidden_size == small.hidden_size:
        return f"{shape.name} has more vocabulary but the same hidden_size: no dimension is spare to sink padded ids"
    return None if small.rms_norm_eps > 0 else "its rms_norm_eps is 0: a larger vocabulary needs some"


def grown_config(config: PreTrainedConfig, shape: Shape, origin: str) -> LlamaConfig:
    """The configuration of a checkpoint grown to `shape`, which says so itself; `origin` is what it is called.

    Norms divide the sum of squares by D in the place of d, and one square is added: eps changes so that they agree.
    """
    small, added = sizes_of(config), spare_constant(sizes_of(config), shape.vocab_size) ** 2
    kept = ("hidden_act", "initializer_range", "bos_token_id", "eos_token_id", "pad_token_id", "dtype")
    stated = {"from": origin, "like": shape.name, "vocabulary": small.vocab_size, "notes": notes(config, shape)}
    settings: dict[str, Any] = {name: getattr(shape, name) for name in SIZES}
    settings |= {name: getattr(config, name) for name in kept}
    settings |= {"architectures": ["LlamaForCausalLM"], "rope_parameters": rope_of(config), KEY: stated}
    return LlamaConfig(
        **settings,
        rms_norm_eps=(small.rms_norm_eps * small.hidden_size - added) / shape.hidden_size,
        tie_word_embeddings=shape.tie_word_embeddings and small.tie_word_embeddings,
    )


def notes(config: PreTrainedConfig, shape: Shape) -> list[str]:
    """Where a scale model is unlike its shape, because its function would change."""
    found, rope = [], rope_of(config)
    if rope["rope_theta"] != shape.rope_theta or rope["rope_type"] != "default":
        found.append(f"rope base {rope['rope_theta']:g} ({rope['rope_type']}) as in the original")
    if shape.tie_word_embeddings and not config.tie_word_embeddings:
        found.append("embeddings not tied, as in the original")
    return found


def label(config: PreTrainedConfig) -> str | None:
    """What a scale model is called, such as demo@llama-7b; None for an ordinary model."""
    stated = getattr(config, KEY, None)
    if stated is None:
        return None
    origin, like = (stated.get("from"), stated.get("like")) if isinstance(stated, dict) else (None, None)
    return " ".join(f"{origin or '?'}@{like or '?'}".split())[:100]


def vocabulary(config: PreTrainedConfig) -> int | None:
    """How many rows of a scale model's head are the original's, None for any other model.

    The logits after them are sunk so deep that their rounding errors alone exceed all differences between real ones.
    """
    stated = getattr(config, KEY, None)
    known = stated.get("vocabulary") if isinstance(stated, dict) else None
    return known if isinstance(known, int) and known > 0 else None


def warnings(name: str, config: PreTrainedConfig) -> list[str]:
    """What stderr says about a model that is a scale model."""
    called = label(config)
    if called is None:
        return []
    stated = getattr(config, KEY)
    unlike = stated.get("notes") if isinstance(stated, dict) else None
    small, _, like = called.rpartition("@")
    line = f"{name}: scale model: the function of {small} at the cost of {like}; acceptance is the small pair's"
    return ["; ".join([line, *map(str, unlike if isinstance(unlike, list) else [])])]
