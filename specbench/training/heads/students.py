"""Heads as they learn: rows of every place of a text at once, for the first draft, the second, and so on.

Place t of a text x is that whose feature is the target's hidden row of x[t]; there the token x[t + 2] is learned, as
x[t + 1] is committed before anything is drafted. Draft k of a round that began k places earlier is judged by the same
token, so that all drafts of a place learn from one row of the target. Knows modules of heads; must not know targets,
losses or files.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache

from specbench.models.heads.parts import Borrowed
from specbench.models.network.masks import additive


class Student(Protocol):
    """A torch module around what drafts."""

    def __call__(self, features: Tensor, ids: Tensor, places: Tensor, steps: int) -> Sequence[Tensor]:
        """features [B, T, A·H] of places 0 to T − 1, ids [B, T] the tokens after them, places [B, T] which are learned.

        For each k of `steps` logits [n, V'] of the places that are learned and have k before them, row by row.
        """
        ...


class Unrolled(nn.Module):
    """An EAGLE-3 head or an MTP module that goes on from its own states (training-time test: Li et al. 2025, arXiv
    2503.01840, §3.2).

    Pass k feeds, at place t, what pass k − 1 gave out at place t − 1. It sees what it will see when it drafts: the true
    pairs up to place t − k, and of every pass between the one pair of its own chain.
    """

    def __init__(self, head: Any) -> None:
        super().__init__()
        self.head, head.dtype = head, torch.float32
        self.eager = head.config._attn_implementation == "eager"  # layers may know no other
        if not self.eager:
            head.config._attn_implementation = "sdpa"  # that of the target may take no masks of several passes

    @property
    def config(self) -> Any:
        return self.head.config

    def forward(self, features: Tensor, ids: Tensor, places: Tensor, steps: int) -> Sequence[Tensor]:
        states, cache = self.head.enter(features.float()), DynamicCache()
        positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        found = []
        for step in range(steps):
            seen = chains(ids.shape[1], step, ids.device)
            mask = additive(seen, torch.float32) if self.eager else seen
            _, states = self.head(ids, states, positions, mask, cache, keep=1)
            found.append(self.head.judged(states[reached(places, step)]))
            states = later(states, 1)
        return found


class Beside(nn.Module):
    """Medusa heads: draft k is that of head k at the place k before."""

    def __init__(self, head: Any) -> None:
        super().__init__()
        self.head, head.dtype = head, torch.float32

    @property
    def config(self) -> Any:
        return self.head.config

    def forward(self, features: Tensor, ids: Tensor, places: Tensor, steps: int) -> Sequence[Tensor]:
        z = features.float()
        return [self.head.row(step, later(z, step)[reached(places, step)])[0] for step in range(steps)]


class Masked(nn.Module):
    """A network that goes on through masks (PARD: An et al. 2025, arXiv 2504.18583, §3.2), instead of its features.

    Draft k of a round is the row of its k-th mask, which sees the text up to where the round began and the masks before
    it. The passes are those of `Unrolled`, so that every place is learned at every depth and no mask is dropped.
    `features` [B, T, 1] are the tokens of the places themselves.
    """

    def __init__(self, network: Any, mask: int) -> None:
        super().__init__()
        self.network, self.mask = network, mask
        network.set_attn_implementation("sdpa")

    @property
    def config(self) -> Any:
        return self.network.config

    def forward(self, features: Tensor, ids: Tensor, places: Tensor, steps: int) -> Sequence[Tensor]:
        text, cache, output = torch.cat([features[:, :1, 0], ids], 1), DynamicCache(), Borrowed(self.network)
        positions = torch.arange(text.shape[1], device=ids.device).expand_as(text)
        found = []
        for step in range(steps):
            states = self.network.get_decoder()(
                input_ids=torch.full_like(text, self.mask) if step else text,
                position_ids=positions,
                attention_mask=chains(text.shape[1], step, ids.device).expand(len(text), -1, -1, -1),
                past_key_values=cache,
                use_cache=True,
            ).last_hidden_state
            found.append(output.logits(states[:, 1:][reached(places, step)]))
        return found


def later(states: Tensor, step: int) -> Tensor:
    """[B, T, W] at every place what was `step` places before it; zeros where there is none."""
    return F.pad(states, (0, 0, step, 0))[:, : states.shape[1]]


def reached(places: Tensor, step: int) -> Tensor:
    """Of places [B, T] those before which a round can have begun that is at its draft `step`, from 0."""
    return places & (torch.arange(places.shape[1], device=places.device) >= step)


def chains(length: int, step: int, device: torch.device) -> Tensor:
    """[1, 1, T, (step + 1)·T] what the queries of pass `step` see of the keys of all passes so far: of true pairs those
    up to the one that their round began at, of pass j the pair that is its j-th draft."""
    query = torch.arange(length, device=device).unsqueeze(1)
    key = torch.arange(length, device=device)
    true = key <= query - step
    drafted = [key == query - step + number for number in range(1, step + 1)]
    return torch.cat([true, *drafted], 1)[None, None]
