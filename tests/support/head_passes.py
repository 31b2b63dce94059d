"""Modules of heads from files, in float64, and their passes in pieces, as a model feeds them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specbench.models.heads.build import built
from specbench.models.heads.files import read_head
from specbench.models.heads.recognition import Head
from specbench.models.heads.taps import masks
from specbench.models.network.caches import RowStaticCache
from tests.support.tiny import in_double


def head_of(folder: Path) -> Head:
    head = read_head(folder, "head")
    assert head is not None
    return head


def module_of(folder: Path, network: Any, layers: Sequence[int] | None = None) -> Any:
    return in_double(built(head_of(folder), network, layers))


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tokens(network: Any, rows: int, length: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(network.config.vocab_size, (rows, length), generator=generator)


@torch.no_grad()
def fed(module: Any, cache: RowStaticCache, ids: Tensor, states: Tensor, slots: Tensor) -> Any:
    """One pass over pairs at slots [B, q] of a cache, each at the position of its slot."""
    cache.slots.place(slots, cache.length)
    return module(ids, states, slots, masks(module, slots, cache.length), cache)


@torch.no_grad()
def in_pieces(module: Any, ids: Tensor, states: Tensor, cuts: Sequence[int]) -> Tensor:
    """[B, T, V] logits of a text that is fed piece by piece; between two pieces lie drafted pairs, which are dropped.

    The cache has more slots than are used, and what lies in them is seen by nobody.
    """
    length = ids.shape[1]
    cache = RowStaticCache(module.config.num_hidden_layers, length + 5)
    found, rows = [], ids.shape[0]
    for begin, end in zip([0, *cuts], [*cuts, length], strict=True):
        slots = torch.arange(begin, end).expand(rows, -1)
        logits, after = fed(module, cache, ids[:, begin:end], states[:, begin:end], slots)
        found.append(logits)
        fed(module, cache, ids[:, end - 1 : end], after[:, -1:], slots[:, -1:] + 1)  # temporary: overwritten next
    return torch.cat(found, 1)
