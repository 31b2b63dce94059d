"""A model with another tokenizer as a model of the target's tokens: it draws only tokens common to both vocabularies.

Token-level intersection (Timor et al. 2025, arXiv 2502.05202, algorithm 4).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from specbench.decoding.protocols import After, Dictionary, Forwarding, Learner, Model, Network
from specbench.decoding.randomness import Source
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Context, Verdict
from specbench.errors import UsageError

# --- retrieval --------------------------------------------------------------------------------------------------------
# A network that attends to few of its own keys: a part of a method that requests such a reader
# from the network. TriForce's middle level (Sun et al. 2024, arXiv 2404.11912).


@dataclass
class Retrieval(Forwarding):
    """The rows of `model` if it attends, in every layer and head, to `budget` of the sequence's tokens and to new ones.

    The tokens are the first `chunk` of the sequence and the chunks of that size whose keys match the last query
    best. They are chosen at prefill, and again after `tail` new tokens. They come from the cache of `model`: it
    must be the same object that judges these drafts, directly above, or the choice is out of date.
    """

    model: Network
    budget: int
    chunk: int = 8
    tail: int = 64
    static: ClassVar[bool] = False  # the host reads whether the tail is full

    def __post_init__(self) -> None:
        if not 1 <= self.chunk <= self.budget:
            raise ValueError(f"chunk: expected 1 to budget = {self.budget} tokens, found {self.chunk}")
        if self.tail < 1:
            raise ValueError(f"tail: expected at least 1 token, found {self.tail}")

    @cached_property
    def reader(self) -> Model:
        return self.model.retrieved(self.budget, self.chunk, self.tail)


# --- streaming --------------------------------------------------------------------------------------------------------
# A model that sees the first tokens of a sequence and its last ones, as a short sequence of its own. StreamingLLM
# (Xiao et al. 2023, arXiv 2309.17453); the cache of TriForce's draft (Sun et al. 2024, arXiv 2404.11912).

AHEAD = 64  # slots reserved for drafts after a full window; grows with the draft


@dataclass
class Streaming:
    """The rows of `model` after the first `sinks` tokens and the last ones, at most `window`, as if no others existed.

    They have the positions of a short sequence, so that any position encoding and any length work. When the window
    is full its first half is dropped: the rest is fed again at its new positions, which is one further token per
    token in the long run. Until then the sequence is complete, and the rows are the model's own. `model` itself is
    not changed: a twin of it does the work. The host reads the length of the short sequence in every call.
    """

    model: Network
    sinks: int
    window: int
    static: ClassVar[bool] = False
    _left_out: Tensor = field(init=False, repr=False, compare=False)  # [B] tokens between the sinks and the window
    _places: int = field(default=0, init=False, repr=False, compare=False)  # slots of the short sequence
    _ahead: int = field(default=AHEAD, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"window: expected at least 1 token, found {self.window}")

    @property
    def kept(self) -> int:
        """The number of tokens that stay after a window was full."""
        return self.window - self.window // 2

    def start(self, context: Context) -> None:
        self._places = min(self.sinks + self.window + self._ahead, context.seq.shape[1])
        full = context.pos + 1 - self.sinks > self.window
        self._left_out = torch.where(full, self._too_many(context), 0)
        self._reader.start(self._short(context))

    def admit(self, context: Context, row: int) -> None:
        begun = self._left_out.clone()
        full = context.pos[row] + 1 - self.sinks > self.window
        begun[row] = torch.where(full, self._too_many(context)[row], 0)
        self._left_out = begun
        self._reader.admit(self._short(context), row)

    def probs(self, context: Context, tree: TokenTree, refeed: int = 0) -> Tensor:
        refeed = self._slide(context, tree.size, refeed)
        return self._reader.probs(self._short(context), tree, refeed)

    def expand(self, context: Context, tree: TokenTree, new: int, refeed: int = 0, raw: bool = False) -> Tensor:
        refeed = self._slide(context, tree.size, refeed)
        return self._reader.expand(self._short(context), tree, new, refeed, raw)

    def sample(
        self, context: Context, k: int, rng: Source, refeed: int = 1, after: After | None = None
    ) -> tuple[Tensor, Tensor]:
        refeed = self._slide(context, k, refeed)
        return self._reader.sample(self._short(context), k, rng, refeed, after)

    def settle(self, start: Tensor, tree: TokenTree, verdict: Verdict) -> None:
        self._reader.settle(start - self._left_out, tree, verdict)

    @cached_property
    def _reader(self) -> Network:
        return self.model.twin()

    def _too_many(self, context: Context) -> Tensor:
        """[B] the number of tokens to drop when a window slides."""
        return (context.pos + 1 - self.sinks - self.kept).clamp_min(0)

    def _slide(self, context: Context, drafted: int, refeed: int) -> int:
        """Slide full windows; returns the number of tokens before the last that must be fed again.

        An outer speculation may roll tokens back, until a window is empty: then it slides to the left.
        """
        held = context.pos + 1 - self.sinks - self._left_out
        slides = (held > self.window) | ((held < 1) & (self._left_out > 0))
        some, longest = torch.stack([slides.any().long(), held.max()]).tolist()
        if some:
            self._left_out = torch.where(slides, self._too_many(context), self._left_out)
            refeed = max(refeed, self.kept - 1)
        if self.sinks + longest + drafted > self._places < context.seq.shape[1]:
            self._ahead += longest + drafted
            del self._reader  # its cache is too short
            self.start(context)
        return refeed

    def _short(self, context: Context) -> Context:
        """The short sequence of the twin; faults that it finds are visible in the original."""
        left_out = self._left_out
        place = torch.arange(self._places, device=left_out.device)
        source = place + (place >= self.sinks) * left_out.unsqueeze(1)
        seq = context.seq.gather(1, source.clamp_max(context.seq.shape[1] - 1))
        last = (context.last - left_out).clamp_max(self._places - 1)
        return replace(context, seq=seq, pos=context.pos - left_out, last=last, reach=self._places, tight=False)


# --- common -----------------------------------------------------------------------------------------------------------

REFUSED = "a model with another tokenizer than the target's cannot be read or taught by the target's tokens"


class Common:
    """The rows of `model`, which draws only from `dictionary.theirs`, as rows over the target's vocabulary.

    So q is the distribution that was drawn from, whatever the model read. It reads the prompt as its own
    tokenizer splits it, then each token of the target in its own pieces: no token changes those before it,
    so rejected tokens are rolled back by position, as usual. `limit`: the maximum context of the model.
    """

    def __init__(self, model: Network, dictionary: Dictionary, limit: int) -> None:
        self.model, self.dictionary, self.limit = model, dictionary, limit
        self.text = torch.zeros((0, 0), dtype=torch.long)  # [B, L'] the prompts in the model's tokens
        self.ends = self.begins = self.root = torch.zeros(0, dtype=torch.long)

    @property
    def static(self) -> bool:
        return self.model.static

    def start(self, context: Context) -> None:
        begins = context.pos.tolist()
        texts = [self._prompt(row[: end + 1]) for row, end in zip(context.seq.tolist(), begins, strict=True)]
        text = context.seq.new_zeros((context.rows, context.seq.shape[1] * self.dictionary.stretch))
        for row, ids in enumerate(texts):
            text[row, : len(ids)] = torch.tensor(ids, device=text.device)
        ends = torch.tensor([len(ids) - 1 for ids in texts], device=text.device)
        if self.text.shape != text.shape:
            self.text, self.ends, self.begins = text, ends, context.pos.clone()
        else:  # the addresses that captured rounds read
            for kept, new in ((self.text, text), (self.ends, ends), (self.begins, context.pos)):
                kept.copy_(new)
        self.model.start(self._own(context))

    def admit(self, context: Context, row: int) -> None:
        end = int(context.pos[row])
        ids = self._prompt(context.seq[row, : end + 1].tolist())
        self.text[row, : len(ids)] = torch.tensor(ids, device=self.text.device)
        self.ends[row], self.begins[row] = len(ids) - 1, end
        self.model.admit(self._own(context), row)

    def probs(self, context: Context, tree: TokenTree, refeed: int = 0) -> Tensor:
        return self._rows(self.model.probs(self._own(context), self._told(tree), self._pieces(refeed)), 0)

    def expand(self, context: Context, tree: TokenTree, new: int, refeed: int = 0, raw: bool = False) -> Tensor:
        rows = self.model.expand(self._own(context), self._told(tree), new, self._pieces(refeed), raw)
        return self._rows(rows, -torch.inf if raw else 0)

    def sample(
        self, context: Context, k: int, rng: Source, refeed: int = 1, after: After | None = None
    ) -> tuple[Tensor, Tensor]:
        ids, rows = self.model.sample(self._own(context), k, rng, self._pieces(refeed), after)
        return self.dictionary.back[ids], self._rows(rows, 0)

    def settle(self, start: Tensor, tree: TokenTree, verdict: Verdict) -> None:
        self.model.settle(self.root, self._told(tree), verdict)  # the tree of the last call, so its root as well

    def successors(self) -> Tensor:
        """As in `Network`; a token is followed by itself if the model's successor is not a token of the target."""
        own = self.dictionary
        every = torch.arange(own.width, device=own.pieces.device)
        after = self.model.successors()[own.pieces[every, own.lengths - 1]]
        return torch.where(torch.isin(after, own.theirs), own.back[after], every)

    def twin(self) -> "Common":
        raise UsageError(REFUSED)

    def retrieved(self, budget: int, chunk: int, tail: int) -> Network:
        raise UsageError(REFUSED)

    def learner(self, rate: float) -> tuple[Network, Learner]:
        raise UsageError(REFUSED)

    def _prompt(self, ids: Sequence[int]) -> list[int]:
        """A prompt in the model's tokens, truncated on the left if it needs more slots than there are."""
        return self.dictionary.prompt(ids)[-self.dictionary.stretch * len(ids) :]

    def _pieces(self, refeed: int) -> int:
        """The number of the model's tokens before its last to feed again for `refeed` of the target's."""
        return self.dictionary.most * (refeed + 1) - 1

    def _told(self, tree: TokenTree) -> TokenTree:
        """A tree in the model's tokens. Its own drafts have one piece each; it never accepts
        unknown tokens of other drafts, so their replacement does not matter."""
        return TokenTree(self.dictionary.pieces[tree.ids, 0], tree.parents)

    def _rows(self, rows: Tensor, nothing: float) -> Tensor:
        """Rows [..., V'] of the model as rows [..., V], with `nothing` for tokens that it does not have."""
        known = rows.index_select(-1, self.dictionary.theirs)
        width = self.dictionary.width
        return rows.new_full((*rows.shape[:-1], width), nothing).index_copy(-1, self.dictionary.ours, known)

    def _own(self, context: Context) -> Context:
        """The sequence in the model's tokens, rebuilt completely: a function of the committed tokens."""
        seq, own = context.seq, self.dictionary
        place = torch.arange(seq.shape[1], device=seq.device)
        new = (place > self.begins.unsqueeze(1)) & (place <= context.pos.unsqueeze(1))
        lengths = torch.where(new, own.lengths[seq], 0)
        ends = lengths.cumsum(1)
        self.root = self.ends + ends[:, -1]
        after = (
            torch.arange(self.text.shape[1], device=seq.device) - self.ends.unsqueeze(1) - 1
        )  # places after a prompt
        owner = torch.searchsorted(ends, after, right=True).clamp_max(seq.shape[1] - 1)
        piece = (after - (ends - lengths).gather(1, owner)).clamp(0, own.most - 1)
        text = torch.where(after >= 0, own.pieces[seq.gather(1, owner), piece], self.text)
        reach, end = context.reach * own.stretch, min(self.text.shape[1], self.limit) - 1
        last = torch.full_like(context.last, end)
        return replace(context, seq=text, pos=self.root, last=last, reach=reach, tight=False)
