"""Toy models whose laws stand in a table, random pairs of them, drafters of small trees, and methods made of these.

Prefixes are numbered like the nodes of a V-ary heap: the empty one is 0, prefix i followed by token x is V·i + 1 + x.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import ClassVar

import torch
from torch import Tensor

from specbench.decoding.drafters.chain import Memoryless, ModelDrafter, NoDraft
from specbench.decoding.drafters.schedule import Constant, Schedule
from specbench.decoding.loop import Speculate
from specbench.decoding.protocols import After, Verifier
from specbench.decoding.randomness import Source, Stream
from specbench.decoding.rounds import read_rows, state
from specbench.decoding.tokens import ROOT, TokenTree
from specbench.decoding.types import Context, Draft, Verdict
from specbench.decoding.verifiers.rejection import Rejection
from specbench.decoding.verifiers.token_match import TokenMatch

CPU = torch.device("cpu")
PROMPT = (0,)
KINDS = ("dense", "zeros", "points", "equal", "close", "disjoint", "tiny", "flat", "mixed")


def nodes(vocab: int, length: int) -> int:
    """How many prefixes there are of at most `length` tokens."""
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


def levels_left(context: Context) -> int:
    """How many tokens the longest live row may still emit; 0 when all have ended. NonFiniteError as in a decode."""
    left, _ = read_rows(state(context))
    return max(left)


@dataclass(frozen=True, eq=False)
class Toy:
    """A language model from a table [N, V]: a prefix has the row of its number, modulo N where that lies beyond."""

    table: Tensor
    static: ClassVar[bool] = True

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
        return self.table[torch.stack(number, 1)]

    def expand(self, context: Context, tree: TokenTree, new: int, refeed: int = 0, raw: bool = False) -> Tensor:
        rows = self.probs(context, tree, refeed)[:, -max(new, 1) :]
        return rows.log() if raw else rows

    def sample(
        self, context: Context, k: int, rng: Source, refeed: int = 1, after: After | None = None
    ) -> tuple[Tensor, Tensor]:
        number, ids, rows = self.number(context), [], []
        for _ in range(k):
            rows.append(self.table[number])
            ids.append(rng.categorical(rows[-1], Stream.DRAFT))
            if after is not None and after(ids[-1], rows[-1].log()):
                break
            number = self.after(number, ids[-1])
        return torch.stack(ids, 1), torch.stack(rows, 1)

    def twin(self) -> "Toy":
        return self  # it remembers nothing

    def retrieved(self, budget: int, chunk: int, tail: int) -> "Toy":
        return replace(self, table=self.table.flip(0))  # some other law: whatever it is, the text is the target's

    def successors(self) -> Tensor:
        return self.table[(torch.arange(self.vocab) + 1) % len(self.table)].argmax(1)

    def start(self, context: Context) -> None:
        return

    def admit(self, context: Context, row: int) -> None:
        return

    def settle(self, start: Tensor, tree: TokenTree, verdict: Verdict) -> None:
        return

    def select(self, rows: Tensor) -> None:
        return


def table(kind: str, rng: torch.Generator, rows: int, vocab: int) -> Tensor:
    """A random table of one kind of laws."""
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


def random_pair(seed: int, vocab: int, length: int) -> tuple[Tensor, Tensor]:
    """Two random tables for prefixes of at most `length` tokens; the seed chooses what is special about them."""
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
        return some[draws[0], torch.arange(rows)], some[draws[1], torch.arange(rows)]  # equal where of one kind
    return table(kind, rng, rows, vocab), table(kind, rng, rows, vocab)


@dataclass(frozen=True, eq=False)
class Tree(Memoryless):
    """A tree with `widths[l]` children under every node of level l, the s-th drawn from models[s mod number of models].

    iid: independent draws; without: without replacement, from what earlier siblings left of the law; top: the most
    probable tokens, which are point masses. A child that would be drawn from nothing does not exist.
    """

    models: tuple[Toy, ...]
    widths: tuple[int, ...]
    how: str = "iid"
    static: ClassVar[bool] = False  # the host's budget says how many levels there are
    adapts: ClassVar[str] = ""

    @property
    def depth(self) -> int:
        return len(self.widths)

    @property
    def branches(self) -> bool:
        return any(width > 1 for width in self.widths)

    @property
    def drawn(self) -> bool:
        return self.how != "top"

    @property
    def room(self) -> int:
        return sum(nodes_per_level(self.widths))

    def propose(self, context: Context, budget: int, rng: Source, lag: int = 1) -> Draft:
        parents: list[int] = []
        ids, q, valid = [], [], []
        level = [(ROOT, self.models[0].number(context), torch.ones_like(context.live))]
        for width in self.widths[:budget]:
            below = []
            for parent, number, there in level:
                left = torch.ones_like(self.models[0].table[number])
                for child in range(width):
                    model = self.models[child % len(self.models)]
                    law, token, exists = self._child(model.table[number], left, child, rng)
                    left = left.scatter(1, token.unsqueeze(1), 0)
                    below.append((len(parents), model.after(number, token), there & exists))
                    parents.append(parent)
                    for kept, value in zip((ids, q, valid), (token, law, there & exists), strict=True):
                        kept.append(value)
            level = below
        if not parents:
            return Draft(TokenTree.chain(context.seq[:, :0]))
        tree = TokenTree(torch.stack(ids, 1), tuple(parents))
        return Draft(tree, None if self.how == "top" else torch.stack(q, 1), torch.stack(valid, 1))

    def _child(self, law: Tensor, left: Tensor, child: int, rng: Source) -> tuple[Tensor, Tensor, Tensor]:
        """Law, token and existence of the next child, given what its siblings have `left`."""
        exists = torch.full_like(law[:, 0], child < law.shape[1], dtype=torch.bool)
        if self.how == "top":
            return law, law.topk(min(child + 1, law.shape[1])).indices[:, -1], exists
        if self.how == "without":
            exists = (law * left).sum(1) > 0
            law = torch.where(exists.unsqueeze(1), law * left, law)
            law = law / law.sum(1, keepdim=True)
        return law, rng.categorical(law, Stream.DRAFT), exists


def nodes_per_level(widths: Sequence[int]) -> list[int]:
    return [reduce(lambda a, b: a * b, widths[: level + 1]) for level in range(len(widths))]


@dataclass(frozen=True, eq=False)
class Stopping(Tree):
    """A tree that draws no further child and no further sibling after a drawn token `stop`, which it keeps."""

    stop: int = 0

    def propose(self, context: Context, budget: int, rng: Source, lag: int = 1) -> Draft:
        draft = super().propose(context, budget, rng)
        stops = draft.tree.ids == self.stop
        valid = draft.valid.clone() if draft.valid is not None else torch.ones_like(stops)
        for node, parent in enumerate(draft.tree.parents):
            if parent != ROOT:
                valid[:, node] &= valid[:, parent] & ~stops[:, parent]
            for sibling in range(node):
                if draft.tree.parents[sibling] == parent:
                    valid[:, node] &= ~stops[:, sibling]
        return replace(draft, valid=valid)


def chain(
    p: Tensor, q: Tensor, k: int, verifier: Verifier | None = None, schedule: Schedule | None = None
) -> Speculate:
    """Speculative sampling of the toy with table p, drafted by the toy with table q."""
    return Speculate(ModelDrafter(Toy(q), k, schedule or Constant()), Toy(p), verifier or Rejection())


def three(seed: int, vocab: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tables of a target, a model between and a draft."""
    return *random_pair(seed, vocab, length), random_pair(seed + 5, vocab, length)[1]


def nested(
    p: Tensor,
    middle: Tensor,
    q: Tensor,
    k: int,
    length: int,
    inside: Verifier | None = None,
    schedule: Schedule | None = None,
) -> Speculate:
    """A speculation drafted by a speculation: q drafts k at a time for `middle`, which drafts `length` for p."""
    return Speculate(replace(chain(middle, q, k, inside, schedule), length=length), Toy(p), Rejection())


def methods(k: int, vocab: int = 3) -> dict[str, Speculate]:
    """One of each by the name of what is special about it, with drafts of k levels."""
    p, middle, q = three(0, vocab, k + 4)
    return {
        "baseline": Speculate(NoDraft(), Toy(p), Rejection()),
        "chain": chain(p, q, k),
        "match": chain(p, q, k, TokenMatch()),
        "tree": Speculate(Tree((Toy(q),), (2, *[1] * (k - 1))), Toy(p), Rejection()),
        "ragged": Speculate(Stopping((Toy(q),), (1,) * k, stop=1), Toy(p), Rejection()),
        "nested": nested(p, middle, q, 1, k),
    }
