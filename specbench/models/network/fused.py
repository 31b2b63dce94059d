"""Decoder layers in fewer calls, for eager passes on a CPU: in a small network Python's calls are most of a pass.

The root-mean-square norm takes five operators instead of six, queries and keys are rotated together by three
instead of ten, and transformers' checks in every layer are made once. Only modules with the code of transformers'
Llama or Qwen3 are replaced, so that a variant (Gemma's norm adds one to its weight) is not changed.
"""

from dataclasses import dataclass
from functools import cache
from inspect import unwrap
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama import modeling_llama as llama
from transformers.models.mistral.modeling_mistral import MistralAttention
from transformers.models.qwen2.modeling_qwen2 import Qwen2Attention
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

ROTATE, HALVES = "apply_rotary_pos_emb", "rotate_half"
ATTENTIONS: tuple[Any, ...] = (llama.LlamaAttention, MistralAttention, Qwen2Attention, Qwen3Attention)


class Norm:
    """x / √(mean x² + ε) · weight; the quotient is computed in float32 and rounded to the dtype of x."""

    def forward(self: Any, x: Tensor) -> Tensor:
        wide = x if x.dtype == torch.float32 else x.float()
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)  # √(Σ x²), in one operator
        inverse = torch.addcmul(epsilon(self.variance_epsilon), length, length, value=1 / x.shape[-1]).rsqrt_()
        return (wide * inverse).to(x.dtype) * self.weight  # type: ignore[no-any-return]


@cache
def epsilon(size: float) -> Tensor:
    return torch.tensor(size)


@dataclass(eq=False)
class Turns:
    """The cosines and sines of a pass in the layout of its layers, made by the first."""

    _of: Tensor | None = None
    _made: tuple[Tensor, Tensor] | None = None

    def turned(self, states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """States [B, q, heads, D] as x cos + (−x₂, x₁) sin, for cos and sin [B, q, D]: the sign is that of the sine."""
        half = states.shape[-1] // 2
        if self._made is None or self._of is not sin:
            signed = torch.cat([-sin[..., :half], sin[..., half:]], -1)
            self._of, self._made = sin, (cos.unsqueeze(2), signed.unsqueeze(2))
        cosine, sine = self._made
        return torch.addcmul(states * cosine, states.roll(half, -1), sine)


class Attention:
    """The attention of Llama and Qwen3, with queries and keys in one tensor until they are rotated."""

    def forward(
        self: Any,
        hidden_states: Tensor,
        position_embeddings: tuple[Tensor, Tensor],
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        **more: Any,
    ) -> tuple[Tensor, None]:
        common, (rows, fed, _) = self.common, hidden_states.shape
        heads, groups = common.heads, common.groups
        if common.packed:
            read = self.q_proj.whole(hidden_states)
        else:
            read = torch.cat([self.q_proj(hidden_states), self.k_proj(hidden_states), self.v_proj(hidden_states)], -1)
        states = read.view(rows, fed, heads + 2 * groups, self.head_dim)
        both = states.narrow(2, 0, heads + groups)
        if common.normed:
            queries, keys = torch.split(both, [heads, groups], 2)
            both = torch.cat([self.q_norm(queries), self.k_norm(keys)], 2)
        turned = common.turns.turned(both, *position_embeddings).transpose(1, 2)
        keys, values = turned.narrow(1, heads, groups), states.narrow(2, heads + groups, groups).transpose(1, 2)
        if past_key_values is not None:
            keys, values = past_key_values.update(keys, values, self.layer_idx)
        queries, about = turned.narrow(1, 0, heads), common.about
        found, _ = common.attend(self, queries, keys, values, attention_mask, scaling=self.scaling, **about, **more)
        return self.o_proj(found.reshape(rows, fed, -1)), None


class Mlp:
    """A gated MLP whose gate and up projections are in one tensor until they are multiplied."""

    def forward(self: Any, x: Tensor) -> Tensor:
        gate, rest = self.gate_proj, self.up_proj
        if hasattr(gate, "whole"):
            gated, other = gate.whole(x).split((gate.out_features, rest.out_features), -1)
        else:
            gated, other = gate(x), rest(x)
        return self.down_proj(self.act_fn(gated) * other)  # type: ignore[no-any-return]


class Layer:
    """Attention and a gated MLP, each after its norm and with a residual; nothing is kept for gradients."""

    def forward(self: Any, hidden_states: Tensor, **more: Any) -> Tensor:
        states = hidden_states + self.self_attn(self.input_layernorm(hidden_states), **more)[0]
        found: Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return found


def fuse(network: nn.Module) -> None:
    """Replace modules of the common form by ones with fewer calls, in place: each keeps its parts and name."""
    turns, parts = Turns(), list[Any](network.modules())
    for part in parts:
        form = form_of(part)
        if form is not None:
            part.__class__ = variant(form, type(part))  # type: ignore[arg-type]
        if form is Attention:
            # heads, groups: of queries, and of keys; normed: both have norms; packed: one matrix projects both
            heads, groups = (layer.out_features // part.head_dim for layer in (part.q_proj, part.k_proj))
            part.common = SimpleNamespace(
                turns=turns,
                attend=ALL_ATTENTION_FUNCTIONS[part.config._attn_implementation],
                about={"dropout": 0.0, "sliding_window": getattr(part, "sliding_window", None)},
                heads=heads,
                groups=groups,
                normed=hasattr(part, "q_norm"),
                packed=hasattr(part.q_proj, "whole"),
            )


@cache
def variant(form: type, kind: type) -> type:
    """A subclass of a module's class, with its name, that computes the same in another form."""
    return type(kind.__name__, (form, kind), {"__module__": kind.__module__})


def form_of(part: Any) -> type | None:
    """The form of a module with fewer calls; None if unknown."""
    forward = type(part).forward
    if "forward" in vars(part):  # it was replaced
        return None
    if same(forward, llama.LlamaRMSNorm.forward):
        return Norm if part.weight.dtype != torch.float64 else None  # there its own one rounds to float32
    if any(same(forward, kind.forward) for kind in ATTENTIONS):
        named = part.config._attn_implementation in ALL_ATTENTION_FUNCTIONS.valid_keys()
        rotate: Any = forward.__globals__.get(ROTATE)  # queries and keys, by halves as in Llama
        halves = None if rotate is None else rotate.__globals__.get(HALVES)
        turns = same(rotate, llama.apply_rotary_pos_emb) and same(halves, llama.rotate_half)
        return Attention if named and turns else None
    if same(forward, llama.LlamaMLP.forward):
        return Mlp
    return Layer if same(forward, llama.LlamaDecoderLayer.forward) else None


def same(one: Any, other: Any) -> bool:
    """Whether two functions have the same code, except for their docstrings."""
    return isinstance(one, FunctionType) and isinstance(other, FunctionType) and code_of(one) == code_of(other)


@cache
def code_of(function: FunctionType) -> tuple[Any, ...]:
    """The code of a function, without wrappers."""
    function = unwrap(function)
    code = function.__code__
    constants = tuple(one for one in code.co_consts if one != function.__doc__)
    return code.co_code, code.co_names, code.co_varnames, constants, function.__defaults__, code.co_flags
