"""The one loop: propose, score, judge, commit. Every method is a `Speculate`, and a `Speculate` is itself a drafter."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from specbench.decoding.protocols import Carried, Drafter, Model, Verifier
from specbench.decoding.randomness import Source
from specbench.decoding.timing import Laps, NullClock
from specbench.decoding.tokens import ROOT, TokenTree, constant
from specbench.decoding.types import Context, Draft, Round, Verdict, at


@dataclass(frozen=True)
class Step:
    """One round with its draft, the model's rows, the verdict and the committed tokens."""

    draft: Draft
    p: Tensor
    verdict: Verdict
    round: Round


@dataclass(frozen=True)
class Speculate:
    """Speculative decoding of `model` with drafts of `drafter`: its output is distributed as the model's rows.

    As a drafter (cascades, TriForce) it proposes `length` tokens of its own; the outermost does not use `length`.
    """

    drafter: Drafter
    model: Model
    verifier: Verifier
    length: int = 1
    clock: Laps = field(default_factory=NullClock, compare=False)
    branches: ClassVar[bool] = False
    drawn: ClassVar[bool] = True
    adapts: ClassVar[str] = ""  # its drafter learns from every inner round

    @property
    def static(self) -> bool:
        return False  # as a drafter: the host counts its rounds

    @property
    def room(self) -> int:
        # the inner sequence grows by `length` before the outer model sees it; an inner draft extends past its end
        return self.length + self.drafter.room

    @property
    def depth(self) -> int:
        return self.length

    @property
    def carries(self) -> Carried | None:
        return self.drafter.carries

    def ended(self, context: Context, rows: Sequence[int]) -> None:
        """Between two rounds: the sequences of these rows have ended. Learning from them is the span "update"."""
        if (carried := self.carries) is not None:
            self.clock.lap("host")
            carried.ended(context, rows)
            self.clock.lap("update")

    def start(self, context: Context) -> None:
        self.model.start(context)
        self.drafter.start(context)

    def admit(self, context: Context, row: int) -> None:
        self.model.admit(context, row)
        self.drafter.admit(context, row)

    def advance(self, context: Context, budget: int | None, rng: Source, refeed: int = 0, lag: int = 1) -> Step:
        """One round: at most `budget` drafted levels (None: see `propose`), at least one emitted token per live row.

        `refeed` and `lag`: how many committed tokens before the last the model and the drafter may not have been fed.
        They are none and one (after a fully accepted round) unless another part committed tokens in the meantime.
        """
        draft = self.drafter.propose(context, budget, rng, lag)
        self.clock.lap("draft", draft.tree.ids if draft.tree.size else context.pos)
        p = self.model.probs(context, draft.tree, refeed)
        self.clock.lap("verify", p)
        verdict = self.verifier.judge(p, replace(draft, text=context), rng)
        start = context.pos.clone()
        done = commit(context, draft, verdict)
        self.model.settle(start, draft.tree, verdict)
        self.drafter.learn(context, start, draft, p, verdict)
        self.clock.lap("accept", done.emitted)
        return Step(draft, p, verdict, done)

    def propose(self, context: Context, budget: int | None, rng: Source, lag: int = 1) -> Draft:
        """`length` tokens (at most `budget`) from rounds on a fork of the context; rows that met an EOS have fewer."""
        length = self.length if budget is None else min(self.length, budget)
        inner = context.fork(length)
        ids = context.seq.new_zeros((context.rows, length))
        q: Tensor | None = None
        rounds: list[Round] = []
        left = length
        while left > 0:
            offset = inner.pos - context.pos
            # Its own drafter lacks the outer model's committed tokens, and up to two more: one
            # after a fully accepted round, one from a last round without a budget for a draft.
            refeed, its_lag = (0, 1) if rounds else (lag, lag + 2)
            step = self.advance(inner, left - 1, rng, refeed, its_lag)
            rounds.append(step.round)
            q = step.p.new_zeros((*ids.shape, step.p.shape[-1])) if q is None else q
            keep_rows(q, step, offset)
            # the one host read of an inner round; a round emits at least one token
            left = int(((inner.last - inner.pos) * inner.live).max()) if left > 1 else 0
        offsets = torch.arange(length, device=ids.device)
        ids = inner.seq.gather(1, context.pos.unsqueeze(1) + 1 + offsets)
        valid = offsets < (inner.pos - context.pos).unsqueeze(1)
        return Draft(TokenTree.chain(ids), q, valid, tuple(rounds), drafted=inner.pos - context.pos)

    def learn(self, context: Context, start: Tensor, draft: Draft, p: Tensor, verdict: Verdict) -> None:
        return  # its drafter has already learned from every inner round


def keep_rows(q: Tensor, step: Step, offset: Tensor) -> None:
    """Write the row of every emitted token of a round into q [B, length, V], from offset [B] on."""
    path, emitted = step.verdict.path, step.round.emitted
    for level in range(path.shape[1] + 1):
        node = path[:, level - 1] + 1 if level else torch.zeros_like(offset)  # the row after the token before it
        here = (offset + level).clamp_max(q.shape[1] - 1)
        row = torch.where((level < emitted).unsqueeze(1), at(step.p, node), at(q, here))
        q.scatter_(1, here.view(-1, 1, 1).expand(-1, 1, q.shape[-1]), row.unsqueeze(1))


def commit(context: Context, draft: Draft, verdict: Verdict) -> Round:
    """Append the accepted path and the token after it, cut at the first EOS (inclusive) and at `context.last`."""
    depth = verdict.path.shape[1]
    lengths = constant(tuple(range(1, depth + 2)), context.seq.device)
    block = verdict.token.unsqueeze(1)
    if depth:
        tree, path = draft.tree, verdict.path
        ids = tree.ids if tree.topology.is_chain else tree.ids.gather(1, path.clamp_min(0))
        block = torch.cat([ids, block], 1).scatter(1, verdict.accepted.unsqueeze(1), block)

    emitted, going = cut(context, verdict, block, lengths)
    context.seq.scatter_(1, context.pos.unsqueeze(1) + lengths, block)  # stale after the emitted tokens
    counts = count(draft, verdict, emitted)
    context.pos += emitted
    context.live &= going & (context.pos < context.last)
    return counts


def cut(context: Context, verdict: Verdict, block: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """([B] number of emitted tokens of block [B, depth + 1], [B] false if the last of them ends the sequence)."""
    ends = torch.isin(block, context.eos)
    if block.shape[1] == 1:  # a live row has a slot for one token: a step of it needs no more arithmetic
        return context.live.long(), ~ends[:, 0]
    emitted = torch.minimum(verdict.accepted + 1, context.last - context.pos) * context.live
    first = torch.where(ends, lengths, constant((block.shape[1] + 1,), block.device)).amin(1)  # up to an end token
    return torch.minimum(emitted, first), first > emitted


def count(draft: Draft, verdict: Verdict, emitted: Tensor) -> Round:
    """The counts of a round that emitted `emitted` [B] tokens: tests after the end of the sequence do not count."""
    tree, apart = draft.tree, distance(verdict, emitted)
    if not tree.size:
        none = torch.zeros_like(emitted)
        return Round(none, none, none, none, emitted, verdict.overlap, apart, 0, draft.rounds)
    valid, active = draft.there, emitted > 0
    usable, drafted = tree.deepest(valid) * active, draft.levels * active
    tested = torch.minimum(verdict.accepted + tried_further(tree, valid, verdict), emitted)
    within = constant(tuple(range(verdict.path.shape[1])), emitted.device) < tested.unsqueeze(1)
    accepted, overlap = torch.minimum(verdict.accepted, emitted), verdict.overlap * within
    counts = (drafted, drafted - usable, tested, accepted, emitted)
    return Round(*counts, overlap, apart, tree.size, draft.rounds, draft.belief)


def distance(verdict: Verdict, emitted: Tensor) -> Tensor:
    """[B] float64: the distance from the target's distribution, summed over the `emitted` [B] tokens."""
    if verdict.distance is None:
        return constant((0.0,), emitted.device, torch.float64).expand_as(emitted)
    levels = torch.arange(verdict.distance.shape[1], device=emitted.device)
    return (verdict.distance.double() * (levels < emitted.unsqueeze(1))).sum(1)


def tried_further(tree: TokenTree, valid: Tensor, verdict: Verdict) -> Tensor:
    """[B] bool: whether the end of the accepted path had a child to test; branches may end at different depths."""
    if tree.topology.is_chain:
        return verdict.accepted < valid.sum(1)
    end = verdict.path.gather(1, (verdict.accepted - 1).clamp_min(0).unsqueeze(1))
    end = torch.where(verdict.accepted.unsqueeze(1) > 0, end, torch.full_like(end, ROOT))
    return ((constant(tree.parents, end.device) == end) & valid).any(1)
