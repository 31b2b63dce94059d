"""Heads that draft all their tokens in one pass: Medusa, PARD, P-EAGLE, DFlash, DSpark.

A pass gives the rows of the next K positions after the text, each independent of the uncommitted tokens before it. So
a draft is a product of K distributions, and a tree the product of their children: a node has the row of its depth,
whatever its path; except for DSpark, which is corrected by the token before it. Every row is that which its token was
drawn from, so the output follows the target's distribution all the same. Masks are in the first slots of the cache
and are overwritten by the next pass: they never mix with the text, need no room after it, and need no rollback.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from specbench.decoding.protocols import After
from specbench.decoding.randomness import Source, Stream
from specbench.decoding.tokens import TokenTree, constant
from specbench.decoding.types import Context, Verdict
from specbench.errors import UsageError
from specbench.models.heads.taps import Taps
from specbench.models.network.attention import for_groups
from specbench.models.network.caches import OWN, Memory, RowStaticCache
from specbench.models.network.causal import scores_of
from specbench.models.network.passes import additive
from specbench.models.network.sampling import Sampling, proper_rows

Seen = Callable[[Tensor, Tensor, int | None], Tensor]  # queries [B, q, 1], keys [B, 1, slots], window → bool


@dataclass(frozen=True)
class Places:
    """A cache whose first `front` slots are temporary; position t of the text is the slot front + t."""

    cache: RowStaticCache
    front: int

    def over(self, context: Context, text: Tensor, temporary: int = 0) -> None:
        """The next pass writes at text positions [B, q], and at the first `temporary` temporary slots."""
        first = torch.arange(temporary, device=text.device).expand(len(text), -1)
        self.cache.slots.place(torch.cat([text + self.front, first], 1), self.front + context.reach)

    def masks(
        self,
        head: Any,
        context: Context,
        queries: Tensor,
        drafted: Tensor | None,
        seen: Mapping[str, tuple[Seen, int | None]],
        end: Tensor | None = None,
    ) -> Any:
        """The mask of tokens at positions queries [B, q], for every type of layer, in the form that layers take.

        drafted [B, front]: the positions of temporary tokens; None if they are masked. end [B]:
        the first position after the text; None if no query is at or after it.
        """
        text = torch.arange(context.reach, device=queries.device).expand(len(queries), -1)
        there = torch.ones_like(text, dtype=torch.bool) if end is None else text < end.unsqueeze(1)
        at = text.new_zeros((len(queries), self.front)) if drafted is None else drafted
        keys = torch.cat([at, text], 1).unsqueeze(1)
        there = torch.cat([torch.full_like(at, drafted is not None, dtype=torch.bool), there], 1)
        ready = {}
        for name, (how, window) in seen.items():
            mask = (how(queries.unsqueeze(2), keys, window) & there.unsqueeze(1)).unsqueeze(1)
            ready[name] = for_groups(additive(mask, head.dtype), head.config)
        return ready.get("", ready)


def causal(queries: Tensor, keys: Tensor, window: int | None) -> Tensor:
    """A token attends to itself and earlier ones; in a window, to itself and the window − 1 tokens before it."""
    seen = keys <= queries
    return seen if window is None else seen & (keys > queries - window)


def everything(queries: Tensor, keys: Tensor, window: int | None) -> Tensor:
    """A token attends to earlier and later ones; in a window, to those at most that far away."""
    return (keys - queries).abs() <= (window if window is not None else torch.iinfo(keys.dtype).max)


def sliding(config: Any) -> dict[str, int | None]:
    """The window of every type of layer of a head, by name."""
    return {name: config.sliding_window if "sliding" in name else None for name in dict.fromkeys(config.layer_types)}


@dataclass(frozen=True)
class Drafted:
    """The output of a pass for the next K positions: logits [B, K, V'], and the states [B, K, H] they were made
    of. carried [B, R]: the state given to the first of them by a correction along the path; None without one."""

    logits: Tensor
    states: Tensor
    carried: Tensor | None = None


class Parallel:
    """A head that drafts in one pass, with the common defaults."""

    config: Any
    dtype: torch.dtype
    at_once = True
    taps: tuple[int | str, ...] = ()  # the target states that it reads; empty if it reads the text alone
    steps: int | None = None  # the maximum number of drafted tokens; None if unbounded
    behind = 1  # the number of last committed tokens that it does not cache: one if it reads the target's states
    width = 0
    why = ""
    known: Tensor | None  # the known tokens; None for all

    def front(self, depth: int) -> int:
        """The number of temporary slots that it needs to draft `depth` tokens."""
        raise NotImplementedError

    def read(self, context: Context, text: Tensor, features: Tensor | None, places: Places) -> None:
        """Take in the text at positions [B, q], with the target's states of these positions."""
        raise NotImplementedError

    def draft(self, context: Context, text: Tensor, features: Tensor | None, places: Places, depth: int) -> Drafted:
        """The rows of the next `depth` positions; the text at positions [B, q], to its last
        token, is taken in first."""
        raise NotImplementedError

    def corrected(
        self, logits: Tensor, states: Tensor, before: Tensor, carried: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Logits [B, m, V'] of positions with states [B, m, H], given the tokens before them [B, m] and the states
        passed on by earlier positions [B, m, R] (`Drafted.carried`), and the states that they pass on themselves."""
        return logits, None

    def sure(self, states: Tensor, before: Tensor) -> Tensor | None:
        """[B, m] the predicted acceptance of tokens at these positions, before they are drawn; None if unavailable."""
        return None


BLOCK = 512  # tokens of a prompt per pass: a mask of that many queries over a long text is not a large tensor


class Together:
    """A one-pass head as the model that drafts. `depth`: the maximum number of tokens that it drafts after the text.

    `fixed` and `memory` are as in `Causal`. UsageError for more tokens than a pass gives.
    """

    static: ClassVar[bool] = True

    def __init__(
        self,
        head: Parallel,
        taps: Taps | None,
        sampling: Sampling,
        width: int,
        depth: int,
        fixed: bool = False,
        memory: Memory = OWN,
    ) -> None:
        if head.steps is not None and depth > head.steps:
            raise UsageError(
                f"this head drafts {head.steps} tokens and no more: use --k {head.steps} or less, not {depth}"
            )
        self.head, self.taps, self.sampling, self.width, self.depth = head, taps, sampling, width, max(depth, 1)
        self.fixed, self.memory = fixed, memory
        self.known = None if head.known is None else head.known[head.known < width]
        self.places: Places | None = None
        self.drafted: Drafted | None = None  # of this round
        self.carried: Tensor | None = None  # [B, 1 + n, R] for the root and the nodes of this round's tree

    @torch.no_grad()
    def start(self, context: Context) -> None:
        if self.places is None or not self.fixed:
            self.places = self._empty(context.seq.shape[1], self.memory)
        self.places.cache.clear()
        self._prompts(context, self.places)

    @torch.no_grad()
    def admit(self, context: Context, row: int) -> None:
        if self.places is None or self.places.cache.empty:  # prompts of one token, and no round yet
            return self.start(context)
        alone = self._empty(context.seq.shape[1], OWN)
        self._prompts(context.select(torch.tensor([row], device=context.pos.device)), alone, row)
        return self.places.cache.put(row, alone.cache)

    @torch.no_grad()
    def sample(
        self, context: Context, k: int, rng: Source, refeed: int = 1, after: After | None = None
    ) -> tuple[Tensor, Tensor]:
        self._refuse(k)
        drafted, before = self._pass(context, refeed), last(context)
        carried = first(drafted)
        ids, rows = [], []
        for place in range(k):
            found, carried = self._corrected(drafted, (place,), before, carried)
            logits = found[:, 0]
            rows.append(self._rows(context, logits))
            ids.append(rng.categorical(rows[-1], Stream.DRAFT))
            before = ids[-1].unsqueeze(1)
            if after is not None and after(ids[-1], logits, self._sure(drafted, place + 1, before)):
                break
        return torch.stack(ids, 1), torch.stack(rows, 1)

    @torch.no_grad()
    def expand(self, context: Context, tree: TokenTree, new: int, refeed: int = 0, raw: bool = False) -> Tensor:
        if not tree.size:
            self.drafted = self._pass(context, refeed)
            logits, self.carried = self._corrected(self.drafted, (0,), last(context), first(self.drafted))
        else:
            assert self.drafted is not None, "a tree grows from its root"
            depths, parents = tree.topology.depths[-new:], tuple(1 + parent for parent in tree.parents[-new:])
            self._refuse(max(depths) + 1)
            above = None if self.carried is None else self.carried[:, constant(parents, self.carried.device)]
            logits, carried = self._corrected(self.drafted, depths, tree.ids[:, -new:], above)
            self.carried = None if self.carried is None or carried is None else torch.cat([self.carried, carried], 1)
        return scores_of(logits, self.width) if raw else self._rows(context, logits)

    @torch.no_grad()
    def probs(self, context: Context, tree: TokenTree, refeed: int = 0) -> Tensor:
        """The row of every node is that of its depth: as a judge, too, it ignores the path before it."""
        self._refuse(max(tree.topology.depths, default=0) + 1)
        before = torch.cat([last(context), tree.ids], 1)
        return self._rows(context, self._along(self._pass(context, refeed), tree, before))

    def settle(self, start: Tensor, tree: TokenTree, verdict: Verdict) -> None:
        return  # drafted tokens are not cached; committed ones are taken in by the next round

    def _empty(self, length: int, memory: Memory) -> Places:
        front = self.head.front(self.depth)
        return Places(RowStaticCache(self.head.config.num_hidden_layers, front + length, memory), front)

    def _prompts(self, context: Context, places: Places, row: int | None = None) -> None:
        """Take in all tokens but the last, a block at a time; values of a shorter row after its end are masked."""
        longest = max(int(context.pos.max()), int(self.fixed))  # a fixed cache is allocated here, not in a round
        for begin in range(0, longest, BLOCK):
            end = min(begin + BLOCK, longest)
            text = torch.arange(begin, end, device=context.pos.device).expand(context.rows, -1)
            self.head.read(replace(context, reach=end), text, self._features(text, row), places)

    def _pass(self, context: Context, refeed: int) -> Drafted:
        """The pass of a round. It takes in all tokens that may have been committed since the last one: for a model
        that is fed its drafts these would be the last refeed + 1 tokens, here also the depth − 1 before these."""
        assert self.places is not None, "start() comes before any other call"
        back = constant(tuple(range(1 - self.depth - refeed, 1)), context.pos.device)
        text = (context.pos.unsqueeze(1) - self.head.behind + back).clamp_min(0)
        return self.head.draft(context, text, self._features(text), self.places, self.depth)

    def _features(self, text: Tensor, row: int | None = None) -> Tensor | None:
        return None if self.taps is None else self.taps.at(text, row)

    def _corrected(
        self, drafted: Drafted, depths: tuple[int, ...], before: Tensor, carried: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """[B, m, V'] logits of nodes at these depths, `before` [B, m] the last drafted tokens above them and
        `carried` [B, m, R] the states passed on by the nodes above; and the states that they pass on."""
        at = constant(depths, before.device)
        return self.head.corrected(drafted.logits[:, at], drafted.states[:, at], before, carried)

    def _along(self, drafted: Drafted, tree: TokenTree, before: Tensor) -> Tensor:
        """[B, 1 + n, V'] logits of the root and all nodes; one by one if a correction follows their paths."""
        depths, above = (0, *tree.topology.depths), first(drafted)
        if above is None:
            return self._corrected(drafted, depths, before, None)[0]
        rows, carried = [], {-1: above}
        for node, parent in enumerate((-1, *(one + 1 for one in tree.parents))):
            row, left = self._corrected(drafted, (depths[node],), before[:, node : node + 1], carried[parent])
            rows.append(row)
            carried[node] = left if left is not None else above
        return torch.cat(rows, 1)

    def _sure(self, drafted: Drafted, place: int, before: Tensor) -> Tensor | None:
        """[B] the predicted acceptance of the token at a position, after the token before it; None after the last."""
        if place >= drafted.states.shape[1]:
            return None
        found = self.head.sure(drafted.states[:, place : place + 1], before)
        return None if found is None else found[:, 0]

    def _rows(self, context: Context, logits: Tensor) -> Tensor:
        return proper_rows(context, self.sampling, logits, self.width, self.known)

    def _refuse(self, tokens: int) -> None:
        if tokens > self.depth:
            raise UsageError(f"this head was prepared for {self.depth} drafted tokens, and {tokens} are requested")


def last(context: Context) -> Tensor:
    """[B, 1] the last committed tokens."""
    return context.seq.gather(1, context.pos.unsqueeze(1))


def first(drafted: Drafted) -> Tensor | None:
    """[B, 1, R] the state given to the root; None without a correction along the path."""
    return None if drafted.carried is None else drafted.carried.unsqueeze(1)
