"""A network over few of the keys in its own cache: TriForce's retrieval cache (Sun et al. 2024,
arXiv 2404.11912, §4.2): the choice of keys, their slots, and the resulting positions."""

from dataclasses import replace
from typing import ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.decoding.protocols import After, Model
from specbench.decoding.randomness import Source
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Context, Verdict
from specbench.models.network.caches import Memory, RowStaticCache, RowStaticLayer
from specbench.models.network.passes import Composer, Layout

AHEAD = 64  # slots for drafts after a full tail; grows with the draft


class Keeper(Model, Protocol):
    """The methods needed of a network and of its twin that reads retrieved keys."""

    cache: RowStaticCache | None
    composer: Composer
    fixed: bool
    memory: Memory

    def queries(self, context: Context) -> list[Tensor]:
        """[B, H, D] of every layer, of the last committed token. A later pass overwrites the keys written."""
        ...


class Retrieved:
    """The distribution of `target` if `reader`, its twin, attends to `budget` retrieved tokens and the tail after them.

    In every layer and key head the first chunk is kept and those with the highest inner products of
    their mean key and the last query, summed over the queries that share the head. Keys keep their
    positions. The tail begins with the incomplete chunk; after `tail` new tokens a row chooses again.
    """

    static: ClassVar[bool] = False

    def __init__(self, target: Keeper, reader: Keeper, budget: int, chunk: int, tail: int) -> None:
        self.target, self.reader, self.chunk, self.tail = target, reader, chunk, tail
        self.chunks = budget // chunk
        self.slots = self.chunks * chunk + chunk + tail + AHEAD

    def start(self, context: Context) -> None:
        if self.reader.cache is None or not self.reader.fixed:
            self.reader.cache = RowStaticCache(len(self._full.rows), self.slots, self.reader.memory)
        self.reader.cache.clear()
        none = torch.zeros_like(context.pos)
        self.reader.composer.layout = Layout(self.chunks * self.chunk, none, none, none)
        self._choose(context, torch.arange(context.rows, device=none.device))

    def admit(self, context: Context, row: int) -> None:
        self._choose(context, torch.tensor([row], device=context.pos.device))

    def probs(self, context: Context, tree: TokenTree, refeed: int = 0) -> Tensor:
        return self.reader.probs(self._short(context, tree.size, refeed), tree, refeed)

    def expand(self, context: Context, tree: TokenTree, new: int, refeed: int = 0, raw: bool = False) -> Tensor:
        return self.reader.expand(self._short(context, tree.size, refeed), tree, new, refeed, raw)

    def sample(
        self, context: Context, k: int, rng: Source, refeed: int = 1, after: After | None = None
    ) -> tuple[Tensor, Tensor]:
        return self.reader.sample(self._short(context, k, refeed), k, rng, refeed, after)

    def settle(self, start: Tensor, tree: TokenTree, verdict: Verdict) -> None:
        self.reader.settle(start - self._layout.shift, tree, verdict)

    @property
    def _full(self) -> RowStaticCache:
        assert self.target.cache is not None, "the target takes in the prompts before what drafts for it"
        return self.target.cache

    @property
    def _layout(self) -> Layout:
        assert self.reader.composer.layout is not None, "start() comes before any other call"
        return self.reader.composer.layout

    @torch.no_grad()
    def _choose(self, context: Context, rows: Tensor) -> None:
        """Choose the chunks of the given rows [B'] again, from all committed tokens but the last."""
        queries, reach = self.target.queries(context), context.reach
        pos, every = context.pos.index_select(0, rows), len(rows) == context.rows
        whole, within = pos // self.chunk, torch.arange(self.chunk, device=pos.device)
        assert self.reader.cache is not None
        for own, full, query in zip(self.reader.cache.rows, self._full.rows, queries, strict=True):
            stores = [store[:, :, :reach] for store in full.stores]
            stores = stores if every else [store.index_select(0, rows) for store in stores]
            chosen = best_chunks(query.index_select(0, rows), stores[0], whole, self.chunk, self.chunks)
            rest = whole[:, None, None].expand(-1, chosen.shape[1], 1)  # the incomplete chunk, and stale slots after it
            slots = (torch.cat([chosen, rest], 2).unsqueeze(-1) * self.chunk + within).flatten(2).clamp_max(reach - 1)
            fill(own, rows, *(s.gather(2, slots.unsqueeze(-1).expand(-1, -1, -1, s.shape[3])) for s in stores))
        self._note(rows, pos, whole)

    def _note(self, rows: Tensor, pos: Tensor, whole: Tensor) -> None:
        """The layout of the given rows: they had `whole` chunks [B'] to choose from, and keys before pos [B']."""
        old = self._layout
        shift = whole * self.chunk - old.retrieved
        filled = whole.clamp_max(self.chunks) * self.chunk
        changes = ((old.shift, shift), (old.filled, filled), (old.floor, pos - shift))
        self.reader.composer.layout = Layout(old.retrieved, *(part.index_copy(0, rows, new) for part, new in changes))

    def _short(self, context: Context, drafted: int, refeed: int) -> Context:
        """The sequence as in the reader's slots; the host reads how full they are. Chunks are not chosen
        again within a draft of several rounds (without `refeed`), whose tokens the target's cache lacks."""
        slot = context.pos - self._layout.shift
        since = slot - self._layout.floor
        stale = (since >= self.tail) | (since < 0)
        some, longest = torch.stack([stale.any().long(), slot.max()]).tolist()
        if some and refeed:
            self._choose(context, stale.nonzero()[:, 0])
        self._enlarge(longest + 1 + drafted)
        layout = self._layout
        slots = torch.arange(self.slots, device=slot.device)
        source = (slots + layout.shift.unsqueeze(1)).clamp(0, context.seq.shape[1] - 1)
        last = (context.last - layout.shift).clamp_max(self.slots - 1)
        seq, pos = context.seq.gather(1, source), context.pos - layout.shift
        return replace(context, seq=seq, pos=pos, last=last, reach=self.slots, tight=False)

    def _enlarge(self, needed: int) -> None:
        """Add slots at the end if more are `needed`; in separate memory, as the old ones are read."""
        if needed <= self.slots:
            return
        self.slots = needed + AHEAD
        old, self.reader.cache = self.reader.cache, RowStaticCache(len(self._full.rows), self.slots)
        assert old is not None
        for own, layer in zip(self.reader.cache.rows, old.rows, strict=True):
            keys, values = layer.stores
            fill(own, torch.arange(len(keys), device=keys.device), keys, values)


def best_chunks(query: Tensor, keys: Tensor, whole: Tensor, chunk: int, most: int) -> Tensor:
    """[B, H', most] numbers of the chunks of keys [B, H', L, D] that match query [B, H, D] best, best first.

    Row b has `whole[b]` chunks; its first one always comes first, and numbers after the whole[b]-th are undefined.
    """
    chunks = keys.shape[2] // chunk
    rows, heads, _, size = keys.shape
    means = keys[:, :, : chunks * chunk].reshape(rows, heads, chunks, chunk, size).mean(3)
    shared = query.reshape(rows, heads, -1, size).sum(2)  # of the queries that read this head
    number = torch.arange(chunks, device=keys.device)
    scores = (means @ shared.unsqueeze(-1)).squeeze(-1).masked_fill(number == 0, torch.inf)
    scores = scores.masked_fill(number >= whole[:, None, None], -torch.inf)
    return F.pad(scores, (0, max(most - chunks, 0)), value=-torch.inf).topk(most).indices


def fill(layer: RowStaticLayer, rows: Tensor, keys: Tensor, values: Tensor) -> None:
    """Write keys and values [B', H, m, D] to the first m slots of the given rows [B'], initially all rows."""
    if not layer.is_initialized:
        layer.lazy_initialization(keys, values)
    for store, states in zip(layer.stores, (keys, values), strict=True):
        store[rows, :, : states.shape[2]] = states
