"""Jacobi decoding: the target's own guesses of the next tokens, improved by every pass that it makes anyway.

Guesses are point masses: nothing is drawn.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from specbench.decoding.drafters.chain import Guesses, Unlearned, chain, drawable
from specbench.decoding.randomness import Source
from specbench.decoding.tokens import ROOT, TokenTree, ancestors, constant, topology
from specbench.decoding.types import Context, Draft, Verdict

UNSTARTED = torch.empty(0)  # what a drafter remembers before `start`


@dataclass
class Jacobi(Guesses):
    """A chain of k guesses, each the target's most probable token after the guesses of the round before it
    (parallel fixed-point iteration; Santilli et al. 2023, arXiv 2305.10427; Fu et al. 2024, arXiv 2402.02057, §2).

    After the last token of a round, the guesses are taken from the rows that the pass computed after the rejected
    ones; the last guess is repeated if rows are missing. The first guesses repeat the last token of the prompt. A
    guess may follow a wrong prefix: the emitted tokens are the target's in any case, at least one per round.
    """

    k: int
    _guess: Tensor = field(default=UNSTARTED, init=False, repr=False, compare=False)  # [B, k]

    def start(self, context: Context) -> None:
        last = context.seq.gather(1, context.pos.unsqueeze(1))
        self._guess = kept(self._guess, last.repeat(1, self.k))

    def admit(self, context: Context, row: int) -> None:
        self._guess[row] = context.seq[row].index_select(0, context.pos[row : row + 1])

    def propose(self, context: Context, budget: int | None, rng: Source, lag: int = 1) -> Draft:
        width = self.width(budget)
        if width < 1:
            return Draft.empty(context)
        return chain(self._guess[:, :width].clone(), context, budget)

    def learn(self, context: Context, start: Tensor, draft: Draft, p: Tensor, verdict: Verdict) -> None:
        ends = verdict.accepted.unsqueeze(1)
        best = p.argmax(-1).scatter(1, ends, verdict.token.unsqueeze(1))  # the next token after every node of the chain
        ahead = ends + 1 + torch.arange(self.k, device=ends.device)
        self._guess.copy_(best.gather(1, ahead.clamp_max(draft.tree.size)))


def kept(old: Tensor, new: Tensor) -> Tensor:
    """Copy `new` into `old` if shapes match: a compiled or captured round reads from a fixed address."""
    if old.shape != new.shape or old.is_inference() != new.is_inference():
        return new.clone()
    return old.copy_(new)


# --- lookahead --------------------------------------------------------------------------------------------------------
# Lookahead decoding: many Jacobi trajectories in one pass, and a pool of the n-grams found in
# them. All candidates are point masses: nothing is drawn.

NONE = -1  # no token
ROOMY = 8  # slots per possible n-gram of a text, so that few first tokens share a slot


@dataclass
class Lookahead(Unlearned):
    """Up to `guesses` n-grams of the pool that begin with the last token, and a window of n − 1 rows and `window`
    columns of guesses, in one tree (Fu et al. 2024, arXiv 2402.02057, §3; defaults of its README 7, 5, 7).

    Row 0 of the window is a chain that begins with the last token; the rest of each column follows its token there.
    The most probable token after every column completes an n-gram for the pool and becomes the new last row. The
    rows then move up by one and the columns by the accepted tokens; columns that drop out re-enter at the far end.

    The window is in the tree because the pass must compute it. Its tokens are tested too, after the n-grams; this is
    exact as for any point mass, and occasionally one is accepted. A sibling equal to an earlier one could not be
    accepted: it is computed but not tested. Of n-grams with the same second token the newest is proposed. The pool
    holds the newest `guesses` n-grams per first token. Two first tokens whose ids differ by a multiple of `slots` share
    a slot, and the newer one takes it, so the size does not depend on the vocabulary. Short texts get fewer slots.
    """

    window: int
    ngram: int
    guesses: int
    slots: int = 4096
    static: ClassVar[bool] = True
    branches: ClassVar[bool] = True
    drawn: ClassVar[bool] = False
    _window: Tensor = field(default=UNSTARTED, init=False, repr=False, compare=False)  # [B, n − 1, window]
    _keys: Tensor = field(default=UNSTARTED, init=False, repr=False, compare=False)  # [B, slots] first tokens
    _grams: Tensor = field(default=UNSTARTED, init=False, repr=False, compare=False)  # [B, slots, guesses, n − 1]

    def __post_init__(self) -> None:
        if self.window < 1 or self.ngram < 2 or self.guesses < 1 or self.slots < 1:
            raise ValueError(
                "expected window ≥ 1, ngram ≥ 2, guesses ≥ 1 and slots ≥ 1, "
                f"found {self.window}, {self.ngram}, {self.guesses} and {self.slots}"
            )

    @property
    def parents(self) -> tuple[int, ...]:
        """The n-grams after their first token, one after the other; the window row by row, without its first token."""
        n, grams = self.ngram - 1, self.guesses * (self.ngram - 1)
        chains = [node - 1 if node % n else ROOT for node in range(grams)]
        chain = [ROOT, *range(grams, grams + self.window - 1)]  # the node of every column of row 0
        below = range(grams + self.window - 1, grams + (n - 1) * self.window - 1)  # the nodes of the rows but the last
        return (*chains, *chain[:-1], *(chain if n > 1 else ()), *below)

    @property
    def room(self) -> int:
        return len(self.parents)

    @property
    def depth(self) -> int:
        return topology(self.parents).depth

    def start(self, context: Context) -> None:
        rows, length = context.seq.shape
        slots = min(self.slots, ROOMY * self.window * length)
        self._window = kept(self._window, self._first(context))
        self._keys = kept(self._keys, context.seq.new_full((rows, slots), NONE))
        self._grams = kept(self._grams, context.seq.new_full((rows, slots, self.guesses, self.ngram - 1), NONE))

    def _first(self, context: Context) -> Tensor:
        """[B, n − 1, window] the last tokens of the sequence, repeated if it is shorter."""
        size = (self.ngram - 1) * self.window
        back = torch.arange(1 - size, 1, device=context.pos.device)
        end = context.pos.unsqueeze(1)
        return context.seq.gather(1, (end + back) % (end + 1)).view(-1, self.ngram - 1, self.window)

    def admit(self, context: Context, row: int) -> None:
        self._window[row] = self._first(context)[row]
        self._keys[row] = self._grams[row] = NONE

    def propose(self, context: Context, budget: int | None, rng: Source, lag: int = 1) -> Draft:
        last = context.seq.gather(1, context.pos.unsqueeze(1))
        found = entries(self._keys, self._grams, last).flip(1)  # newest first
        ids = torch.cat([found.flatten(1), self._window.flatten(1)[:, 1:]], 1)
        tree = TokenTree(ids.clamp_min(0), self.parents)
        depths = constant(tree.topology.depths, ids.device)
        most = tree.topology.depth if budget is None else min(tree.topology.depth, budget)
        useful = (ids != NONE) & (depths <= drawable(context, most).unsqueeze(1))
        return Draft(tree, None, once(tree, useful))

    def learn(self, context: Context, start: Tensor, draft: Draft, p: Tensor, verdict: Verdict) -> None:
        if draft.tree.parents != self.parents:
            return  # another drafter's tree has no trajectories
        root = context.seq.gather(1, start.unsqueeze(1))
        ends = p[:, -self.window :].argmax(-1)
        if self.ngram == 2:  # its only row begins with the last token, whose row of p is the first
            ends = torch.cat([p[:, :1].argmax(-1), ends[:, 1:]], 1)
        old = torch.cat([root, self._window.flatten(1)[:, 1:], ends], 1).view(-1, self.ngram, self.window)
        for column in range(self.window):
            remember(self._keys, self._grams, old[:, 0, column : column + 1], old[:, 1:, column])
        along = torch.arange(self.window, device=root.device) + verdict.accepted.unsqueeze(1)
        places = (along % self.window).unsqueeze(1).expand(-1, self.ngram - 1, -1)
        self._window.copy_(old[:, 1:].gather(2, places))


def entries(keys: Tensor, grams: Tensor, first: Tensor) -> Tensor:
    """[B, guesses, n − 1] the n-grams stored for first tokens [B, 1], the newest last; NONE in empty slots."""
    place = first % keys.shape[1]
    found = grams.gather(1, place[:, :, None, None].expand(-1, -1, *grams.shape[2:])).squeeze(1)
    return torch.where((keys.gather(1, place) == first).unsqueeze(2), found, NONE)


def remember(keys: Tensor, grams: Tensor, first: Tensor, rest: Tensor) -> None:
    """Append the n-grams first [B, 1], rest [B, n − 1] to their slots without duplicates, replacing the oldest."""
    known = entries(keys, grams, first)
    same = (known == rest.unsqueeze(1)).all(2).long()
    gone = torch.where(same.any(1), same.argmax(1), 0).unsqueeze(1)  # move the duplicate to the end, or drop the oldest
    order = torch.arange(known.shape[1] - 1, device=gone.device)
    order = (order + (order >= gone)).unsqueeze(2).expand(-1, -1, known.shape[2])
    fresh = torch.cat([known.gather(1, order), rest.unsqueeze(1)], 1).unsqueeze(1)
    place = first % keys.shape[1]
    grams.scatter_(1, place[:, :, None, None].expand_as(fresh), fresh)
    keys.scatter_(1, place, first)


def once(tree: TokenTree, useful: Tensor) -> Tensor:
    """[B, n] the useful nodes without those that repeat an earlier sibling, and without their descendants."""
    parents = constant(tree.parents, tree.ids.device)
    earlier = (parents.unsqueeze(1) == parents).tril(-1)
    alike = tree.ids.unsqueeze(2) == tree.ids.unsqueeze(1)
    again = (alike & earlier & useful.unsqueeze(1)).any(2)
    lost = again | ~useful
    return ~(lost.unsqueeze(1) & ancestors(tree.parents, tree.ids.device)).any(2)
