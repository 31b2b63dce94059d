"""Heads that read masks after the text and give a row at each: PARD, P-EAGLE, DFlash, DSpark.

PARD (An et al. 2025, arXiv 2504.18583), a whole small network, and P-EAGLE (arXiv 2602.01469): one causal pass
over the tokens committed since the last one and K − 1 masks. DFlash (arXiv 2602.06036): a block of masks over
keys and values that every layer makes of one projection of the target's states, once per token. DSpark (arXiv
2607.05147) corrects a row of DFlash by the token before it: W₂ W₁[token before], or gated by the state of the
position, or with a recurrent state along the block (speculators, `markov_head_type`: vanilla, gated, rnn).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from specbench.decoding.types import Context
from specbench.errors import UnusableModelError
from specbench.models.heads.eagle import Eagle3
from specbench.models.heads.parts import (
    Borrowed,
    decoder_layer,
    embedding,
    fill,
    layer_config,
    layers_in,
    linear,
    mask_for,
    norm,
    output,
    refuse_other,
    rotary,
    shape_of,
    stored,
)
from specbench.models.heads.recognition import SPECULATORS, Head, part, renamed
from specbench.models.heads.taps import reads
from specbench.models.heads.together import Drafted, Parallel, Places, Seen, causal, everything, sliding
from specbench.models.network.passes import windows_of
from specbench.models.network.sampling import ReducedHead, known_tokens

MASKS = ("pard_token", "mask_token_id", "ptd_token_id")  # engines' names for the mask in config.json


class Masked(Parallel):
    """A head that continues with masks after the text, one for every token but the first."""

    def through(
        self, context: Context, text: Tensor, features: Tensor | None, places: Places, masks: int, keep: int
    ) -> Tensor:
        """[B, keep, V'] the logits of the last tokens of a pass over the text at positions [B, q] and `masks` masks."""
        raise NotImplementedError

    def front(self, depth: int) -> int:
        return depth - 1

    def read(self, context: Context, text: Tensor, features: Tensor | None, places: Places) -> None:
        self.through(context, text, features, places, 0, 1)

    def draft(self, context: Context, text: Tensor, features: Tensor | None, places: Places, depth: int) -> Drafted:
        logits = self.through(context, text, features, places, depth - 1, depth)
        return Drafted(logits, logits[..., :0])


class Pard(Masked):
    """A network trained to continue with masks. It reads the text itself, and none of the target's states."""

    behind = 0

    def __init__(self, network: Any, width: int, name: str = "the draft") -> None:
        self.network, self.config = network, network.config.get_text_config(decoder=True)
        self.dtype: torch.dtype = network.dtype
        said = {key: getattr(network.config, key, None) for key in MASKS}
        self.mask = mask_of(name, said, int(self.config.vocab_size))
        self.windows = {kind: (causal, window) for kind, window in windows_of(self.config).items()}
        self.known = known_tokens(network, width)

    def through(
        self, context: Context, text: Tensor, features: Tensor | None, places: Places, masks: int, keep: int
    ) -> Tensor:
        ids = context.seq.gather(1, text).clamp_max(self.config.vocab_size - 1)  # clamps ids that only the target has
        positions, mask = placed(self, context, text, places, masks, context.pos + 1)
        output = self.network(
            input_ids=torch.cat([ids, ids.new_full((len(ids), masks), self.mask)], 1),
            # learned positions may end with the sequence: drafts after that are never emitted
            position_ids=torch.minimum(positions, context.last.unsqueeze(1)),
            attention_mask=mask,
            past_key_values=places.cache,
            use_cache=True,
            logits_to_keep=keep,
        )
        logits: Tensor = output.logits
        return logits


class PEagle(Masked, nn.Module):
    """EAGLE-3 that continues with masks instead of its own states: pairs of the mask token and `mask_hidden`."""

    def __init__(self, head: Head, target: Borrowed, override: Sequence[int] | None = None) -> None:
        super().__init__()
        if "mask_hidden" not in head.tensors:
            raise UnusableModelError(f"{head.name}: weights are missing: mask_hidden")
        rest = {name: tensor for name, tensor in head.tensors.items() if name != "mask_hidden"}
        # by default it is not; vLLM assumes that it is for EAGLE-3 in this format
        config = {**head.config, "norm_before_residual": head.config.get("norm_before_residual") or False}
        self.eagle = Eagle3(replace(head, tensors=rest, config=config), target, override)
        self.target, self.taps, self.config, self.dtype = target, self.eagle.taps, self.eagle.config, self.eagle.dtype
        self.mask = mask_of(head.name, head.config, target.vocabulary)
        wide = len(self.taps) * target.width
        if head.tensors["mask_hidden"].numel() != wide:
            shape = list(head.tensors["mask_hidden"].shape)
            raise UnusableModelError(f"{head.name}: mask_hidden is {shape}, and the head reads {wide} columns")
        hidden = head.tensors["mask_hidden"].to(device=target.device, dtype=target.dtype, copy=True)
        self.mask_hidden = nn.Parameter(hidden.reshape(1, 1, wide), requires_grad=False)
        self.windows = {kind: (causal, window) for kind, window in sliding(self.config).items()}
        self.known = known_tokens(self.eagle, target.vocabulary)
        self.why, self.warnings = self.eagle.why, self.eagle.warnings

    def through(
        self, context: Context, text: Tensor, features: Tensor | None, places: Places, masks: int, keep: int
    ) -> Tensor:
        """Logits of pairs of the target's rows and the tokens after them, then of masks."""
        assert features is not None
        ids = context.seq.gather(1, text + 1)
        hidden = torch.cat([features, self.mask_hidden.expand(len(ids), masks, -1)], 1)
        positions, mask = placed(self, context, text, places, masks, context.pos.clamp_min(1))
        ids = torch.cat([ids, ids.new_full((len(ids), masks), self.mask)], 1)
        logits, _ = self.eagle(ids, self.eagle.enter(hidden), positions, mask, places.cache, keep)
        found: Tensor = logits
        return found


def placed(head: Any, context: Context, text: Tensor, places: Places, masks: int, end: Tensor) -> tuple[Tensor, Any]:
    """Positions [B, q + masks] of a pass over text positions [B, q] and masks from `end` [B]
    on, and the mask of visible tokens for each; a prompt has no masks."""
    places.over(context, text, masks)
    drafted = end.unsqueeze(1) + torch.arange(masks, device=end.device)
    positions = torch.cat([text, drafted], 1)
    if masks:
        return positions, places.masks(head, context, positions, drafted, head.windows, end)
    return positions, places.masks(head, context, positions, None, head.windows)


def mask_of(name: str, config: Mapping[str, Any], vocabulary: int) -> int:
    """The placeholder token for a missing one. UnusableModelError if undefined."""
    found = next((config[key] for key in MASKS if config.get(key) is not None), None)
    if type(found) is not int or not 0 <= found < vocabulary:
        raise UnusableModelError(
            f"{name}: its config.json names no mask among its {vocabulary:,} tokens ({MASKS[0]} or {MASKS[1]}): "
            f"found {found!r:.40}"
        )
    return found


MARKOV, OUTPUT = "markov_head.markov_w1.weight", "markov_head.markov_w2.weight"
GATE, JOINT = "markov_head.gate_proj", "markov_head.joint_proj"
CONFIDENCE = "confidence_head.proj.weight"
NEEDED = {"gated": GATE, "rnn": JOINT}


class Markov(nn.Module):
    """The correction of logits by earlier tokens: by the last one alone, or, with a joint projection, by all
    drafted ones through a state passed from position to position. Names of the parts as in the files."""

    def __init__(self, head: Head, target: Borrowed, width: int) -> None:
        super().__init__()
        tokens, rank = shape_of(head, MARKOV)
        if tokens != target.vocabulary:
            raise UnusableModelError(
                f"{head.name}: {MARKOV} has {tokens:,} rows, and the target {target.vocabulary:,} tokens"
            )
        shape_of(head, OUTPUT)
        self.markov_w1 = nn.Embedding(tokens, rank, device="meta")
        self.markov_w2 = linear(head.tensors, "markov_head.markov_w2")
        self.gate_proj = projection(head, GATE, (rank, width + rank))
        self.joint_proj = projection(head, JOINT, (3 * rank, 2 * rank + width))

    def begin(self, skipped: Tensor, pending: Tensor) -> Tensor | None:
        """[B, r] the state given to the first drafted position: the initial one, or that passed on by the pending token
        [B, 1] if that drafts nothing itself (its state [B, 1, H]; else [B, 0, H]). None without a joint projection."""
        if self.joint_proj is None:
            return None
        carried = skipped.new_zeros(len(skipped), 1, self.markov_w1.embedding_dim)
        if skipped.shape[1]:
            carried = self._carry(skipped, self.markov_w1(pending), carried)[1]
        return carried[:, 0]

    def forward(self, states: Tensor, before: Tensor, carried: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """states [B, m, H], the tokens before [B, m] and the states passed on [B, m, r] → [B,
        m, N], and the next states."""
        known = self.markov_w1(before)
        if carried is not None:
            known, carried = self._carry(states, known, carried)
        elif self.gate_proj is not None:
            known = known * self.gate_proj(torch.cat([states, known], -1)).sigmoid()
        return self.markov_w2(known), carried

    def _carry(self, states: Tensor, known: Tensor, carried: Tensor) -> tuple[Tensor, Tensor]:
        assert self.joint_proj is not None
        gate, candidate, output = self.joint_proj(torch.cat([carried, known, states], -1)).chunk(3, -1)
        kept = gate.sigmoid()
        return output.tanh(), kept * carried + (1 - kept) * candidate.tanh()


def projection(head: Head, name: str, shape: tuple[int, int]) -> nn.Linear | None:
    """A linear module of this shape (rows, columns), which `fill` compares with its tensors; None without any."""
    if f"{name}.weight" not in head.tensors:
        return None
    return nn.Linear(shape[1], shape[0], bias=f"{name}.bias" in head.tensors, device="meta")


class Confidence(nn.Module):
    """The predicted acceptance of a token, from the state of its position and, in some heads, W₁[token before]."""

    def __init__(self, head: Head, markov: Markov | None, width: int) -> None:
        super().__init__()
        self.proj = linear(head.tensors, "confidence_head.proj")
        rank = 0 if markov is None else markov.markov_w1.embedding_dim
        self.reads_token = rank > 0 and self.proj.in_features == width + rank
        if self.proj.out_features != 1 or not (self.reads_token or self.proj.in_features == width):
            raise UnusableModelError(
                f"{head.name}: weights do not fit config.json: {CONFIDENCE} is {list(self.proj.weight.shape)}, and "
                f"states are {width} wide"
            )

    def forward(self, states: Tensor, known: Tensor | None) -> Tensor:
        """states [B, m, H] and W₁ of the tokens before [B, m, r] → [B, m]."""
        if self.reads_token and known is not None:
            states = torch.cat([states, known], -1)
        chance: Tensor = self.proj(states).squeeze(-1).float().sigmoid()
        return chance


TRANSFORMERS = {"encoder.fc.": "fc.", "encoder.output_norm_enc.": "hidden_norm."}  # its names for two of the parts


class DFlash(Parallel, nn.Module):
    """Both kinds: the block is the pending token and masks after it, and row k of it predicts
    the token at its own position or, with `sample_from_anchor`, at the next one."""

    def __init__(self, head: Head, target: Borrowed, override: Sequence[int] | None = None) -> None:
        super().__init__()
        head = replace(head, tensors={renamed(name, TRANSFORMERS): one for name, one in head.tensors.items()})
        self.target, self.dtype, self.config = target, target.dtype, layer_config(head, target)
        width = int(self.config.hidden_size)
        refuse_other(head, target, int(head.config.get("target_hidden_size") or shape_of(head, "norm.weight")[0]))
        found = reads(head, target, target.width, override)
        self.taps, self.why, self.fc = found.taken, found.why, linear(head.tensors, "fc")
        self.hidden_norm, self.norm = norm(self.config), norm(self.config)
        self.layers = nn.ModuleList(decoder_layer(head, self.config, number) for number in range(layers_in(head)))
        self.embed_tokens, self.lm_head = embedding(head, target, width), output(head, self.config, target)
        if (said := head.config.get("markov_head_type")) in NEEDED and MARKOV in head.tensors:
            shape_of(head, f"{NEEDED[said]}.weight")
        self.markov_head = Markov(head, target, width) if MARKOV in head.tensors else None
        keys = {**head.config, **part(head.config, "dflash_config")}  # z-lab nests some keys
        block: Any = keys.get("block_size")
        if type(block) is not int or block < 2:
            raise UnusableModelError(f"{head.name}: unusable config.json: block_size is {block!r:.40}, not 2 or more")
        self.mask, self.block = mask_of(head.name, keys, target.vocabulary), block
        # the row of the pending token is a draft, too: by default in DSpark, but not in DFlash
        said = head.config.get("sample_from_anchor")
        self.first = 0 if (head.kind == "dspark" if said is None else said) else 1
        self.steps = self.block - self.first
        ahead = head.format != SPECULATORS or bool(head.config.get("sliding_window_non_causal"))
        self.windows = {
            name: (everything if window is None else windowed(head.format == SPECULATORS, ahead), window)
            for name, window in sliding(self.config).items()
        }
        self.rotary_emb = rotary(self.config, target)
        self.confidence_head = Confidence(head, self.markov_head, width) if CONFIDENCE in head.tensors else None
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
            attention: Any = layer.self_attn
            shape = (*states.shape[:-1], -1, attention.head_dim)
            key, value = attention.k_proj(states).view(shape), attention.v_proj(states).view(shape).transpose(1, 2)
            key = (attention.k_norm(key) if hasattr(attention, "k_norm") else key).transpose(1, 2)
            kept.update(apply_rotary_pos_emb(key, key, *angles)[1], value)

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
            keywords = {"attention_mask": mask_for(masks, self.config, number), "position_embeddings": angles}
            x = layer(x, past_key_values=places.cache, **keywords)
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


def windowed(from_pending: bool, ahead: bool) -> Seen:
    def seen(queries: Tensor, keys: Tensor, window: int | None) -> Tensor:
        if not from_pending:
            return everything(queries, keys, window)
        first = queries[:, :1]
        found = everything(queries, keys, None) if ahead else causal(queries, keys, None)
        return found & (keys >= first - (window or 0))

    return seen
