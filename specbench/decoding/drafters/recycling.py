"""Token Recycling: a tree from a table of the likeliest tokens after every token in earlier passes of the judge.

Nothing is drawn, so all tokens are point masses.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.decoding.drafters.chain import drawable
from specbench.decoding.drafters.jacobi import UNSTARTED, kept
from specbench.decoding.drafters.tree import Shaped
from specbench.decoding.protocols import Carried, Ranker, Ranking
from specbench.decoding.randomness import Source
from specbench.decoding.tokens import Parent, TokenTree, constant, topology
from specbench.decoding.types import Context, Draft, Verdict

NONE = -1  # no token


@dataclass
class Recycling(Shaped):
    """A tree of a given shape in which the r-th child of a token is the r-th likeliest token after it in
    the judging model's last pass over that token (Luo et al. 2024, arXiv 2408.08696, §3, with another tree).

    The parent of node i is parents[i], or the last committed token (-1). The table has the `most` likeliest tokens
    after each token that is fed, accepted or not, and after those of the prompt, which is read a second time for
    it, during the prefill. If a token is fed twice in one pass, the later one in the order of the tree counts. A
    token that was never fed has no children; the published code proposes token 0. Every row has its own table.

    carry: the table is kept from text to text (in its row); otherwise every text starts with its prompt's table.
    """

    judge: Ranker
    parents: Sequence[Parent]
    most: int = 8
    carry: bool = False
    static: ClassVar[bool] = True
    drawn: ClassVar[bool] = False
    adapts: ClassVar[str] = ""
    remarks: list[str] = field(default_factory=list, init=False, repr=False, compare=False)
    _ranking: Ranking = field(init=False, repr=False, compare=False)
    # [B, V + 1, most]; the last line is a dummy
    _table: Tensor = field(default=UNSTARTED, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.parents or self.most < 1:
            raise ValueError(f"parents: a tree has at least one node; most: expected 1 or more, found {self.most}")
        widest = max(map(list(self.parents).count, self.parents))
        if widest > self.most:
            raise ValueError(f"parents: a node has {widest} children, and the {self.most} likeliest tokens are kept")
        topology(tuple(self.parents))

    @property
    def carries(self) -> Carried | None:
        return self if self.carry else None

    def start(self, context: Context) -> None:
        if not hasattr(self, "_ranking"):  # forms of methods have no weights
            self._ranking = self.judge.ranking(self.most)
        shape = (context.rows, self._ranking.width + 1, self.most)
        if not self.carry or self._table.shape != shape:
            self._table = kept(self._table, context.seq.new_full(shape, NONE, dtype=torch.int32))
        self._read(context, self._table)

    def admit(self, context: Context, row: int) -> None:
        if not self.carry:
            self._table[row] = NONE
        self._read(context, self._table[row : row + 1], row)

    def propose(self, context: Context, budget: int | None, rng: Source, lag: int = 1) -> Draft:
        ids = context.seq.new_full((context.rows, self.room + 1), NONE)
        ids[:, :1] = context.seq.gather(1, context.pos.unsqueeze(1))
        for level in planned(tuple(self.parents)):
            rows, places, ranks = (constant(some, ids.device) for some in level)
            above = ids[:, rows]
            child = self._table.flatten(1).gather(1, above.clamp_min(0) * self.most + ranks).long()
            ids[:, places] = torch.where(above == NONE, NONE, child)
        tree = TokenTree(ids[:, 1:].clamp_min(0), tuple(self.parents))
        most = self.depth if budget is None else min(self.depth, budget)
        usable = constant(tree.topology.depths, ids.device) <= drawable(context, most).unsqueeze(1)
        there = ids[:, 1:] != NONE
        return Draft(tree, None, there & usable, drafted=tree.deepest(there))

    def learn(self, context: Context, start: Tensor, draft: Draft, p: Tensor, verdict: Verdict) -> None:
        fed = torch.cat([context.seq.gather(1, start.unsqueeze(1)), draft.tree.ids], 1)
        note(self._table, fed, F.pad(draft.there, (1, 0), value=True), self._ranking.last)

    def ended(self, context: Context, rows: Sequence[int]) -> None:
        return  # the tables keep what was learned

    def forget(self) -> None:
        self._table.fill_(NONE)

    def _read(self, context: Context, table: Tensor, row: int | None = None) -> None:
        """Record in table [B', V + 1, most] the tokens after every token of the prompts, or of the one in `row`."""
        seq, pos = (part if row is None else part[row : row + 1] for part in (context.seq, context.pos))
        for places, likely in self._ranking.along(context, row):
            note(table, seq.gather(1, places), places < pos.unsqueeze(1), likely)


@lru_cache(maxsize=1024)
def planned(parents: tuple[int, ...]) -> tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], ...]:
    """For every level: the rows of the parents (0 is the root's), those of the nodes, their ranks among siblings."""
    whole, found = topology(parents), []
    for depth in range(1, whole.depth + 1):
        nodes = [node for node, level in enumerate(whole.depths) if level == depth]
        ranks = tuple(parents[:node].count(parents[node]) for node in nodes)
        found.append((tuple(parents[node] + 1 for node in nodes), tuple(node + 1 for node in nodes), ranks))
    return tuple(found)


def note(table: Tensor, fed: Tensor, there: Tensor, likely: Tensor) -> None:
    """Write the likeliest tokens [B, m, most] after each fed token [B, m] in the mask [B, m] into a table [B, V +
    1, most]. Of equal tokens the last one counts, independent of the write order: others go to the dummy line."""
    later = (fed.unsqueeze(2) == fed.unsqueeze(1)).triu(1) & there.unsqueeze(1)
    place = torch.where(there & ~later.any(2), fed, table.shape[1] - 1)
    table.scatter_(1, place.unsqueeze(2).expand_as(likely), likely.to(table.dtype))
