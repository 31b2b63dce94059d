"""A drafter with another tokenizer: its draft is text, which is re-tokenised with the target's tokenizer.

String-level exact match (Timor et al. 2025, arXiv 2502.05202, algorithm 2; universal assisted
decoding). The host does that in every round.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.decoding.decode import decode
from specbench.decoding.drafters.chain import Wrapper, drawable
from specbench.decoding.drafters.lookup import PromptLookup, Suffix, leaves, merged_tries, trie
from specbench.decoding.method_files import needs
from specbench.decoding.methods import build
from specbench.decoding.protocols import STRETCH, After, Cacheless, Drafter, Reading, Scribe, alike
from specbench.decoding.randomness import Source, seeded
from specbench.decoding.tokens import TokenTree, constant, sent
from specbench.decoding.types import STEP, Context, Draft, Verdict
from specbench.errors import UsageError
from specbench.metrics import RoundCounts

LAG = 1  # minimum number of tokens before the last that are fed again, so that passes have few shapes


@dataclass
class Strings(Wrapper):
    """Chains and trees of `drafter`, which uses its own tokens, re-tokenised for the target: point masses.

    The rule is exact however the texts are tokenised: a node of the tree is a deterministic proposal,
    accepted with the target's own probability of it. Every path of a tree from the root to a leaf is a text,
    re-tokenised separately; common beginnings are merged. `limit`: the maximum context of the draft's model.
    """

    drafter: Drafter
    scribe: Scribe
    limit: int
    static: ClassVar[bool] = False
    drawn: ClassVar[bool] = False
    adapts: ClassVar[str] = ""
    carries: ClassVar[None] = None
    _readings: list[Reading] = field(default_factory=list, init=False, repr=False, compare=False)
    _fed: list[list[int]] = field(default_factory=list, init=False, repr=False, compare=False)  # contents of its cache
    _text: Tensor = field(init=False, repr=False, compare=False)  # [B, L'] the sequences in its tokens

    def __post_init__(self) -> None:
        name = f"{type(self.drafter).__name__} has another tokenizer than the target, whose tokens are judged"
        if self.drafter.adapts or self.drafter.carries is not None:
            raise ValueError(f"{name}: use --schedule constant or confidence, or --vocabulary common")
        if self.branches and self.drafter.drawn:
            raise ValueError(
                f"{name} for certain, so drawing several at a place gives no more than the likeliest ones: use "
                "branching Top (tree-top, tree-dynamic), a chain, or --vocabulary common"
            )

    def start(self, context: Context) -> None:
        self._text = context.seq.new_zeros((context.rows, context.seq.shape[1] * STRETCH))
        self._readings = [self.scribe.read(text) for text in committed(context)]
        self.drafter.start(self._own(context))
        self._fed = [self._said(reading)[:-1] for reading in self._readings]

    def admit(self, context: Context, row: int) -> None:
        self._readings[row] = self.scribe.read(committed(context)[row])
        self.drafter.admit(self._own(context), row)
        self._fed[row] = self._said(self._readings[row])[:-1]

    def propose(self, context: Context, budget: int | None, rng: Source, lag: int = 1) -> Draft:
        most = self.depth if budget is None else min(self.depth, budget)
        if most < 1:
            return Draft.empty(context)
        readings = zip(committed(context), self._readings, strict=True)
        self._readings = [self.scribe.read(text, before) for text, before in readings]
        said = [self._said(reading) for reading in self._readings]
        self._fed = [fed[: alike(fed, ids)] for fed, ids in zip(self._fed, said, strict=True)]
        behind = max(len(ids) - 1 - len(fed) for fed, ids in zip(self._fed, said, strict=True))
        draft = self.drafter.propose(self._own(context), self.depth, rng, max(behind, LAG))
        if not draft.tree.size:
            return Draft.empty(context)
        # The accepted path of a tree is unknown in the model's own tokens: it reads that path again.
        chains = [[] if self.branches else drafted[:-1] for drafted in draft.tree.ids.tolist()]
        self._fed = [ids + drafted for ids, drafted in zip(said, chains, strict=True)]
        return self._written(context, draft, most)

    def learn(self, context: Context, start: Tensor, draft: Draft, p: Tensor, verdict: Verdict) -> None:
        return  # the next draft compares its tokens with the sequence

    @property
    def _places(self) -> int:
        """The maximum number of tokens given to the draft's model: its draft follows them."""
        return int(self._text.shape[1]) - self.room - 1

    def _said(self, reading: Reading) -> list[int]:
        return reading.ids[: self._places]

    def _own(self, context: Context) -> Context:
        """The sequences in the draft model's tokens."""
        said = [self._said(reading) for reading in self._readings]
        for row, ids in enumerate(said):
            self._text[row, : len(ids)] = sent(torch.tensor(ids), self._text.device)
        pos = sent(torch.tensor([len(ids) - 1 for ids in said]), self._text.device)
        places = int(self._text.shape[1])
        reach = min(-(-(max(map(len, said)) + self.room + 1) // STEP) * STEP, places)
        last = torch.full_like(pos, min(places, self.limit) - 1)
        ends = context.eos[:0]  # its end tokens differ: it continues to draft
        return replace(context, seq=self._text, pos=pos, last=last, eos=ends, reach=reach, tight=False)

    def _written(self, context: Context, draft: Draft, most: int) -> Draft:
        """A draft in the target's tokens, of at most `most` levels, and as many nodes as fit."""
        tries = [trie([text[:most] for text in texts], self.room) for texts in self._texts(context, draft)]
        places, parents = merged_tries(tries, self.room)
        if not places:
            return Draft.empty(context)
        device = context.seq.device
        ids = [[one.get(place, 0) for place in places] for one in tries]
        tree = TokenTree(sent(torch.tensor(ids), device), parents)
        there = sent(torch.tensor([[place in one for place in places] for one in tries]), device)
        usable = constant(tree.topology.depths, device) <= drawable(context, most).unsqueeze(1)
        return Draft(tree, None, there & usable, drafted=tree.deepest(there))

    def _texts(self, context: Context, draft: Draft) -> Iterator[list[list[int]]]:
        """The drafts of every row, each path of its tree as a sequence of the target's tokens.
        A sequence without free slots, and a row that has ended, gets none."""
        drafted, live, parents = draft.tree.ids.tolist(), context.live.tolist(), draft.tree.parents
        for reading, ids, there, alive in zip(self._readings, drafted, draft.there.tolist(), live, strict=True):
            paths = leaves(parents, there) if alive and len(reading.ids) <= self._places else []
            yield [self.scribe.write(reading, [ids[node] for node in path]) for path in paths]


def committed(context: Context) -> list[list[int]]:
    """The committed tokens of every row, read by the host."""
    ends = context.pos.tolist()
    return [row[: end + 1] for row, end in zip(context.seq[:, : max(ends) + 1].tolist(), ends, strict=True)]


# --- recited ----------------------------------------------------------------------------------------------------------
# A text in place of a target: the rounds in which a lookup drafter would have produced a given text. Such a
# drafter depends on the sequence alone, each token x is a point mass, accepted with p(x): as likely as the
# target's own next token is x. So rounds in which drafts are accepted wherever they match a text of the target
# have the distribution of the rounds in which it would have been emitted, without a pass of any network.

CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Recited(Cacheless):
    """A model that predicts every token of `text` [L] with certainty, whatever is drafted; `width` is V."""

    text: Tensor
    width: int
    static: ClassVar[bool] = True

    def probs(self, context: Context, tree: TokenTree, refeed: int = 0) -> Tensor:
        depths = torch.tensor([0, *tree.topology.depths])
        places = (context.pos.unsqueeze(1) + 1 + depths).clamp_max(len(self.text) - 1)
        return F.one_hot(self.text[places], self.width).double()

    def expand(self, context: Context, tree: TokenTree, new: int, refeed: int = 0, raw: bool = False) -> Tensor:
        raise NotImplementedError("nothing drafts with a text")

    def sample(
        self, context: Context, k: int, rng: Source, refeed: int = 1, after: After | None = None
    ) -> tuple[Tensor, Tensor]:
        raise NotImplementedError("nothing drafts with a text")


@cache
def looks_up(method: str) -> bool:
    """Whether all drafts of a method depend on the sequence alone."""
    if not needs(method) <= {"target"}:
        return False
    try:
        built = build(method, {"target": Recited(torch.zeros(1, dtype=torch.long), 1)}, k=1)
    except UsageError:  # it needs more of its target than a text
        return False
    return isinstance(built.drafter, PromptLookup | Suffix)


def rounds_over(method: str, k: int, prompt: Sequence[int], tokens: Sequence[int]) -> tuple[RoundCounts, ...]:
    """The rounds in which a method that `looks_up` would have emitted these tokens after a prompt."""
    known, ids = torch.unique(torch.tensor([*prompt, *tokens]), return_inverse=True)  # rows as narrow as possible
    built = build(method, {"target": Recited(ids, len(known))}, k)
    source = seeded([0], CPU, certain=True)  # deterministic
    (trace,) = decode(built, [ids[: len(prompt)].tolist()], new=len(tokens), eos=(), rng=source, device=CPU)
    return trace.rounds
