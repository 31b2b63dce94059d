"""Online speculative decoding: a draft that learns, during decoding, from the target's rows at rejected tokens."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, cast

import torch
from torch import Tensor

from specbench.decoding.divergences import Divergence, ForwardKL
from specbench.decoding.drafters.chain import Wrapper
from specbench.decoding.loop import tried_further
from specbench.decoding.protocols import Apprentice, Learner, Network
from specbench.decoding.randomness import Source
from specbench.decoding.tokens import ROOT
from specbench.decoding.types import Context, Draft, Lesson, Verdict, at

KEPT = torch.float16  # of a row: two bytes per token of the vocabulary


@contextmanager
def gradients() -> Iterator[None]:
    """Enable gradients, even inside inference mode."""
    with torch.inference_mode(mode=False), torch.enable_grad():
        yield


@dataclass
class Rejections:
    """The newest rejections, at most `size`, on the device: the text, the position and the target's row.

    They take size · V · 2 bytes: 512 rows of a vocabulary of 128,256 tokens are 131 MB. Only
    `lessons` waits for the device.
    """

    size: int
    seen: Tensor | None = field(default=None, init=False)  # total number of rejections
    where: Tensor = field(init=False, repr=False)  # [size + 1, 2] text and position; the last line is a dummy
    p: Tensor | None = field(default=None, init=False, repr=False)  # [size + 1, V]

    def add(self, which: Tensor, text: Tensor, place: Tensor, p: Tensor) -> None:
        """Add those rows [B] for which `which` is true; p [B, V]."""
        if self.p is None:
            self.p = p.new_zeros((self.size + 1, p.shape[-1]), dtype=KEPT)
            self.where = place.new_zeros((self.size + 1, 2))
        number = which.long().cumsum(0) + (0 if self.seen is None else self.seen)  # of every rejection, from 1
        self.seen = number[-1]
        kept = which & (number > self.seen - self.size)
        line = torch.where(kept, number % self.size, self.size)
        self.where.index_copy_(0, line, torch.stack([text, place], 1))
        self.p.index_copy_(0, line, p.to(KEPT))

    def lessons(self, texts: Mapping[int, Tensor]) -> list[Lesson]:
        """The lessons of these rejections, text by text in the order of the texts."""
        if self.seen is None or self.p is None:
            return []
        some = min(int(self.seen), self.size)
        lines = torch.arange(1, some + 1, device=self.p.device) % self.size
        text, place = self.where[lines].T
        found = ((ids, (text == number).nonzero()[:, 0]) for number, ids in sorted(texts.items()))
        return [Lesson(ids.clone(), place[own], self.p[lines[own]].float()) for ids, own in found if len(own)]

    def clear(self) -> None:
        self.seen = None


@dataclass
class Distilled(Wrapper):
    """A drafter whose model continues to learn from its target (Liu et al. 2023, arXiv 2310.07177, Alg. 2).

    At every rejection the target's row after the committed tokens is kept, the newest `rows` of them.
    After every `every` finished texts the model, which has its own weights, takes one step on every text
    with such rows, `passes` times, and all rows are dropped. This happens between two rounds, so each q
    is still the row that its token was drawn from. Caches are then stale: that of a new text is filled
    anyway, and those of unfinished rows are filled again. Learned weights are carried from text to text.
    """

    drafter: Apprentice
    rows: int
    every: int = 8
    loss: Divergence = field(default_factory=ForwardKL)
    rate: float = 1e-3
    passes: int = 1
    static: ClassVar[bool] = False  # its weights must not become constants of a compiled round
    remarks: list[str] = field(default_factory=list, init=False)
    _rejected: Rejections = field(init=False, repr=False)
    _texts: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)  # ids by the number of the text
    _current: Tensor = field(init=False, repr=False)  # [B] the number of each row's text
    _begun: int = field(default=0, init=False)
    _ended: int = field(default=0, init=False)  # since the last update

    def __post_init__(self) -> None:
        if min(self.every, self.rows, self.passes) < 1:
            raise ValueError(
                f"every, rows and passes: expected 1 or more, found {self.every}, {self.rows} and {self.passes}"
            )
        if self.rate <= 0:
            raise ValueError(f"rate: expected a number above 0, found {self.rate}")
        self._rejected = Rejections(self.rows)

    @property
    def carries(self) -> "Distilled":
        return self

    def start(self, context: Context) -> None:
        self._current = torch.arange(self._begun, self._begun + context.rows, device=context.pos.device)
        self._begun += context.rows
        self._own[0].start(context)

    def admit(self, context: Context, row: int) -> None:
        self._current[row] = self._begun
        self._begun += 1
        self._own[0].admit(context, row)

    def propose(self, context: Context, budget: int | None, rng: Source, lag: int = 1) -> Draft:
        return self._own[0].propose(context, budget, rng, lag)

    def learn(self, context: Context, start: Tensor, draft: Draft, p: Tensor, verdict: Verdict) -> None:
        self._own[0].learn(context, start, draft, p, verdict)
        if not draft.tree.size:
            return
        rejected = tried_further(draft.tree, draft.there, verdict)
        corrected = verdict.accepted < context.pos - start  # otherwise the text ended before
        end = verdict.path.gather(1, (verdict.accepted - 1).clamp_min(0).unsqueeze(1)).squeeze(1)
        end = torch.where(verdict.accepted > 0, end, ROOT)
        self._rejected.add(rejected & corrected, self._current, start + verdict.accepted, at(p, end + 1))

    def ended(self, context: Context, rows: Sequence[int]) -> None:
        self._note(context, rows)
        self._ended += len(rows)
        if self._ended >= self.every:
            self._note(context, range(context.rows))  # rows in the middle of a text have rejections as well
            self._update()
            if context.live.any():
                self._own[0].model.start(context)

    def forget(self) -> None:
        self._own[1].forget()
        self._throw_away()

    def _note(self, context: Context, rows: Sequence[int]) -> None:
        numbers, ends = self._current.tolist(), context.pos.tolist()
        self._texts |= {numbers[row]: context.seq[row, : ends[row] + 1].clone() for row in rows}

    def _update(self) -> None:
        with gradients():
            lessons = self._rejected.lessons(self._texts)
            undone = self._own[1].teach(lessons * self.passes, self.loss) if lessons else ""
        if undone:
            self.remarks.append(f"an update of the draft was undone: {undone}; try a smaller rate")
        self._throw_away()

    def _throw_away(self) -> None:
        self._rejected.clear()
        self._texts.clear()
        self._ended = 0

    @cached_property
    def _own(self) -> tuple[Apprentice, Learner]:
        """The drafter on its own model, created at first use: forms of methods have no weights."""
        network = cast("Network", self.drafter.model)  # `parts.check` has checked this
        with gradients():
            model, learner = network.learner(self.rate)
        return self.drafter.drawing_from(model), learner
