"""The nouns of the algebra: what a model, a drafter and a verifier can do, and what each declares of itself."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, Protocol

from torch import Tensor

from specbench.decoding.randomness import Source
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Context, Draft, Lesson, Verdict

# (p [m, V], logits [m, V] of the student) → the loss of every row [m], differentiable in the logits
Loss = Callable[[Tensor, Tensor], Tensor]


class After(Protocol):
    """What is asked after a token of a chain is drawn."""

    def __call__(self, ids: Tensor, logits: Tensor, sure: Tensor | None = None) -> bool:
        """Whether to draw no more after ids [B], drawn from logits [B, V'] of the network before temperature.

        sure [B]: how likely the model itself holds it that its next token will
        be accepted, before it draws that; None of a model that does not say.
        """


class Model(Protocol):
    """A language model at one cost level: (context, tree) → rows. Its cache changes time, never answers.

    Of a model that sees less than the text (Streaming, Retrieval), it changes
    the answers too: a row is always the one that its token was drawn from.
    """

    @property
    def static(self) -> bool:
        """Whether its calls do the same in every round, with tensors of the same shapes, and the host reads nothing."""

    def start(self, context: Context) -> None:
        """Take in the prompts: all committed tokens but the last."""

    def admit(self, context: Context, row: int) -> None:
        """Take in the prompt that has taken the place of the text in `row`; the other rows stay as they are."""

    def probs(self, context: Context, tree: TokenTree, refeed: int = 0) -> Tensor:
        """[B, n + 1, V]: row 0 is the distribution after the last committed token, row i + 1 after node i.

        `refeed` committed tokens before the last are fed again: those that may have been committed without being fed.
        """

    def expand(self, context: Context, tree: TokenTree, new: int, refeed: int = 0, raw: bool = False) -> Tensor:
        """[B, new, V] the rows of the last `new` nodes of a tree that grows level by level, the earlier ones of
        which were fed by calls before this one; of an empty tree the one row after the last committed token.

        raw: the model's own scores in the place of distributions, for what ranks tokens also when greedy.
        """

    def sample(
        self, context: Context, k: int, rng: Source, refeed: int = 1, after: After | None = None
    ) -> tuple[Tensor, Tensor]:
        """A chain of k tokens drawn one after the other: ids [B, k] and the rows [B, k, V] they were drawn from.

        `after` is called with every token as soon as it is drawn; where it says so, that token is the last one.
        """

    def settle(self, start: Tensor, tree: TokenTree, verdict: Verdict) -> None:
        """Keep of the last tree what was accepted; `start` [B] is the position of the tree's root."""

    def select(self, rows: Tensor) -> None:
        """Make the given rows [B'] of the cache the rows from now on."""


class Network(Model, Protocol):
    """A model of its own, from which others can be made that share its weights and its sampling."""

    def twin(self) -> "Network":
        """The same with a cache of its own."""

    def retrieved(self, budget: int, chunk: int, tail: int) -> Model:
        """The same reading few of the keys in the cache of this one; see `Retrieval` for the numbers.

        UsageError for a network that cannot: it is asked for when prompts are taken in.
        """

    def successors(self) -> Tensor:
        """[V] the most probable token after every token that is a text by itself; computed by the first call."""

    def learner(self, rate: float) -> tuple[Model, "Learner"]:
        """The same with weights of its own, which are these at first, and what changes them.

        UsageError for weights that cannot be changed in small steps, because they are quantised.
        """


class Learner(Protocol):
    """Changes the weights of one model, which nobody shares."""

    def teach(self, lessons: Sequence[Lesson], loss: Loss) -> str:
        """One step per lesson, and the model is another one; "", or why all of it was undone.

        What the caches of the model hold is stale afterwards.
        """

    def forget(self) -> None:
        """Make the weights what they were before the first lesson."""


class Carried(Protocol):
    """What a drafter carries from one text to the next."""

    @property
    def remarks(self) -> list[str]:
        """What a user should know of it, one line each; whoever says them takes them out."""

    def ended(self, context: Context, rows: Sequence[int]) -> None:
        """The texts of these rows have ended, and no round is under way: the drafter may become another one now.

        Other rows may be in the middle of their text, and go on with the drafter as it is afterwards.
        """

    def forget(self) -> None:
        """Forget all texts; the drafter is what it was before the first one."""


class Drafter(Protocol):
    """Proposes a token tree and says honestly what each token was drawn from.

    It may stop before it draws or after keeping what it drew, but never drops a drawn token because of what
    it is. Its properties declare what a method needs to know of it; they are read before any model is loaded.
    """

    @property
    def static(self) -> bool:
        """Whether every round does the same with tensors of the same shapes, and the host reads nothing in it."""

    @property
    def room(self) -> int:
        """How many places after the last committed token it may touch; at least the nodes of its trees."""

    @property
    def depth(self) -> int:
        """How many levels its trees have at most. Were it too few, caches would miss
        tokens: drafts would be worse, and the distribution of what is emitted the same."""

    @property
    def branches(self) -> bool:
        """Whether a node of its trees may have several children."""

    @property
    def drawn(self) -> bool:
        """Whether any of its tokens are drawn, so that a draft comes with q; else all are point masses."""

    @property
    def adapts(self) -> str:
        """What decides by the verdicts on its own drafts how far it drafts, as an error names it; "" for nothing."""

    @property
    def carries(self) -> Carried | None:
        """What it carries from one text to the next; None where every text begins as the first one did."""

    def start(self, context: Context) -> None:
        """Take in the prompts."""

    def admit(self, context: Context, row: int) -> None:
        """Take in a new prompt in `row` and forget what was there; the other rows stay as they are."""

    def propose(self, context: Context, budget: int | None, rng: Source, lag: int = 1) -> Draft:
        """A draft of at most `budget` levels; `lag` committed tokens before the last may be new to its models.

        No budget: the host does not know how much is left; every row drafts what it can use, by `valid`.
        """

    def learn(self, context: Context, start: Tensor, draft: Draft, p: Tensor, verdict: Verdict) -> None:
        """See what became of the draft: the only feedback there is. `start` [B] is the position of the tree's root."""

    def select(self, rows: Tensor) -> None:
        """Make the given rows the rows from now on."""


class Apprentice(Drafter, Protocol):
    """A drafter that draws from one model, and would draw in the same way from another."""

    @property
    def model(self) -> Model: ...

    def drawing_from(self, model: Model) -> "Apprentice":
        """The same with another model."""


Judged = Literal["trees", "point trees", "chains"]


class Verifier(Protocol):
    """Decides which path of a draft is accepted and what is emitted after it."""

    @property
    def judges(self) -> Judged:
        """Which drafts it can judge: all trees; chains, and trees of point masses; or nothing but chains."""

    @property
    def lossless(self) -> bool:
        """Whether what leaves a node is distributed as the node's row of p."""

    def judge(self, p: Tensor, draft: Draft, rng: Source) -> Verdict:
        """p [B, n + 1, V]; what leaves a node must be distributed as the node's row of p if the rule is lossless."""


# --- ranking ----------------------------------------------------------------------------------------------------------
# Which tokens a model finds likely, for drafters that recycle what the judging model computes anyway.


class Ranker(Model, Protocol):
    """A model that can say which tokens it finds likely after every token that it is fed, also where it is greedy."""

    def ranking(self, most: int) -> "Ranking":
        """What notes the `most` likeliest tokens from now on."""


class Ranking(Protocol):
    """Which tokens a model finds likely by its own scores, before any temperature."""

    @property
    def width(self) -> int:
        """V, the width of the vocabulary."""

    @property
    def last(self) -> Tensor:
        """[B, n + 1, most] the likeliest tokens of every row that `probs` gave
        last, the likeliest first; -1 after the last one that has a chance."""

    def along(self, context: Context, row: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """The same along the prompts that were just taken in, or along the one in `row` alone: places [B, m] in order
        and the likeliest tokens [B, m, most] after what stands there; of a place from `pos` on they mean nothing."""
