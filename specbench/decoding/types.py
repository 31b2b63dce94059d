"""The nouns of the algebra. Everything that travels has a leading row dimension B: one row per sequence.

Notation, fixed here once: **p** is the law of the model that judges, **q** the law a drafted token was drawn from
(Leviathan et al. 2022; Chen et al. 2023 swap the letters). V is the width of the target's head.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
from torch import Tensor

from specbench.decoding.randomness import Source
from specbench.decoding.tokens import TokenTree

STEP = 64  # places: what is read grows in these steps, where any number can be read


@dataclass
class Context:
    """Device state of B sequences, changed in place from round to round.

    seq [B, L] committed tokens (what lies behind `pos` is rubbish); pos [B] index of the last committed token;
    live [B] still decoding; last [B] greatest index a token may be committed to; eos [E] ids that end a sequence;
    finite [B] false once a model gave a row that is no law. reach is known to the host: all tokens, drafted ones
    included, lie before it until the host says otherwise, so that nothing behind it need be read. tight: what lies
    before it are the committed tokens of the only row, so that a pass over the last of them alone needs no mask.
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
    laws of the emitted tokens lie from the target's, summed (`Verdict.distance`). nodes: drafted tokens that the pass
    of the model was over, also those that some row does not have. inner: the rounds that a speculation inside drafted
    with.
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


@dataclass(frozen=True)
class Draft:
    """A token tree with the rows its tokens were drawn from.

    q [B, n, V] is the law each token was drawn from, given that its earlier siblings were drawn and rejected; None
    means that every token is a point mass. valid [B, n] masks nodes that a row does not have; None means all are there.
    drafted [B] is how many levels a row was drafted, also those that are not valid because its sequence ends before:
    they cost as much as the others. None means all levels of the tree.
    """

    tree: TokenTree
    q: Tensor | None = None
    valid: Tensor | None = None
    rounds: tuple[Round, ...] = ()
    drafted: Tensor | None = None

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

    path [B, depth] accepted nodes from the root, -1 behind them; accepted [B] their number; token [B] what is emitted
    after them (correction or bonus); overlap [B, depth] the chance that a level is accepted, given that it is reached.
    distance [B, depth + 1] is the total variation distance of the law of the token emitted at a level from the
    target's, given the text before it and averaged over the draft's draw there; 0 behind the end. None of a lossless
    rule: there is none.
    """

    path: Tensor
    accepted: Tensor
    token: Tensor
    overlap: Tensor
    distance: Tensor | None = None


# (ids [B] just drawn, logits [B, V'] of the network before its law is applied) → whether to draw no more
After = Callable[[Tensor, Tensor], bool]


class Model(Protocol):
    """A language model at one cost level: (context, tree) → laws. Its cache changes time, never answers.

    Of a model that sees less than the text (Streaming, Retrieval), it changes the answers too: a row is always the one
    that its token was drawn from.
    """

    @property
    def static(self) -> bool:
        """Whether its calls do the same in every round, with tensors of the same shapes, and the host reads nothing."""
        ...

    def start(self, context: Context) -> None:
        """Take in the prompts: all committed tokens but the last."""
        ...

    def admit(self, context: Context, row: int) -> None:
        """Take in the prompt that has taken the place of the text in `row`; the other rows stay as they are."""
        ...

    def probs(self, context: Context, tree: TokenTree, refeed: int = 0) -> Tensor:
        """[B, n + 1, V]: row 0 is the law after the last committed token, row i + 1 the law after node i.

        `refeed` committed tokens before the last are fed again: those that may have been committed without being fed.
        """
        ...

    def expand(self, context: Context, tree: TokenTree, new: int, refeed: int = 0, raw: bool = False) -> Tensor:
        """[B, new, V] the rows of the last `new` nodes of a tree that grows level by level, the earlier ones of which
        were fed by calls before this one; of an empty tree the one row after the last committed token.

        raw: the model's own scores in the place of laws, for what ranks tokens also when greedy.
        """
        ...

    def sample(
        self, context: Context, k: int, rng: Source, refeed: int = 1, after: After | None = None
    ) -> tuple[Tensor, Tensor]:
        """A chain of k tokens drawn one after the other: ids [B, k] and the rows [B, k, V] they were drawn from.

        `after` is called with every token as soon as it is drawn; where it says so, that token is the last one.
        """
        ...

    def settle(self, start: Tensor, tree: TokenTree, verdict: Verdict) -> None:
        """Keep of the last tree what was accepted; `start` [B] is the position of the tree's root."""
        ...

    def select(self, rows: Tensor) -> None:
        """Make the given rows [B'] of the cache the rows from now on."""
        ...


class Network(Model, Protocol):
    """A model of its own, from which others can be made that share its weights and its law."""

    def twin(self) -> "Network":
        """The same with a cache of its own."""
        ...

    def retrieved(self, budget: int, chunk: int, tail: int) -> Model:
        """The same reading few of the keys in the cache of this one; see `Retrieval` for the numbers.

        UsageError for a network that cannot: it is asked for when prompts are taken in.
        """
        ...

    def successors(self) -> Tensor:
        """[V] the most probable token after every token that is a text by itself; computed by the first call."""
        ...


class Drafter(Protocol):
    """Proposes a token tree and says honestly what each token was drawn from.

    It may stop before it draws or after keeping what it drew, but never drops a drawn token because of what it is. Its
    properties declare what a method needs to know of it; they are read before any model is loaded.
    """

    @property
    def static(self) -> bool:
        """Whether every round does the same with tensors of the same shapes, and the host reads nothing in it."""
        ...

    @property
    def room(self) -> int:
        """How many places after the last committed token it may touch; at least the nodes of its trees."""
        ...

    @property
    def depth(self) -> int:
        """How many levels its trees have at most. Were it too few, caches would miss tokens: drafts would be worse,
        and the distribution of what is emitted the same."""
        ...

    @property
    def branches(self) -> bool:
        """Whether a node of its trees may have several children."""
        ...

    @property
    def drawn(self) -> bool:
        """Whether any of its tokens are drawn, so that a draft comes with q; else all are point masses."""
        ...

    @property
    def adapts(self) -> str:
        """What decides by the verdicts on its own drafts how far it drafts, as an error names it; "" for nothing."""
        ...

    def start(self, context: Context) -> None:
        """Take in the prompts."""
        ...

    def admit(self, context: Context, row: int) -> None:
        """Take in a new prompt in `row` and forget what was there; the other rows stay as they are."""
        ...

    def propose(self, context: Context, budget: int | None, rng: Source, lag: int = 1) -> Draft:
        """A draft of at most `budget` levels; `lag` committed tokens before the last may be new to its models.

        No budget: the host does not know how much is left; every row drafts what it can use, by `valid`.
        """
        ...

    def learn(self, context: Context, start: Tensor, draft: Draft, p: Tensor, verdict: Verdict) -> None:
        """See what became of the draft: the only feedback there is. `start` [B] is the position of the tree's root."""
        ...

    def select(self, rows: Tensor) -> None:
        """Make the given rows the rows from now on."""
        ...


Judged = Literal["trees", "point trees", "chains"]


class Verifier(Protocol):
    """Decides which path of a draft is accepted and what is emitted after it."""

    @property
    def judges(self) -> Judged:
        """Which drafts it can judge: all trees; chains, and trees of point masses; or nothing but chains."""
        ...

    @property
    def lossless(self) -> bool:
        """Whether what leaves a node is distributed as the node's row of p."""
        ...

    def judge(self, p: Tensor, draft: Draft, rng: Source) -> Verdict:
        """p [B, n + 1, V]; what leaves a node must be distributed as the node's row of p if the rule is lossless."""
        ...
