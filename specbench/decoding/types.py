"""The data exchanged between the parts of a method. All of it has a leading row dimension B: one row per sequence.

Notation, fixed here once: **p** is the distribution of the model that judges, **q** the one a drafted token was
drawn from (Leviathan et al. 2022; Chen et al. 2023 swap the letters). V is the width of the target's head.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.decoding.tokens import TokenTree, constant
from specbench.metrics import LevelCounts, RoundCounts

STEP = 64  # slots: the read length grows in these steps if any is possible


@dataclass
class Context:
    """Device state of B sequences, changed in place from round to round.

    seq [B, L] committed tokens (entries after `pos` are stale and never read); pos [B] index of the last of them;
    live [B] still decoding; last [B] greatest index a token may be committed to; eos [E] ids that end a sequence;
    finite [B] false once a model gave a row with NaN or infinity. reach is known to the host: all tokens, drafted
    ones included, are before it until the host changes it, so that slots after it need not be read. tight: reach
    ends exactly at the last committed token of a batch of one, so that a pass over that token alone needs no mask.
    """

    seq: Tensor
    pos: Tensor
    live: Tensor
    last: Tensor
    eos: Tensor
    finite: Tensor
    reach: int
    tight: bool = False

    @property
    def rows(self) -> int:
        return self.seq.shape[0]

    def fork(self, length: int) -> "Context":
        """A copy in which at most `length` further tokens can be committed; faults are seen in both."""
        last = torch.minimum(self.last, self.pos + length)
        return replace(self, seq=self.seq.clone(), pos=self.pos.clone(), live=self.live.clone(), last=last)

    def select(self, rows: Tensor) -> "Context":
        """The given rows [B'] as a separate context; rows may repeat."""
        names = ("seq", "pos", "live", "last", "finite")
        return replace(self, **{name: getattr(self, name).index_select(0, rows) for name in names})


@dataclass(frozen=True)
class Round:
    """Counts of one round, each [B]; overlap [B, depth] is the chance of acceptance at each tested level, else zero.

    drafted counts the drafted levels, surplus those of them that the row cannot use because its sequence
    ends before; tested counts those that were judged up to the end of the emitted tokens. distance [B] is
    the distance of the emitted tokens' rows from the target's, summed (`Verdict.distance`). nodes:
    drafted tokens in the model's pass, including those that some row does not have. inner: rounds of the
    nested speculation that produced this draft. belief: that of the draft; a level is one of its nodes.
    """

    drafted: Tensor
    surplus: Tensor
    tested: Tensor
    accepted: Tensor
    emitted: Tensor
    overlap: Tensor
    distance: Tensor
    nodes: int = 0
    inner: tuple["Round", ...] = ()
    belief: Tensor | None = None


@dataclass(frozen=True)
class Draft:
    """A token tree with the rows its tokens were drawn from.

    q [B, n, V] is the row each token was drawn from, given that its earlier siblings were drawn and rejected; None
    means that every token is a point mass. valid [B, n] masks nodes that a row does not have; None means all exist.
    drafted [B] is the number of levels drafted for a row, including invalid ones after the end of its sequence: they
    cost as much as the others. None means all levels of the tree. text: the context that it continues, while it is
    judged. belief [B, n], for chains only: the drafter's predicted acceptance of a token, given that those before
    it are accepted; NaN if missing. It decides nothing later: it only serves to measure calibration.
    """

    tree: TokenTree
    q: Tensor | None = None
    valid: Tensor | None = None
    rounds: tuple[Round, ...] = ()
    drafted: Tensor | None = None
    text: Context | None = None
    belief: Tensor | None = None

    @staticmethod
    def empty(context: Context) -> "Draft":
        return Draft(TokenTree.chain(context.seq.new_zeros((context.rows, 0))))

    @property
    def there(self) -> Tensor:
        """[B, n] bool: mask of a row's nodes."""
        return torch.ones_like(self.tree.ids, dtype=torch.bool) if self.valid is None else self.valid

    @property
    def levels(self) -> Tensor:
        """[B] the number of levels drafted in every row."""
        if self.drafted is not None:
            return self.drafted
        return constant((self.tree.topology.depth,), self.tree.ids.device).expand(len(self.tree.ids))


@dataclass(frozen=True)
class Verdict:
    """The decision of a verifier.

    path [B, depth] accepted nodes from the root, -1 after them; accepted [B] their number; token [B] the token emitted
    after them (correction or bonus); overlap [B, depth] the probability that a level is accepted, given that it is
    reached. distance [B, depth + 1] is the total variation distance of the token emitted at a level from the target's,
    given the text before it and averaged over the draft's draw there; 0 after the end. None for a lossless rule.
    """

    path: Tensor
    accepted: Tensor
    token: Tensor
    overlap: Tensor
    distance: Tensor | None = None


@dataclass(frozen=True)
class Lesson:
    """What a model can learn from one text: p [m, V] are another model's rows after positions [m] of its ids [L]."""

    ids: Tensor
    places: Tensor
    p: Tensor


# --- levels -----------------------------------------------------------------------------------------------------------
# The counts of a round, with those of its inner rounds added up level by level: one tensor, read on the host.

WIDTH = 7  # numbers of a level: the fields of LevelCounts, in their order


def sums(done: Round) -> list[Tensor]:
    """One [B, 7] float64 for each level inside a round, from level 2 on; empty if its draft had no rounds."""
    found, rounds = [], done.inner
    while rounds:
        every = torch.stack([numbers(one) for one in rounds])
        found.append(torch.cat([every.sum(0), every[:, :, 1:2].amax(0)], 1))
        rounds = tuple(inner for one in rounds for inner in one.inner)
    return found


def numbers(one: Round) -> Tensor:
    """[B, 6] float64; zeros for a row that had ended before the round."""
    active = one.emitted > 0
    counts = torch.stack([active.long(), one.drafted, one.tested, one.accepted, one.emitted], 1).double()
    return torch.cat([counts, one.overlap.double().sum(1, keepdim=True)], 1) * active.unsqueeze(1)


def read_sums(numbers: Sequence[float], levels: int) -> tuple[tuple[LevelCounts, ...], Sequence[float]]:
    """The levels at the head of a row of numbers, and the rest of the row."""
    found = []
    for level in range(levels):
        *counts, overlap, longest = numbers[WIDTH * level : WIDTH * (level + 1)]
        rounds, drafted, tested, accepted, emitted = map(int, counts)
        found.append(LevelCounts(rounds, drafted, tested, accepted, emitted, overlap, int(longest)))
    return tuple(found), numbers[WIDTH * levels :]


def packed(done: Round) -> Tensor:
    """[B, 8 + 7 · levels + depth] float64: the counts of a round in one tensor, those of its inner levels included.

    The beliefs of a chain follow: one column per token of the chain.
    """
    inner, belief = sums(done), [] if done.belief is None else [done.belief.double()]
    numbers = torch.stack([done.drafted, done.surplus, done.tested, done.accepted, done.emitted], 1).double()
    known = constant((done.nodes, len(inner)), numbers.device, torch.float64).expand(len(numbers), -1)
    return torch.cat([numbers, done.distance.unsqueeze(1), known, *inner, done.overlap.double(), *belief], 1)


def read_counts(counts: Tensor) -> list[RoundCounts]:
    """The counts of a round on the host, one per row."""
    found = []
    for drafted, surplus, tested, accepted, emitted, distance, nodes, levels, *rest in counts.tolist():
        inner, overlap = read_sums(rest, int(levels))
        whole = (int(drafted), int(tested), int(accepted), int(emitted))
        # no draft has more levels than nodes, a chain as many
        belief = tuple(None if math.isnan(one) else one for one in overlap[int(nodes) :][: int(tested)])
        belief = belief if any(one is not None for one in belief) else ()
        chances = tuple(overlap[: int(tested)])
        found.append(RoundCounts(*whole, chances, int(nodes), distance, inner, int(surplus), belief))
    return found


# --- rows -------------------------------------------------------------------------------------------------------------
# Arithmetic on rows [..., V], each the distribution of one token.


def at(rows: Tensor, index: Tensor) -> Tensor:
    """rows [B, m, V] at index [B] → [B, V]."""
    return rows.gather(1, index.view(-1, 1, 1).expand(-1, 1, rows.shape[-1])).squeeze(1)


def point_mass(ids: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """[..., width] rows that give everything to ids [...]; F.one_hot would need a host read."""
    return torch.zeros((*ids.shape, width), dtype=dtype, device=ids.device).scatter_(-1, ids.unsqueeze(-1), 1)


def likeliest(scores: Tensor, most: int) -> Tensor:
    """[..., most] the ids of the greatest scores [..., V] in descending order; -1 if only -inf is left."""
    there = min(most, scores.shape[-1])
    top = scores.topk(there)
    ids = top.indices.masked_fill(top.values == -torch.inf, -1)
    return F.pad(ids, (0, most - there), value=-1) if there < most else ids


def acceptance(p: Tensor, q: Tensor, ids: Tensor) -> Tensor:
    """p(x)/q(x) [B, m] float64 of the drawn tokens ids [B, m]; 0 where q(x) is 0, which an honest q never is."""
    p_x = p.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    q_x = q.gather(-1, ids.unsqueeze(-1)).squeeze(-1).double()
    return (p_x / q_x).masked_fill_(q_x <= 0, 0)


def subtract(p: Tensor, q: Tensor, weight: Tensor | None = None) -> Tensor:
    """The residual (weight · p − q)⁺ normalised over the last dimension; p itself if it is empty (p = q)."""
    rest = ((p if weight is None else weight * p) - q).clamp_min(0)
    mass = rest.sum(-1, keepdim=True)
    return torch.where(mass > 0, rest / mass, p)
