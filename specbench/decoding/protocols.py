"""The protocols of the algebra: the methods and declarations of models, drafters and verifiers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
from torch import Tensor

from specbench.decoding.randomness import Source
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Context, Draft, Lesson, Verdict

# (p [m, V], logits [m, V] of the student) → the loss of every row [m], differentiable in the logits
Loss = Callable[[Tensor, Tensor], Tensor]


class After(Protocol):
    """The callback after a token of a chain is drawn."""

    def __call__(self, ids: Tensor, logits: Tensor, sure: Tensor | None = None) -> bool:
        """Whether to stop after ids [B], drawn from logits [B, V'] of the network before temperature.

        sure [B]: the model's prediction, before it draws, that its next token will be accepted; None if it makes none.
        """


class Model(Protocol):
    """A language model at one cost level: (context, tree) → rows. Its cache changes time, never answers.

    For a model that sees only a part of the sequence (Streaming, Retrieval), it changes the
    answers too: a row is always the one that its token was drawn from.
    """

    @property
    def static(self) -> bool:
        """Whether its calls do the same in every round, with tensors of the same shapes, and without host reads."""

    def start(self, context: Context) -> None:
        """Prefill the prompts: all committed tokens but the last."""

    def admit(self, context: Context, row: int) -> None:
        """Prefill the new prompt in `row`; the other rows stay as they are."""

    def probs(self, context: Context, tree: TokenTree, refeed: int = 0) -> Tensor:
        """[B, n + 1, V]: row 0 is the distribution after the last committed token, row i + 1 after node i.

        `refeed` committed tokens before the last are fed again, as they may have been committed without being fed.
        """

    def expand(self, context: Context, tree: TokenTree, new: int, refeed: int = 0, raw: bool = False) -> Tensor:
        """[B, new, V] the rows of the last `new` nodes of a tree that grows level by level; earlier
        calls have fed the earlier nodes. For an empty tree, the one row after the last committed token.

        raw: the model's own scores instead of distributions, to rank tokens also when greedy.
        """

    def sample(
        self, context: Context, k: int, rng: Source, refeed: int = 1, after: After | None = None
    ) -> tuple[Tensor, Tensor]:
        """A chain of k tokens drawn one after the other: ids [B, k] and the rows [B, k, V] they were drawn from.

        `after` is called with every token as soon as it is drawn; if it returns true, that token is the last one.
        """

    def settle(self, start: Tensor, tree: TokenTree, verdict: Verdict) -> None:
        """Keep the accepted part of the last tree; `start` [B] is the position of the tree's root."""


class Cacheless:
    """The methods that keep a cache in step with the sequence, of a model without a cache of its own."""

    def start(self, context: Context) -> None:
        return

    def admit(self, context: Context, row: int) -> None:
        return

    def settle(self, start: Tensor, tree: TokenTree, verdict: Verdict) -> None:
        return


class Forwarding:
    """The methods of a model that delegates to another one, its reader."""

    @property
    def reader(self) -> Model:
        raise NotImplementedError

    def start(self, context: Context) -> None:
        self.reader.start(context)

    def admit(self, context: Context, row: int) -> None:
        self.reader.admit(context, row)

    def probs(self, context: Context, tree: TokenTree, refeed: int = 0) -> Tensor:
        return self.reader.probs(context, tree, refeed)

    def expand(self, context: Context, tree: TokenTree, new: int, refeed: int = 0, raw: bool = False) -> Tensor:
        return self.reader.expand(context, tree, new, refeed, raw)

    def sample(
        self, context: Context, k: int, rng: Source, refeed: int = 1, after: After | None = None
    ) -> tuple[Tensor, Tensor]:
        return self.reader.sample(context, k, rng, refeed, after)

    def settle(self, start: Tensor, tree: TokenTree, verdict: Verdict) -> None:
        self.reader.settle(start, tree, verdict)


class Network(Model, Protocol):
    """A model from which others can be made that share its weights and its sampling."""

    def twin(self) -> "Network":
        """The same model with its own cache."""

    def retrieved(self, budget: int, chunk: int, tail: int) -> Model:
        """The same model, attending to few of the keys in this one's cache; see `Retrieval` for the numbers.

        UsageError for a network that does not support it; it is requested at prefill.
        """

    def successors(self) -> Tensor:
        """[V] the most probable token after every token as a sequence by itself; computed by the first call."""

    def learner(self, rate: float) -> tuple[Model, "Learner"]:
        """A copy with its own weights, initially equal, and its learner.

        UsageError for weights that cannot be changed in small steps, because they are quantised.
        """


class Learner(Protocol):
    """Changes the weights of one model, which are not shared."""

    def teach(self, lessons: Sequence[Lesson], loss: Loss) -> str:
        """Take one step per lesson; return "", or the reason why all steps were undone.

        The caches of the model are stale afterwards.
        """

    def forget(self) -> None:
        """Restore the weights as they were before the first lesson."""


class Carried(Protocol):
    """The state that a drafter carries from one text to the next."""

    @property
    def remarks(self) -> list[str]:
        """Remarks for the user, one line each; the reader clears them."""

    def ended(self, context: Context, rows: Sequence[int]) -> None:
        """The sequences of these rows have ended, and no round is running: the drafter may change now.

        Other rows may be in the middle of a sequence, and continue with the changed drafter.
        """

    def forget(self) -> None:
        """Forget all texts; the drafter returns to its initial state."""


class Drafter(Protocol):
    """Proposes a token tree and reports honestly the distribution each token was drawn from.

    It may stop before it draws or after keeping a drawn token, but never drops a drawn token because of its
    value. Its properties declare what a method must know about it; they are read before any model is loaded.
    """

    @property
    def static(self) -> bool:
        """Whether every round does the same with tensors of the same shapes, and without host reads."""

    @property
    def room(self) -> int:
        """The number of slots after the last committed token that it may use; at least the nodes of its trees."""

    @property
    def depth(self) -> int:
        """The maximum number of levels of its trees. If it were too small, caches would miss
        tokens: drafts would be worse, and the distribution of the output the same."""

    @property
    def branches(self) -> bool:
        """Whether a node of its trees may have several children."""

    @property
    def drawn(self) -> bool:
        """Whether any of its tokens are drawn, so that a draft comes with q; otherwise all are point masses."""

    @property
    def adapts(self) -> str:
        """The part that adapts the draft length to verdicts on its own drafts, as named in errors; "" if none."""

    @property
    def carries(self) -> Carried | None:
        """The state carried from one text to the next; None if texts are independent."""

    def start(self, context: Context) -> None:
        """Prefill the prompts."""

    def admit(self, context: Context, row: int) -> None:
        """Prefill a new prompt in `row` and forget the old one; the other rows stay as they are."""

    def propose(self, context: Context, budget: int | None, rng: Source, lag: int = 1) -> Draft:
        """A draft of at most `budget` levels; `lag` committed tokens before the last may be new to its models.

        Without a budget the host does not know how much is left; every row marks the usable tokens in `valid`.
        """

    def learn(self, context: Context, start: Tensor, draft: Draft, p: Tensor, verdict: Verdict) -> None:
        """Learn from the verdict: the only feedback there is. `start` [B] is the position of the tree's root."""


class Apprentice(Drafter, Protocol):
    """A drafter that draws from one model, and could draw in the same way from another."""

    @property
    def model(self) -> Model: ...

    def drawing_from(self, model: Model) -> "Apprentice":
        """The same with another model."""


Judged = Literal["trees", "point trees", "chains"]


class Verifier(Protocol):
    """Decides which path of a draft is accepted and which token is emitted after it."""

    @property
    def judges(self) -> Judged:
        """The drafts that it can judge: all trees; chains, and trees of point masses; or only chains."""

    @property
    def lossless(self) -> bool:
        """Whether the token emitted after a node is distributed as the node's row of p."""

    def judge(self, p: Tensor, draft: Draft, rng: Source) -> Verdict:
        """p [B, n + 1, V]; the token after a node must be distributed as its row of p if the rule is lossless."""


# --- ranking ----------------------------------------------------------------------------------------------------------
# The likeliest tokens of a model, for drafters that recycle the judging model's computations.


class Ranker(Model, Protocol):
    """A model that can report its likeliest tokens after every token that it is fed, also when greedy."""

    def ranking(self, most: int) -> "Ranking":
        """Record the `most` likeliest tokens from now on."""


class Ranking(Protocol):
    """The likeliest tokens by the model's own scores, before any temperature."""

    @property
    def width(self) -> int:
        """V, the width of the vocabulary."""

    @property
    def last(self) -> Tensor:
        """[B, n + 1, most] the likeliest tokens of every row of the last call of `probs`, the
        likeliest first; -1 after the last one with a nonzero probability."""

    def along(self, context: Context, row: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """The same along the prompts just prefilled, or along the one in `row` alone: positions [B, m] in
        order and the likeliest tokens [B, m, most] after them; positions from `pos` on are meaningless."""


# --- two vocabularies -------------------------------------------------------------------------------------------------
# The data exchanged between the tokens of a target and those of a draft with another tokenizer.

STRETCH = 4  # maximum slots of a draft per slot of the target


@dataclass(frozen=True, eq=False)
class Dictionary:
    """A draft's tokens for those of a target of V tokens.

    ours, theirs [N]: the ids of common tokens. pieces [V, m], lengths [V]: a target token in the draft's
    tokens; one piece if the draft has the token. back: the target's ids of the draft's tokens, 0 if
    missing. prompt: the draft's ids of a text in the target's ids, split as its own tokenizer splits it.
    """

    ours: Tensor
    theirs: Tensor
    pieces: Tensor
    lengths: Tensor
    back: Tensor
    prompt: Callable[[Sequence[int]], list[int]]

    @property
    def width(self) -> int:
        return self.pieces.shape[0]

    @property
    def most(self) -> int:
        """The maximum number of pieces of a token."""
        return self.pieces.shape[1]

    @property
    def stretch(self) -> int:
        """The draft's slots per slot of the target; a prompt's tokens may take more than one."""
        return max(self.most, 2)

    def to(self, device: torch.device) -> "Dictionary":
        names = ("ours", "theirs", "pieces", "lengths", "back")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


@dataclass(frozen=True)
class Reading:
    """A text in the target's tokens, and in the draft's. joints: (position in the one, position
    in the other) before which both encode the same text, in rising order."""

    text: list[int]
    ids: list[int]
    joints: tuple[tuple[int, int], ...] = ((0, 0),)


class Scribe(Protocol):
    """Translates between token sequences of two vocabularies."""

    def read(self, text: Sequence[int], before: Reading | None = None) -> Reading:
        """A text of the target as the draft reads it. `before`: an earlier reading of a text
        with the same beginning; its part well before the first change is reused."""

    def write(self, reading: Reading, drafted: Sequence[int]) -> list[int]:
        """The target's tokens for a draft after a text; they may cover less text than the draft."""


def alike(one: Sequence[int], other: Sequence[int]) -> int:
    """The length of the common prefix of two sequences."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter
    return next(place for place in range(shorter) if one[place] != other[place])
