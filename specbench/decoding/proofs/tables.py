"""Models with distributions in a table, and random pairs of them: small enough to enumerate all their outputs.

Prefixes are numbered like the nodes of a V-ary heap: the empty one is 0, prefix i followed by token x is V·i + 1 + x.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import ClassVar

import torch
from torch import Tensor

from specbench.decoding.protocols import After, Cacheless, Forwarding, Loss
from specbench.decoding.randomness import Source, Stream
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Context, Lesson, likeliest

KINDS = ("dense", "zeros", "points", "equal", "close", "disjoint", "tiny", "flat", "mixed")


def nodes(vocab: int, length: int) -> int:
    """The number of prefixes of at most `length` tokens."""
    return sum(vocab**tokens for tokens in range(length + 1))


def number_of(prefix: Sequence[int], vocab: int) -> int:
    return reduce(lambda number, token: number * vocab + 1 + token, prefix, 0)


def tokens_of(number: int, vocab: int) -> list[int]:
    return [*tokens_of((number - 1) // vocab, vocab), (number - 1) % vocab] if number else []


def numbers(context: Context, vocab: int, size: int) -> Tensor:
    """[B] numbers of the committed prefixes, modulo `size`."""
    number = torch.zeros_like(context.pos)
    for place in range(int(context.pos.max()) + 1):
        longer = (number * vocab + 1 + context.seq[:, place]) % size
        number = torch.where(place <= context.pos, longer, number)
    return number


@dataclass(frozen=True, eq=False)
class TableModel(Cacheless):
    """A language model from a table [N, V]: a prefix has the row of its number, modulo N."""

    table: Tensor
    static: ClassVar[bool] = True
    heard: "list[TableRanking]" = field(default_factory=list, init=False, repr=False)

    @property
    def vocab(self) -> int:
        return self.table.shape[1]

    def number(self, context: Context) -> Tensor:
        return numbers(context, self.vocab, len(self.table))

    def after(self, number: Tensor, token: Tensor) -> Tensor:
        return (number * self.vocab + 1 + token) % len(self.table)

    def probs(self, context: Context, tree: TokenTree, refeed: int = 0) -> Tensor:
        number = [self.number(context)]
        for node, parent in enumerate(tree.parents):
            number.append(self.after(number[parent + 1], tree.ids[:, node]))
        rows = self.table[torch.stack(number, 1)]
        for ranking in self.heard:
            ranking.last = likeliest(rows.log(), ranking.most)
        return rows

    def ranking(self, most: int) -> "TableRanking":
        self.heard.append(TableRanking(self, most))
        return self.heard[-1]

    def expand(self, context: Context, tree: TokenTree, new: int, refeed: int = 0, raw: bool = False) -> Tensor:
        rows = self.probs(context, tree, refeed)[:, -max(new, 1) :]
        return rows.log() if raw else rows

    def sample(
        self, context: Context, k: int, rng: Source, refeed: int = 1, after: After | None = None
    ) -> tuple[Tensor, Tensor]:
        number = self.number(context)
        ids: list[Tensor] = []
        rows: list[Tensor] = []
        for _ in range(k):
            rows.append(self.table[number])
            ids.append(rng.categorical(rows[-1], Stream.DRAFT))
            if after is not None and after(ids[-1], rows[-1].log()):
                break
            number = self.after(number, ids[-1])
        return torch.stack(ids, 1), torch.stack(rows, 1)

    def twin(self) -> "TableModel":
        return self  # no state

    def retrieved(self, budget: int, chunk: int, tail: int) -> "TableModel":
        return replace(self, table=self.table.flip(0))  # any other distribution: the output stays the target's

    def skipping(self) -> "TableSkipping":
        return TableSkipping(self)

    def successors(self) -> Tensor:
        return self.table[(torch.arange(self.vocab) + 1) % len(self.table)].argmax(1)

    def learner(self, rate: float) -> tuple["TableModel", "TableLearner"]:
        own = replace(self, table=self.table.clone())
        return own, TableLearner(own, self.table)


@dataclass(eq=False)
class TableRanking:
    """The likeliest tokens of a table's rows."""

    model: TableModel
    most: int
    last: Tensor = field(init=False)

    @property
    def width(self) -> int:
        return self.model.vocab

    def along(self, context: Context, row: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        if row is not None:
            context = context.select(torch.tensor([row]))
        for place in range(int(context.pos.max())):
            here = replace(context, pos=torch.full_like(context.pos, place))
            rows = self.model.table[self.model.number(here)].unsqueeze(1)
            yield here.pos.unsqueeze(1), likeliest(rows.log(), self.most)


@dataclass(eq=False)
class TableSkipping(Forwarding):
    """A table that depends on the skipped units: its rows shift by the sum of their numbers."""

    whole: TableModel
    static: ClassVar[bool] = False
    units: ClassVar[int] = 4
    model: TableModel = field(init=False)

    def __post_init__(self) -> None:
        self.model = self.whole

    @property
    def reader(self) -> TableModel:
        return self.model

    def skip(self, units: Collection[int]) -> None:
        self.model = replace(self.whole, table=self.whole.table.roll(sum(one + 1 for one in units), 0))

    def guesses(self, context: Context, places: Tensor) -> Tensor:
        rows = [self.model.table[self.model.number(replace(context, pos=pos))] for pos in places.unbind(1)]
        return torch.stack(rows, 1).argmax(-1)


@dataclass(frozen=True, eq=False)
class TableLearner:
    """Teaches its own table: a row moves halfway to the lesson's row, whatever the loss and the rate."""

    model: TableModel
    before: Tensor

    def teach(self, lessons: Sequence[Lesson], loss: Loss) -> str:
        for lesson in lessons:
            ids = lesson.ids.tolist()
            for place, p in zip(lesson.places.tolist(), lesson.p.double(), strict=True):
                row = self.model.table[number_of(ids[: place + 1], self.model.vocab) % len(self.model.table)]
                row.add_(p / p.sum() - row, alpha=0.5)
        return ""

    def forget(self) -> None:
        self.model.table.copy_(self.before)


def table(kind: str, rng: torch.Generator, rows: int, vocab: int) -> Tensor:
    """A random table of distributions of one kind."""
    dense = -torch.rand((rows, vocab), generator=rng, dtype=torch.float64).log()
    if kind == "zeros":
        dense *= torch.rand(dense.shape, generator=rng) < 0.6
        dense[:, 0] += dense.sum(1) == 0
    elif kind == "tiny":
        dense[torch.rand(dense.shape, generator=rng) < 0.4] = 1e-300
    elif kind == "points":
        dense = torch.eye(vocab, dtype=torch.float64)[torch.randint(vocab, (rows,), generator=rng)]
    elif kind == "flat":
        dense = dense[:1].expand(rows, -1)
    return dense / dense.sum(1, keepdim=True)


def table_without(table: Tensor, token: int) -> Tensor:
    """A table that never emits this token; a row with only that token emits the first one instead."""
    rest = table.clone()
    rest[:, token] = 0
    rest[:, 0] += rest.sum(1) == 0
    return rest / rest.sum(1, keepdim=True)


def random_pair(seed: int, vocab: int, length: int) -> tuple[Tensor, Tensor]:
    """Two random tables for prefixes of at most `length` tokens; the seed chooses their kinds."""
    rng, rows = torch.Generator().manual_seed(seed), nodes(vocab, length)
    kind = KINDS[seed % len(KINDS)]
    if kind in ("equal", "close"):
        p = table("dense", rng, rows, vocab)
        if kind == "equal":
            return p, p.clone()
        q = p * (1 + 4e-16 * torch.rand(p.shape, generator=rng, dtype=p.dtype))
        return p, q / q.sum(1, keepdim=True)
    if kind == "disjoint":
        p, q = table("dense", rng, rows, vocab), table("dense", rng, rows, vocab)
        split = int(torch.randint(1, vocab, (1,), generator=rng))
        p[:, :split], q[:, split:] = 0, 0
        return p / p.sum(1, keepdim=True), q / q.sum(1, keepdim=True)
    if kind == "mixed":
        some = torch.stack([table(k, rng, rows, vocab) for k in ("dense", "zeros", "points", "tiny")])
        draws = torch.randint(len(some), (2, rows), generator=rng)
        return some[draws[0], torch.arange(rows)], some[draws[1], torch.arange(rows)]  # equal if of one kind
    return table(kind, rng, rows, vocab), table(kind, rng, rows, vocab)
