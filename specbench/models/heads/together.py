"""Heads that draft all their tokens in one pass: Medusa, PARD, P-EAGLE, DFlash, DSpark.

A pass gives the rows of the next K places after the text, each without the tokens before it that are not committed yet.
So a draft of theirs is a product of K distributions, and a tree the product of their children: a node has the row of
its depth, whatever its path is; but DSpark's, which is corrected by the token before it. Every row is that which its
token was drawn from, so the target's distribution is emitted all the same. Masks lie in the first places of the cache
and are written over by the next pass: they never meet the text, need no room behind it, and nothing is taken back.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from specbench.decoding.protocols import After
from specbench.decoding.randomness import Source, Stream
from specbench.decoding.tokens import TokenTree, constant
from specbench.decoding.types import Context, Verdict
from specbench.errors import UsageError
from specbench.models.network.attention import for_groups
from specbench.models.network.caches import OWN, Memory, RowStaticCache
from specbench.models.network.causal import scores_of
from specbench.models.network.passes import additive
from specbench.models.network.reduced import rows_of
from specbench.models.network.sampling import Sampling

Seen = Callable[[Tensor, Tensor, int | None], Tensor]  # queries [B, q, 1], keys [B, 1, slots], window → bool


@dataclass(frozen=True)
class Places:
    """A cache whose first `front` slots are temporary; the text's place t is the slot front + t."""

    cache: RowStaticCache
    front: int

    def over(self, context: Context, text: Tensor, temporary: int = 0) -> None:
        """The next pass writes at places text [B, q] of the text, and at the first so many temporary ones."""
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
        """What tokens at positions queries [B, q] see, for every type of layer, in the form that layers take.

        drafted [B, front]: the positions of what is temporary; None where nobody sees it. end [B]:
        the first position of the text that there is not; None where no query lies at or after it.
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
    """A token sees itself and what comes before it; in a window, itself and the window − 1 tokens before it."""
    seen = keys <= queries
    return seen if window is None else seen & (keys > queries - window)


def everything(queries: Tensor, keys: Tensor, window: int | None) -> Tensor:
    """A token sees what comes before it and after it; in a window, what is no further away than that."""
    return (keys - queries).abs() <= (window if window is not None else torch.iinfo(keys.dtype).max)


def sliding(config: Any) -> dict[str, int | None]:
    """The window of every type of layer that a head has, by name."""
    return {name: config.sliding_window if "sliding" in name else None for name in dict.fromkeys(config.layer_types)}


class Features(Protocol):
    """The target's hidden rows."""

    def at(self, slots: Tensor, row: int | None = None) -> Tensor:
        """[B, q, A·H] those of the places [B, q] of the texts of all rows, or of the one in `row` (B = 1)."""
        ...


@dataclass(frozen=True)
class Drafted:
    """What a pass gives for the next K places: logits [B, K, V'], and the states [B, K, H] that they were made of.
    carried [B, R]: what the first of them is given by a correction that goes along the path; None where none does."""

    logits: Tensor
    states: Tensor
    carried: Tensor | None = None


class Parallel:
    """A head that drafts in one pass, and what most of them answer in the same way."""

    config: Any
    dtype: torch.dtype
    at_once = True
    taps: tuple[int | str, ...] = ()  # what it reads of the target; nothing where it reads the text alone
    steps: int | None = None  # how many tokens it drafts at most; None for no bound of its own
    behind = 1  # how many of the last committed tokens it keeps nothing of: one where it reads the target's rows
    width = 0
    why = ""
    known: Tensor | None  # the tokens that it knows; None for all

    def front(self, depth: int) -> int:
        """How many temporary places it needs to draft so many tokens."""
        raise NotImplementedError

    def read(self, context: Context, text: Tensor, features: Tensor | None, places: Places) -> None:
        """Take in the text at places [B, q], with the target's rows of these places."""
        raise NotImplementedError

    def draft(self, context: Context, text: Tensor, features: Tensor | None, places: Places, depth: int) -> Drafted:
        """The rows of the next `depth` places; the text at places [B, q] is taken in first, whose last is the last."""
        raise NotImplementedError

    def corrected(
        self, logits: Tensor, states: Tensor, before: Tensor, carried: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Logits [B, m, V'] of places with states [B, m, H], given the tokens before them [B, m] and what
        the places before them carried on [B, m, R] (`Drafted.carried`), and what they carry on themselves."""
        return logits, None

    def sure(self, states: Tensor, before: Tensor) -> Tensor | None:
        """[B, m] how likely tokens of these places are accepted, before they are drawn; None where it cannot say."""
        return None


BLOCK = 512  # tokens of a prompt in one pass: a mask of that many queries over a long text is no large tensor


class Together:
    """A head that drafts in one pass as the model that drafts. `depth`: how many tokens after the text it ever drafts.

    `fixed` and `memory` are as of `Causal`. UsageError where it is asked for more tokens than a pass of it gives.
    """

    static: ClassVar[bool] = True

    def __init__(
        self,
        head: Parallel,
        taps: Features | None,
        law: Sampling,
        width: int,
        depth: int,
        fixed: bool = False,
        memory: Memory = OWN,
    ) -> None:
        if head.steps is not None and depth > head.steps:
            raise UsageError(
                f"this head drafts {head.steps} tokens and no more: take --k {head.steps} or less, not {depth}"
            )
        self.head, self.taps, self.law, self.width, self.depth = head, taps, law, width, max(depth, 1)
        self.fixed, self.memory = fixed, memory
        self.known = None if head.known is None else head.known[head.known < width]
        self.places: Places | None = None
        self.drafted: Drafted | None = None  # of this round
        self.carried: Tensor | None = None  # [B, 1 + n, R] by the root and the nodes of this round's tree

    @property
    def cache(self) -> RowStaticCache | None:
        return None if self.places is None else self.places.cache

    @cache.setter
    def cache(self, cache: RowStaticCache | None) -> None:
        self.places = None if cache is None else Places(cache, self.head.front(self.depth))

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
            depths, above = tree.topology.depths[-new:], self._above(tree, new)
            self._refuse(max(depths) + 1)
            logits, carried = self._corrected(self.drafted, depths, tree.ids[:, -new:], above)
            self.carried = None if self.carried is None or carried is None else torch.cat([self.carried, carried], 1)
        return scores_of(logits, self.width) if raw else self._rows(context, logits)

    @torch.no_grad()
    def probs(self, context: Context, tree: TokenTree, refeed: int = 0) -> Tensor:
        """The row of every node is that of its depth: as a judge, too, it does not look at the path before it."""
        self._refuse(max(tree.topology.depths, default=0) + 1)
        before = torch.cat([last(context), tree.ids], 1)
        return self._rows(context, self._along(self._pass(context, refeed), tree, before))

    def settle(self, start: Tensor, tree: TokenTree, verdict: Verdict) -> None:
        return  # what was drafted lies nowhere; what is committed is taken in by the next round

    def select(self, rows: Tensor) -> None:
        self.drafted = None
        if self.places is not None:
            self.places.cache.select(rows)

    def _empty(self, length: int, memory: Memory) -> Places:
        front = self.head.front(self.depth)
        return Places(RowStaticCache(self.head.config.num_hidden_layers, front + length, memory), front)

    def _prompts(self, context: Context, places: Places, row: int | None = None) -> None:
        """All tokens but the last, a block at a time; what a shorter row writes after its end nobody sees."""
        longest = max(int(context.pos.max()), int(self.fixed))  # a cache that stays is allocated here, not in a round
        for begin in range(0, longest, BLOCK):
            end = min(begin + BLOCK, longest)
            text = torch.arange(begin, end, device=context.pos.device).expand(context.rows, -1)
            self.head.read(replace(context, reach=end), text, self._features(text, row), places)

    def _pass(self, context: Context, refeed: int) -> Drafted:
        """The pass of a round. It takes in all that may have been committed since the one before: of a model that
        is fed what it drafts that would be the last refeed + 1 tokens, of this one also the depth − 1 before these."""
        assert self.places is not None, "start() comes before any other call"
        back = constant(tuple(range(1 - self.depth - refeed, 1)), context.pos.device)
        text = (context.pos.unsqueeze(1) - self.head.behind + back).clamp_min(0)
        return self.head.draft(context, text, self._features(text), self.places, self.depth)

    def _features(self, text: Tensor, row: int | None = None) -> Tensor | None:
        if not self.head.taps:
            return None
        assert self.taps is not None, "this head reads the target's hidden rows"
        return self.taps.at(text, row)

    def _corrected(
        self, drafted: Drafted, depths: tuple[int, ...], before: Tensor, carried: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """[B, m, V'] logits of nodes below so many drafted tokens, `before` [B, m] the last of
        them and `carried` [B, m, R] what the nodes above carried on; and what they carry on."""
        at = constant(depths, before.device)
        return self.head.corrected(drafted.logits[:, at], drafted.states[:, at], before, carried)

    def _along(self, drafted: Drafted, tree: TokenTree, before: Tensor) -> Tensor:
        """[B, 1 + n, V'] logits of the root and all nodes; one by one where a correction goes along their paths."""
        depths, above = (0, *tree.topology.depths), first(drafted)
        if above is None:
            return self._corrected(drafted, depths, before, None)[0]
        rows, carried = [], {-1: above}
        for node, parent in enumerate((-1, *(one + 1 for one in tree.parents))):
            row, left = self._corrected(drafted, (depths[node],), before[:, node : node + 1], carried[parent])
            rows.append(row)
            carried[node] = left if left is not None else above
        return torch.cat(rows, 1)

    def _above(self, tree: TokenTree, new: int) -> Tensor | None:
        """[B, new, R] what the parents of the last nodes carried on."""
        if self.carried is None:
            return None
        return self.carried[:, constant(tuple(1 + parent for parent in tree.parents[-new:]), self.carried.device)]

    def _sure(self, drafted: Drafted, place: int, before: Tensor) -> Tensor | None:
        """[B] how sure the head is of the token of a place, after the token before it; None after the last."""
        if place >= drafted.states.shape[1]:
            return None
        found = self.head.sure(drafted.states[:, place : place + 1], before)
        return None if found is None else found[:, 0]

    def _rows(self, context: Context, logits: Tensor) -> Tensor:
        """Logits [B, ..., V'] as distributions [B, ..., V]; clears `finite` for rows with NaN or infinite logits."""
        rows, proper = rows_of(self.law, logits, self.width, self.known)
        context.finite &= proper.flatten(1).all(1) if proper.ndim > 1 else proper
        return rows

    def _refuse(self, tokens: int) -> None:
        if tokens > self.depth:
            raise UsageError(f"this head was made ready for {self.depth} drafted tokens, and {tokens} are asked of it")


def last(context: Context) -> Tensor:
    """[B, 1] the last committed tokens."""
    return context.seq.gather(1, context.pos.unsqueeze(1))


def first(drafted: Drafted) -> Tensor | None:
    """[B, 1, R] what the root is given; None where nothing goes along the path."""
    return None if drafted.carried is None else drafted.carried.unsqueeze(1)
