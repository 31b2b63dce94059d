"""DFlash and DSpark: a block of masks after the text, over keys and values made of the target's hidden states.

DFlash: arXiv 2602.06036 (z-lab, transformers, speculators). DSpark: arXiv 2607.05147 (DeepSpec, speculators),
which corrects a row by the token before it. The text is seen by every layer as one projection of the target's states,
made once for every token; the block's own keys and values are temporary. Knows the equations; must not know what is
done with the rows.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from specbench.decoding.types import Context
from specbench.errors import UnusableModelError
from specbench.models.heads.borrowed import Borrowed
from specbench.models.heads.boundaries import boundaries, named_in
from specbench.models.heads.dspark import Confidence, Markov, confidence_of, markov_of
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
from specbench.models.heads.masked import mask_of
from specbench.models.heads.names import SPECULATORS, renamed
from specbench.models.heads.parallel import Drafted
from specbench.models.heads.places import Places, Seen, causal, everything, sliding
from specbench.models.heads.recognition import part
from specbench.models.heads.vocabulary import embedding, output, refuse_other, stored
from specbench.models.network.reduced import ReducedHead, known_tokens

TRANSFORMERS = {"encoder.fc.": "fc.", "encoder.output_norm_enc.": "hidden_norm."}  # its names for two of the parts


class DFlash(nn.Module):
    """Both kinds: the block is the pending token and masks after it, and row k of it predicts the token at its own
    place or, with `sample_from_anchor`, at the next one."""

    at_once, behind, width = True, 1, 0

    def __init__(self, head: Head, target: Borrowed, override: Sequence[int] | None = None) -> None:
        super().__init__()
        head = replace(head, tensors={renamed(name, TRANSFORMERS): one for name, one in head.tensors.items()})
        self.target, self.dtype, self.config = target, target.dtype, layer_config(head, target)
        width = int(self.config.hidden_size)
        self.fc, (self.taps, self.why) = linear_of(head), reads(head, target, override)
        self.hidden_norm, self.norm = norm(self.config), norm(self.config)
        self.layers = nn.ModuleList(decoder_layer(head, self.config, number) for number in range(layers_in(head)))
        self.embed_tokens, self.lm_head = embedding(head, target, width), output(head, self.config, target)
        self.markov_head: Markov | None = markov_of(head, target, width)
        self.mask, self.block = mask_of(head.name, keys_of(head), target.vocabulary), block_of(head)
        self.first = 0 if anchored(head) else 1
        self.steps = self.block - self.first
        self.windows = seen_by(head, self.config)
        self.rotary_emb = rotary(self.config, target)
        self.confidence_head: Confidence | None = confidence_of(head, self.markov_head, width)
        self.warnings = fill(self, head, target, stored(head, target))
        self.known = known_tokens(self, target.vocabulary)

    def front(self, depth: int) -> int:
        return self.block

    @torch.no_grad()
    def read(self, context: Context, text: Tensor, features: Tensor | None, places: Places) -> None:
        assert features is not None
        places.over(context, text)
        states = self.hidden_norm(self.fc(features))
        angles = self.rotary_emb(states, text)
        for layer, kept in zip(self.layers, places.cache.rows, strict=True):
            kept.update(*keys_and_values(layer.self_attn, states, angles))

    @torch.no_grad()
    def draft(self, context: Context, text: Tensor, features: Tensor | None, places: Places, depth: int) -> Drafted:
        self.read(context, text, features, places)
        pending = context.seq.gather(1, context.pos.unsqueeze(1))
        ids = torch.cat([pending, pending.new_full((len(pending), self.block - 1), self.mask)], 1)
        at = context.pos.unsqueeze(1) + torch.arange(self.block, device=text.device)
        places.over(context, text[:, :0], self.block)
        masks = places.masks(self, context, at, at, self.windows, context.pos)
        x = (self.embed_tokens or self.target.embed)(ids)
        angles = self.rotary_emb(x, at)
        for number, layer in enumerate(self.layers):
            told = {"attention_mask": mask_for(masks, self.config, number), "position_embeddings": angles}
            x = layer(x, past_key_values=places.cache, **told)
        whole = self.norm(x[:, : self.first + depth])
        states = whole[:, self.first :]
        carried = None if self.markov_head is None else self.markov_head.begin(whole[:, : self.first], pending)
        return Drafted((self.lm_head or self.target.logits)(states), states, carried)

    def corrected(
        self, logits: Tensor, states: Tensor, before: Tensor, carried: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        if self.markov_head is None:
            return logits, None
        bias, carried = self.markov_head(states, before, carried)
        if isinstance(self.lm_head, ReducedHead):
            bias = bias.new_zeros(logits.shape).index_copy(-1, self.lm_head.ids, bias)
        return logits + bias, carried

    def sure(self, states: Tensor, before: Tensor) -> Tensor | None:
        if self.confidence_head is None:
            return None
        known = None if self.markov_head is None else self.markov_head.markov_w1(before)
        found: Tensor = self.confidence_head(states, known)
        return found


def keys_and_values(attention: Any, states: Tensor, angles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """[B, H', q, D] twice: what a layer's attention makes of states [B, q, H] that are none of its own."""
    shape = (*states.shape[:-1], -1, attention.head_dim)
    key, value = attention.k_proj(states).view(shape), attention.v_proj(states).view(shape).transpose(1, 2)
    key = (attention.k_norm(key) if hasattr(attention, "k_norm") else key).transpose(1, 2)
    return apply_rotary_pos_emb(key, key, *angles)[1], value


def linear_of(head: Head) -> nn.Linear:
    shape_of(head, "fc.weight")
    return linear(head.tensors, "fc")


def reads(head: Head, target: Borrowed, override: Sequence[int] | None) -> tuple[tuple[int | str, ...], str]:
    """The boundaries of the target that a head reads, and why."""
    refuse_other(head, target, int(head.config.get("target_hidden_size") or shape_of(head, "norm.weight")[0]))
    columns = shape_of(head, "fc.weight")[1]
    if columns % target.width:
        raise UnusableModelError(
            f"{head.name}: weights do not fit config.json: fc reads {columns} columns, and the target is "
            f"{target.width} wide"
        )
    meaning, ids = named_in(head)
    try:
        found = boundaries(meaning, ids, target.layers, columns // target.width, override)
    except UnusableModelError as error:
        raise UnusableModelError(f"{head.name}: {error}") from error
    return found.taken, found.why


def keys_of(head: Head) -> dict[str, Any]:
    """config.json with the keys that z-lab keeps in a part of their own."""
    return {**head.config, **part(head.config, "dflash_config")}


def block_of(head: Head) -> int:
    """How many places a block has: the pending token and the masks."""
    found = keys_of(head).get("block_size")
    if type(found) is not int or found < 2:
        raise UnusableModelError(f"{head.name}: unusable config.json: block_size is {found!r:.40}, not 2 or more")
    return found


def anchored(head: Head) -> bool:
    """Whether the row of the pending token is a draft, too. DSpark's is unless it says otherwise, DFlash's is not."""
    said = head.config.get("sample_from_anchor")
    return head.kind == "dspark" if said is None else bool(said)


def seen_by(head: Head, config: Any) -> dict[str, tuple[Seen, int | None]]:
    """What a block sees in layers of every type: all of itself and of the text, or what lies in a window. With a
    window, speculators looks back from the pending token, and not ahead unless `sliding_window_non_causal`."""
    ahead = head.format != SPECULATORS or bool(head.config.get("sliding_window_non_causal"))
    return {
        name: (everything if window is None else windowed(head.format == SPECULATORS, ahead), window)
        for name, window in sliding(config).items()
    }


def windowed(from_pending: bool, ahead: bool) -> Seen:
    def seen(queries: Tensor, keys: Tensor, window: int | None) -> Tensor:
        if not from_pending:
            return everything(queries, keys, window)
        first = queries[:, :1]
        found = everything(queries, keys, None) if ahead else causal(queries, keys, None)
        return found & (keys >= first - (window or 0))

    return seen
