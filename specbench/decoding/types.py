"""What travels between the parts of a method. All of it has a leading row dimension B: one row per sequence.

Notation, fixed here once: **p** is the distribution of the model that judges, **q** the one a drafted token was drawn
from (Leviathan et al. 2022; Chen et al. 2023 swap the letters). V is the width of the target's head.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specbench.decoding.tokens import TokenTree

STEP = 64  # places: what is read grows in these steps, where any number can be read


@dataclass
class Context:
    """Device state of B sequences, changed in place from round to round.

    seq [B, L] committed tokens (entries after `pos` are stale and never read); pos [B] index of the last of them;
    live [B] still decoding; last [B] greatest index a token may be committed to; eos [E] ids that end a sequence;
    finite [B] false once a model gave a row with NaN or infinity. reach is known to the host: all tokens, drafted ones
    included, lie before it until the host says otherwise, so that nothing after it need be read. tight: reach
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
        """The given rows [B'] as a context of their own; rows may repeat."""
        names = ("seq", "pos", "live", "last", "finite")
        return replace(self, **{name: getattr(self, name).index_select(0, rows) for name in names})


@dataclass(frozen=True)
class Round:
    """Counts of one round, each [B]; overlap [B, depth] is the chance of acceptance at each tested level, else zero.

    drafted counts the levels that were drafted, surplus those of them that the row has no use for, because its sequence
    ends before; tested counts those that were judged up to the end of the emitted tokens. distance [B] is how far the
    rows of the emitted tokens lie from the target's, summed (`Verdict.distance`). nodes: drafted tokens that the pass
    of the model was over, also those that some row does not have. inner: rounds of the nested speculation that produced
    this draft. belief: that of the draft; a level is one of its nodes.
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
    means that every token is a point mass. valid [B, n] masks nodes that a row does not have; None means all are there.
    drafted [B] is how many levels a row was drafted, also those that are not valid because its sequence ends before:
    they cost as much as the others. None means all levels of the tree. text: what it goes on from, while it is judged.
    belief [B, n], of chains alone: how likely what drafted a token held it to be accepted, if those before it are; NaN
    where it held nothing of one. Nothing is decided by it any more: it is what calibration is measured by.
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
        """A draft without a token."""
        return Draft(TokenTree.chain(context.seq.new_zeros((context.rows, 0))))

    @property
    def levels(self) -> Tensor:
        """[B] how many levels every row was drafted."""
        whole = self.tree.topology.depth
        return self.tree.ids.new_full(self.tree.ids.shape[:1], whole) if self.drafted is None else self.drafted


@dataclass(frozen=True)
class Verdict:
    """What a verifier decided.

    path [B, depth] accepted nodes from the root, -1 after them; accepted [B] their number; token [B] what is emitted
    after them (correction or bonus); overlap [B, depth] the chance that a level is accepted, given that it is reached.
    distance [B, depth + 1] is the total variation distance of the token emitted at a level from the
    target's, given the text before it and averaged over the draft's draw there; 0 after the end. None of a lossless
    rule: there is none.
    """

    path: Tensor
    accepted: Tensor
    token: Tensor
    overlap: Tensor
    distance: Tensor | None = None


@dataclass(frozen=True)
class Lesson:
    """What a model can learn from one text: p [m, V] are another model's rows after the places [m] of its ids [L]."""

    ids: Tensor
    places: Tensor
    p: Tensor
