"""How often a head's best next token is its target's, on a text that both are given: whether its features are the right
ones.

A head that reads its layers off by one, or is fed back the wrong state, drafts without an error, only worse. Knows
modules of heads that draft one token after the other, and their target; must not know what is done with the answer.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from specbench.models.heads.borrowed import Borrowed
from specbench.models.heads.taps import Boundary, listen
from specbench.models.heads.whole import whole_pass
from specbench.models.network.attention import for_groups
from specbench.models.network.masks import additive, causal_mask
from specbench.models.network.passes import windows_of

CLEAR = 2.0  # standard errors


@dataclass(frozen=True)
class Agreement:
    """Of `rows` predictions, the share that is the target's; `error` is its standard error. same: which are, [rows]."""

    share: float
    error: float
    rows: int
    same: Tensor

    def clearly_below(self, other: "Agreement") -> bool:
        """Whether the other one, on the same text, is better by more than chance: by the error of the difference."""
        gain = other.same.double() - self.same.double()
        return bool(gain.mean() > CLEAR * gain.std() / sqrt(self.rows)) and bool(gain.mean() > 0)


@torch.no_grad()
def agreement(
    module: Any, network: Any, text: Tensor, taps: Sequence[Boundary] | None = None, depth: int = 1
) -> Agreement:
    """Agreement of the argmax of a head with that of its target on a text [B, T] of ids, T at least 3.

    taps: what the head is given, its own unless said. depth 2: its second draft, after a first that was the text's,
    which is where what is fed back matters. One pass of the target and `depth` of the head.
    """
    features, logits = read(network, text, module.taps if taps is None else taps)
    states, ids = module.enter(features[:, :-1]), text[:, 1:]
    guessed, after = whole_pass(module, ids, states)
    if depth == 2:
        guessed = second(module, ids, states, after)
    same = (guessed.argmax(-1) == logits[:, depth:].argmax(-1)).flatten()
    share = float(same.double().mean())
    return Agreement(share, sqrt(share * (1 - share) / len(same)), len(same), same)


def shifted(taps: Sequence[Boundary], layers: int) -> tuple[Boundary, ...] | None:
    """The taps of a head whose list was counted from one less; None where the target has no such ones."""
    found = tuple(tap + 1 for tap in taps if isinstance(tap, int))
    return found if len(found) == len(taps) and max(found) <= layers else None


@torch.no_grad()
def read(network: Any, text: Tensor, taps: Sequence[Boundary]) -> tuple[Tensor, Tensor]:
    """[B, T, A·H] what a target leaves at the taps, and its logits [B, T, V]: one pass without a cache."""
    with listening(network, taps) as heard:
        logits = network(input_ids=text, use_cache=False).logits
    return torch.cat([heard[tap] for tap in taps], -1), logits


@contextmanager
def listening(network: Any, taps: Sequence[Boundary]) -> Iterator[dict[Boundary, Tensor]]:
    """What passes the taps while it lasts."""
    heard: dict[Boundary, Tensor] = {}
    handles = [listen(network, Borrowed(network).layers, tap, heard) for tap in taps]
    try:
        yield heard
    finally:
        for handle in handles:
            handle.remove()


def second(module: Any, ids: Tensor, states: Tensor, after: Tensor) -> Tensor:
    """[B, T − 1, V] logits of second drafts: drafted pair t + 1 is what pair t left, with the token of the text.

    ids, states and what they left, after, are those of T true pairs. A drafted pair sees the true ones before it.
    """
    rows, count = ids.shape
    true, drafted = torch.arange(count, device=ids.device), torch.arange(1, count, device=ids.device)
    positions = torch.cat([true, drafted])
    masks = {}
    for name, window in windows_of(module.config).items():
        seen = causal_mask(positions.unsqueeze(0), count, window)[0, 0]
        seen[count:] &= true < drafted.unsqueeze(1)
        itself = torch.eye(len(positions), dtype=torch.bool, device=ids.device)[:, count:]
        whole = torch.cat([seen, itself], 1).expand(rows, 1, -1, -1)
        masks[name] = for_groups(additive(whole, module.dtype), module.config)
    logits, _ = module(
        torch.cat([ids, ids[:, 1:]], 1),
        torch.cat([states, after[:, :-1]], 1),
        positions.expand(rows, -1),
        masks.get("", masks),
    )
    found: Tensor = logits[:, count:]
    return found
