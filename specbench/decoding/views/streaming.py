"""A model that sees the first tokens of a text and its last ones, as a short text of its own.

StreamingLLM (Xiao et al. 2023, arXiv 2309.17453); the cache of TriForce's draft (Sun et al. 2024, arXiv 2404.11912).
Knows tokens and their places; must not know networks, or how they keep what they have read.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from specbench.decoding.protocols import After, Network
from specbench.decoding.randomness import Source
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Context, Verdict

AHEAD = 64  # places for what is drafted after a full window; where more is drafted there will be more


@dataclass
class Streaming:
    """The rows of `model` after the first `sinks` tokens and the last ones, at most `window`, as if they were the text.

    They have the positions of a short text, so that any encoding of positions and any length will do. When the window
    is full its first half leaves it: what stays is fed anew at its new positions, which is one further token per token
    in the long run. Until then the text is the model's own, and so are the rows. `model` itself is left alone: a twin
    of it does the work. The host reads in every call how long the short text is.
    """

    model: Network
    sinks: int
    window: int
    static: ClassVar[bool] = False
    _twin: Network | None = field(default=None, init=False, repr=False, compare=False)
    _left_out: Tensor = field(init=False, repr=False, compare=False)  # [B] tokens between the sinks and the window
    _places: int = field(default=0, init=False, repr=False, compare=False)  # of the short text
    _ahead: int = field(default=AHEAD, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"window: expected at least 1 token, found {self.window}")

    @property
    def kept(self) -> int:
        """How many tokens stay in a window that was full."""
        return self.window - self.window // 2

    def start(self, context: Context) -> None:
        self._twin = self._twin or self.model.twin()
        self._places = min(self.sinks + self.window + self._ahead, context.seq.shape[1])
        full = context.pos + 1 - self.sinks > self.window
        self._left_out = torch.where(full, self._too_many(context), 0)
        self._twin.start(self._short(context))

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

    def select(self, rows: Tensor) -> None:
        self._left_out = self._left_out.index_select(0, rows)
        self._reader.select(rows)

    @property
    def _reader(self) -> Network:
        assert self._twin is not None, "start() comes before any other call"
        return self._twin

    def _too_many(self, context: Context) -> Tensor:
        """[B] how many tokens are left out where a window has just slid."""
        return (context.pos + 1 - self.sinks - self.kept).clamp_min(0)

    def _slide(self, context: Context, drafted: int, refeed: int) -> int:
        """Slide full windows; returns how many tokens before the last must be fed again.

        An outer speculation may take tokens back, until nothing of a window is left: then it slides to the left.
        """
        held = context.pos + 1 - self.sinks - self._left_out
        slides = (held > self.window) | ((held < 1) & (self._left_out > 0))
        some, longest = torch.stack([slides.any().long(), held.max()]).tolist()
        if some:
            self._left_out = torch.where(slides, self._too_many(context), self._left_out)
            refeed = max(refeed, self.kept - 1)
        if self.sinks + longest + drafted > self._places < context.seq.shape[1]:
            self._ahead, self._twin = self._ahead + longest + drafted, None
            self.start(context)
        return refeed

    def _short(self, context: Context) -> Context:
        """What the twin sees as its text; faults that it finds are seen in the original."""
        left_out = self._left_out
        place = torch.arange(self._places, device=left_out.device)
        source = place + (place >= self.sinks) * left_out.unsqueeze(1)
        seq = context.seq.gather(1, source.clamp_max(context.seq.shape[1] - 1))
        last = (context.last - left_out).clamp_max(self._places - 1)
        return replace(context, seq=seq, pos=context.pos - left_out, last=last, reach=self._places, tight=False)
