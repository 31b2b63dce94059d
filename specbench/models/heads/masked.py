"""Heads that see masks after the text and give a row at each: PARD, a whole small network, and P-EAGLE.

PARD: An et al. 2025, arXiv 2504.18583; P-EAGLE: arXiv 2602.01469, in the format of speculators. One causal pass over
what was committed since the last one and K − 1 masks; the rows of its last K tokens are the drafts. Knows what a mask
is made of; must not know what is done with the rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from specbench.decoding.types import Context
from specbench.errors import UnusableModelError
from specbench.models.heads.borrowed import Borrowed
from specbench.models.heads.eagle3 import Eagle3
from specbench.models.heads.head import Head
from specbench.models.heads.parallel import Drafted
from specbench.models.heads.places import Places, causal, sliding
from specbench.models.network.passes import windows_of
from specbench.models.network.reduced import known_tokens

MASKS = ("pard_token", "mask_token_id", "ptd_token_id")  # what engines call the mask in config.json


class Pard:
    """A network that was trained to go on through masks. It reads the text itself, and nothing of the target."""

    taps: tuple[int | str, ...] = ()
    steps: int | None = None
    at_once, behind, width = True, 0, 0

    def __init__(self, network: Any, width: int, name: str = "the draft") -> None:
        self.network, self.config = network, network.config.get_text_config(decoder=True)
        self.dtype: torch.dtype = network.dtype
        said = {key: getattr(network.config, key, None) for key in MASKS}
        self.mask = mask_of(name, said, int(self.config.vocab_size))
        self.windows = {kind: (causal, window) for kind, window in windows_of(self.config).items()}
        self.known = known_tokens(network, width)

    def front(self, depth: int) -> int:
        return depth - 1

    def read(self, context: Context, text: Tensor, features: Tensor | None, places: Places) -> None:
        self._forward(context, text, places, 0, 1)

    def draft(self, context: Context, text: Tensor, features: Tensor | None, places: Places, depth: int) -> Drafted:
        logits = self._forward(context, text, places, depth - 1, depth)
        return Drafted(logits, logits[..., :0])

    def corrected(self, logits: Tensor, states: Tensor, before: Tensor, carried: Tensor | None) -> tuple[Tensor, None]:
        return logits, None

    def sure(self, states: Tensor, before: Tensor) -> Tensor | None:
        return None

    def _forward(self, context: Context, text: Tensor, places: Places, masks: int, keep: int) -> Tensor:
        """[B, keep, V'] the logits of the last tokens of a pass over the text at places [B, q] and so many masks."""
        ids = context.seq.gather(1, text).clamp_max(self.config.vocab_size - 1)  # a draft may misread the target's ids
        positions, mask = placed(self, context, text, places, masks, context.pos + 1)
        output = self.network(
            input_ids=torch.cat([ids, ids.new_full((len(ids), masks), self.mask)], 1),
            # learned positions may end where a text may: what is drafted after that is never emitted
            position_ids=torch.minimum(positions, context.last.unsqueeze(1)),
            attention_mask=mask,
            past_key_values=places.cache,
            use_cache=True,
            logits_to_keep=keep,
        )
        logits: Tensor = output.logits
        return logits


class PEagle(nn.Module):
    """EAGLE-3 that goes on through masks in the place of its own states: pairs of the mask token and `mask_hidden`."""

    steps: int | None = None
    at_once, behind, width = True, 1, 0

    def __init__(self, head: Head, target: Borrowed, override: Sequence[int] | None = None) -> None:
        super().__init__()
        if "mask_hidden" not in head.tensors:
            raise UnusableModelError(f"{head.name}: weights are missing: mask_hidden")
        rest = {name: tensor for name, tensor in head.tensors.items() if name != "mask_hidden"}
        # without the key it is not: of EAGLE-3 in this format it is, by what vLLM takes for granted
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

    def front(self, depth: int) -> int:
        return depth - 1

    def read(self, context: Context, text: Tensor, features: Tensor | None, places: Places) -> None:
        self._forward(context, text, features, places, 0, 1)

    def draft(self, context: Context, text: Tensor, features: Tensor | None, places: Places, depth: int) -> Drafted:
        logits = self._forward(context, text, features, places, depth - 1, depth)
        return Drafted(logits, logits[..., :0])

    def corrected(self, logits: Tensor, states: Tensor, before: Tensor, carried: Tensor | None) -> tuple[Tensor, None]:
        return logits, None

    def sure(self, states: Tensor, before: Tensor) -> Tensor | None:
        return None

    def _forward(
        self, context: Context, text: Tensor, features: Tensor | None, places: Places, masks: int, keep: int
    ) -> Tensor:
        """[B, keep, V]: pairs of the target's rows at places text [B, q] and the tokens after them, then masks."""
        assert features is not None
        ids = context.seq.gather(1, text + 1)
        hidden = torch.cat([features, self.mask_hidden.expand(len(ids), masks, -1)], 1)
        positions, mask = placed(self, context, text, places, masks, context.pos.clamp_min(1))
        ids = torch.cat([ids, ids.new_full((len(ids), masks), self.mask)], 1)
        logits, _ = self.eagle(ids, self.eagle.enter(hidden), positions, mask, places.cache, keep)
        found: Tensor = logits
        return found


def placed(head: Any, context: Context, text: Tensor, places: Places, masks: int, end: Tensor) -> tuple[Tensor, Any]:
    """Positions [B, q + masks] of a pass over places text [B, q] and so many masks from `end` [B] on, and what each of
    its tokens sees; a prompt, which has no masks, ends where it ends."""
    places.over(context, text, masks)
    drafted = end.unsqueeze(1) + torch.arange(masks, device=end.device)
    positions = torch.cat([text, drafted], 1)
    if masks:
        return positions, places.masks(head, context, positions, drafted, head.windows, end)
    return positions, places.masks(head, context, positions, None, head.windows)


def mask_of(name: str, config: Mapping[str, Any], vocabulary: int) -> int:
    """The token that stands for one that is not there yet. UnusableModelError where there is none."""
    found = next((config[key] for key in MASKS if config.get(key) is not None), None)
    if type(found) is not int or not 0 <= found < vocabulary:
        raise UnusableModelError(
            f"{name}: its config.json names no mask among its {vocabulary:,} tokens ({MASKS[0]} or {MASKS[1]}): "
            f"found {found!r:.40}"
        )
    return found
