"""Suffix decoding: how often every continuation followed, where the text or earlier answers had its last tokens before.

Drafted tokens are point masses, because a count draws nothing. Knows token ids; must not know models. The host counts.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specbench.decoding.drafters.chain import Chains, chain
from specbench.decoding.protocols import Carried
from specbench.decoding.randomness import Source
from specbench.decoding.types import Context, Draft, Verdict

Ids = NDArray[np.int64]
Found = tuple[list[int], float]  # tokens, and how many of them are expected to be accepted
NOTHING: Found = ([], 0.0)
EDGE = -1  # stands between texts, and before the first of them: it is no token


@dataclass
class Suffix(Chains):
    """The continuation with the highest score, Σ of its tokens' estimated chances (Oliaro et al. 2024,
    arXiv 2411.04975, §4, and its published code; vLLM's method `suffix`).

    For every length m of a suffix that occurred: the most frequent token after it, then the most frequent one after
    both, and so on. A chance is the share of the occurrences before that go on so, the product of these along the
    chain; a chain ends where that falls below `least`, after factor · m + offset tokens, after k, and where it has
    `most` tokens with the suffix. Of equal scores the longer suffix counts, of equally frequent tokens the newest.
    Texts are the row's own, prompt included, and with `carry` the last `texts` answers as well, which are taken where
    they score higher. The published code counts by two suffix trees, which give the same numbers; a round in which no
    row has a draft is an ordinary step.

    carry: answers are kept from text to text, for all rows; else every text begins with nothing but its prompt.
    """

    k: int
    factor: float = 1.0
    offset: float = 0.0
    least: float = 0.1
    most: int = 64
    carry: bool = False
    texts: int = 1000
    static: ClassVar[bool] = False
    drawn: ClassVar[bool] = False
    adapts: ClassVar[str] = ""
    remarks: list[str] = field(default_factory=list, init=False, repr=False, compare=False)
    _begun: list[int] = field(default_factory=list, init=False, repr=False, compare=False)  # where every answer begins
    _answers: deque[Ids] = field(init=False, repr=False, compare=False)
    _earlier: Ids = field(init=False, repr=False, compare=False)  # the answers as one text

    def __post_init__(self) -> None:
        if not 0 < self.least <= 1:
            raise ValueError(f"least: a chance lies in (0, 1], found {self.least}")
        if self.most < 2 or self.texts < 1:
            raise ValueError(f"most ≥ 2 and texts ≥ 1 expected, found {self.most} and {self.texts}")
        if self.factor < 0:
            raise ValueError(f"factor: expected 0 or more, found {self.factor}")
        self._answers = deque(maxlen=self.texts)
        self.forget()

    @property
    def carries(self) -> Carried | None:
        return self if self.carry else None

    def start(self, context: Context) -> None:
        self._begun = [end + 1 for end in context.pos.tolist()]

    def admit(self, context: Context, row: int) -> None:
        self._begun[row] = int(context.pos[row]) + 1

    def propose(self, context: Context, budget: int | None, rng: Source, lag: int = 1) -> Draft:
        return self.find(context, budget)[0]

    def find(self, context: Context, budget: int | None) -> tuple[Draft, Tensor]:
        """The draft, and its score [B] float64: how many of its tokens are expected to be accepted."""
        most = self.k if budget is None else min(self.k, budget)
        ends, live = context.pos.tolist(), context.live.tolist()
        seq: Ids = context.seq[:, : max(ends) + 1].cpu().numpy()
        rows = [
            self._best(seq[row, : end + 1], most) if live[row] and most > 0 else NOTHING for row, end in enumerate(ends)
        ]
        score = torch.tensor([score for _, score in rows], dtype=torch.float64, device=context.pos.device)
        if not (width := max(len(ids) for ids, _ in rows)):
            return Draft.empty(context), score
        ids = torch.tensor([[*ids, *[0] * (width - len(ids))] for ids, _ in rows], device=score.device)
        there = torch.tensor([[place < len(ids) for place in range(width)] for ids, _ in rows], device=score.device)
        return chain(ids, context, budget, there), score

    def learn(self, context: Context, start: Tensor, draft: Draft, p: Tensor, verdict: Verdict) -> None:
        return  # the text is all it knows

    def select(self, rows: Tensor) -> None:
        self._begun = [self._begun[row] for row in rows.tolist()]

    def ended(self, context: Context, rows: Sequence[int]) -> None:
        for row in rows:
            answer = context.seq[row, self._begun[row] : int(context.pos[row]) + 1]
            self._answers.append(answer.cpu().numpy().copy())
        self._earlier = together(self._answers)

    def forget(self) -> None:
        self._answers.clear()
        self._earlier = together(())

    def _best(self, text: Ids, most: int) -> Found:
        """What the text itself suggests, unless earlier answers suggest something with a higher score."""
        here, before = (self._after(known, text, most) for known in (together((text,)), self._earlier))
        return here if here[1] >= before[1] else before

    def _after(self, known: Ids, text: Ids, most: int) -> Found:
        """The best continuation of a text, by what followed its suffixes in what is known."""
        places, found, budget = np.flatnonzero(known == text[-1]), NOTHING, 0
        for length in range(1, limit := min(len(text), self.most)):
            allowed = min(int(self.factor * length + self.offset + 1e-6), most, self.most - length)
            budget, last = max(budget, allowed), length + 1 == limit
            longer = places[:0] if last else places[known[places - length] == text[-1 - length]]
            if len(longer) < len(places):  # else what follows the longer suffix is the same
                one, budget = follow(known, places, budget, self.least), 0
                found = one if one[1] >= found[1] else found
            places = longer
        return found


def together(texts: Sequence[Ids] | deque[Ids]) -> Ids:
    """Texts as one, an edge before each of them and one after the last."""
    edge = np.full(1, EDGE)
    return np.concatenate([part for text in texts for part in (edge, text)] + [edge])


def follow(known: Ids, places: Ids, budget: int, least: float) -> Found:
    """The most frequent token after some places, the most frequent one after that, … at most `budget` tokens."""
    ids: list[int] = []
    chance, score = 1.0, 0.0
    while len(ids) < budget:
        ahead = places + 1
        tokens = known[ahead]
        there = tokens != EDGE
        if not there.any():
            break
        _, kind, counts = np.unique(tokens[there], return_inverse=True, return_counts=True)
        frequent = counts[kind] == counts.max()
        token = int(tokens[there][frequent][-1])
        chance *= counts.max() / len(places)
        if chance < least:
            break
        ids.append(token)
        score, places = score + chance, ahead[tokens == token]
    return ids, score
