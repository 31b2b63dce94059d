"""EAGLE-1 heads, which are those of EAGLE-2 and HASS: one decoder layer on the last hidden state and the next token.

Li et al. 2024, arXiv 2401.15077 and 2406.16858; Zhang et al. 2024, arXiv 2408.15766. The equations are those of
SafeAILab's `cnets1.py`, with the norms of vLLM's and speculators' variants where their weights are there.
"""

from typing import Any

import torch
from torch import Tensor, nn

from specbench.models.heads.borrowed import Borrowed
from specbench.models.heads.filling import fill
from specbench.models.heads.head import Head
from specbench.models.heads.layers import (
    decoder_layer,
    layer_config,
    layers_in,
    linear,
    mask_for,
    norm,
    rotary,
    shape_of,
)
from specbench.models.heads.vocabulary import embedding, output, refuse_other, stored

NORMS = ("embedding_layernorm", "hidden_states_layernorm", "pre_lm_head_layernorm")


class Eagle1(nn.Module):
    """Pair (z at t, token t+1) → logits of token t+2, and the state that stands in for z in the next pair.

    Norms of the inputs and before the output are there where their weights are; vLLM reads the norm before the output
    of speculators' files as one of the state that comes in, speculators itself as written here.
    """

    taps: tuple[int | str, ...] = ("z",)
    at_once = False
    steps: int | None = None
    why = ""
    embedding_layernorm: nn.Module
    hidden_states_layernorm: nn.Module
    pre_lm_head_layernorm: nn.Module

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

    def enter(self, features: Tensor) -> Tensor:
        """[B, q, H] the state of true pairs, from z."""
        return features

    def forward(
        self,
        input_ids: Tensor,
        states: Tensor,
        position_ids: Tensor,
        attention_mask: Any = None,
        past_key_values: Any = None,
        keep: int = 0,
    ) -> tuple[Tensor, Tensor]:
        """ids [B, q] and states [B, q, H] → logits [B, q, V], of the last `keep` pairs alone unless that is 0, and the
        states of the next pairs [B, q, H]."""
        embedded = (self.embed_tokens or self.target.embed)(input_ids)
        x = self.fc(torch.cat([self.embedding_layernorm(embedded), self.hidden_states_layernorm(states)], -1))
        angles = self.rotary_emb(x, position_ids)
        for number, layer in enumerate(self.layers):
            mask = mask_for(attention_mask, self.config, number)
            x = layer(x, attention_mask=mask, position_embeddings=angles, past_key_values=past_key_values)
        return (self.lm_head or self.target.logits)(self.pre_lm_head_layernorm(x[:, -keep:])), x
