"""Drafting without a second model: the tokens that followed an earlier occurrence of the last tokens.

Drafted tokens are point masses, because a search draws nothing.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from specbench.decoding.drafters.chain import Chains, Guesses, Memoryless, chain
from specbench.decoding.protocols import Carried, Drafter, Network
from specbench.decoding.randomness import Source
from specbench.decoding.tokens import ROOT, sent
from specbench.decoding.types import Context, Draft, Verdict


class Lookup(Drafter, Protocol):
    """A stateless drafter that looks tokens up and works with any number of them."""

    def of_length(self, k: int) -> "Lookup":
        """The same drafter with chains of k tokens."""


@dataclass(frozen=True)
class PromptLookup(Guesses, Memoryless):
    """The K tokens after the first match of the sequence's last n tokens, n from `most` down to `least`.

    The rule of prompt lookup (Saxena 2023) as in transformers (`prompt_lookup_num_tokens`,
    `max_matching_ngram_size`) and vLLM (ngram, `prompt_lookup_min` and `max`): the longest n, then the leftmost
    match. A row without a match, or whose continuation reaches the end of the sequence, has fewer nodes, or none.
    """

    k: int
    most: int = 3
    least: int = 1
    latest: ClassVar[bool] = False  # whether the latest of equally long matches is used

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most:
            raise ValueError(f"least and most: expected 1 ≤ least ≤ most, found {self.least} and {self.most}")

    def of_length(self, k: int) -> "PromptLookup":
        return replace(self, k=k)

    def propose(self, context: Context, budget: int | None, rng: Source, lag: int = 1) -> Draft:
        return self.find(context, budget)[0]

    def find(self, context: Context, budget: int | None) -> tuple[Draft, Tensor]:
        """The draft, and the length [B] of the match in tokens, 0 without a match."""
        width = self.width(budget)
        if width < 1:
            return Draft.empty(context), torch.zeros_like(context.pos, dtype=torch.float64)
        length = matched(context, self.most)
        best = length.amax(1, keepdim=True)
        hit = (length == best).long()
        end = hit.shape[1] - 1 - hit.flip(1).argmax(1) if self.latest else hit.argmax(1)
        index = end.unsqueeze(1) + 1 + torch.arange(width, device=end.device)
        there = (index <= context.pos.unsqueeze(1)) & (best >= self.least)
        draft = chain(context.seq.gather(1, index.clamp_max(context.seq.shape[1] - 1)), context, budget, there)
        return draft, (best * (best >= self.least)).squeeze(1).double()


@dataclass(frozen=True)
class SuffixLookup(PromptLookup):
    """The K tokens after the latest position with the longest suffix in common with the sequence, prompt included.

    A suffix automaton finds the same (SAM decoding, Hu et al. 2024, arXiv 2411.10666); here it
    is found by comparison. Suffixes longer than `most` tokens count as equally long. `Suffix`
    counts continuations, and drafts as far as likely.
    """

    most: int = 32
    latest: ClassVar[bool] = True


def matched(context: Context, most: int) -> Tensor:
    """[B, L] length of the common suffix, at most `most`, of the whole and its part up to a position; 0 from pos on."""
    back = torch.arange(most, device=context.pos.device)
    before = context.pos.unsqueeze(1) - back
    suffix = torch.where(before >= 0, context.seq.gather(1, before.clamp_min(0)), -2)  # newest first; -2 in front of it
    windows = F.pad(context.seq, (most - 1, 0), value=-1).unfold(1, most, 1).flip(2)  # [B, L, most], newest first
    alike = (windows == suffix.unsqueeze(1)).long().cumprod(2).sum(2)
    earlier = torch.arange(context.seq.shape[1], device=back.device) < context.pos.unsqueeze(1)
    return alike * earlier


# --- maxgram ----------------------------------------------------------------------------------------------------------
# The statistical drafter of cascades: the continuation in the sequence, or else the most frequent bigrams.


@dataclass(frozen=True)
class Maxgram(Guesses, Memoryless):
    """k tokens in every round: the continuation of the longest suffix that also occurs earlier in the
    sequence, then bigrams ("max-gram", Chen et al. 2023, arXiv 2312.11462, §4.1, and its published `mag.py`).

    Of equally long matches the leftmost is used, so the prompt comes before the output. A continuation that reaches
    the end of the sequence is repeated once (the published code searches a second time, and finds its own first
    match). Every further token is followed by its bigram, as is the last token of a sequence without a match.

    The bigrams are those of `model`: its most probable token after every single token, computed once,
    before the first prompt. The published code has counts over Wikipedia for two tokenizers; those of a
    model fit any tokenizer, need no file, and cost one short sequence per token of the vocabulary.
    Suffixes longer than `most` tokens count as equally long. Tokens are point masses: nothing is drawn.
    """

    model: Network
    k: int = 10
    most: int = 32

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ValueError(f"most: expected 1 or more, found {self.most}")

    def of_length(self, k: int) -> "Maxgram":
        return replace(self, k=k)

    def start(self, context: Context) -> None:
        self.model.successors()  # here, so that no round pays for it

    def propose(self, context: Context, budget: int | None, rng: Source, lag: int = 1) -> Draft:
        width = self.width(budget)
        if width < 1:
            return Draft.empty(context)
        length, end = matched(context, self.most).max(1, keepdim=True)  # the first of equal ones
        period = (context.pos.unsqueeze(1) - end).clamp_min(1)  # tokens from the match to the end of the sequence
        ahead = torch.arange(width, device=end.device)
        found = context.seq.gather(1, end + 1 + ahead % period)
        known = torch.where(length > 0, 2 * period, 0)
        guesses = [context.seq.gather(1, context.pos.unsqueeze(1))]
        for _ in range(width):
            guesses.append(self.model.successors()[guesses[-1]])
        guessed = torch.cat(guesses, 1).gather(1, (ahead - known + 1).clamp_min(0))
        return chain(torch.where(ahead < known, found, guessed), context, budget)


# --- suffix -----------------------------------------------------------------------------------------------------------
# Suffix decoding: counts of every continuation of the last tokens in the sequence and in earlier
# answers. Drafted tokens are point masses, because a count draws nothing. The host counts.

Ids = NDArray[np.int64]
Found = tuple[list[int], float]  # tokens, and the expected number of accepted ones
NOTHING: Found = ([], 0.0)
EDGE = -1  # separates texts, and precedes the first; not a token


@dataclass
class Suffix(Chains):
    """The continuation with the highest score, Σ of its tokens' estimated acceptance probabilities
    (Oliaro et al. 2024, arXiv 2411.04975, §4, and its published code; vLLM's method `suffix`).

    For every length m of a suffix that occurred before: the most frequent token after it, then the most frequent one
    after both, and so on. A token's probability is its share of the earlier occurrences; a chain's is their product. A
    chain ends when that falls below `least`, after factor · m + offset tokens, after k, or at `most` tokens including
    the suffix. Ties go to the longer suffix; between equally frequent tokens to the newest. The texts searched are the
    row's own sequence, prompt included, and with `carry` the last `texts` answers, if they score higher. The published
    code counts with two suffix trees, which give the same numbers; a round without any draft is an ordinary step.

    carry: answers are kept from text to text, for all rows; otherwise every text starts with its prompt only.
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
    _begun: list[int] = field(default_factory=list, init=False, repr=False, compare=False)  # the start of every answer
    _answers: deque[Ids] = field(init=False, repr=False, compare=False)
    _earlier: Ids = field(init=False, repr=False, compare=False)  # the answers as one sequence

    def __post_init__(self) -> None:
        if not 0 < self.least <= 1:
            raise ValueError(f"least: expected a probability in (0, 1], found {self.least}")
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
        """The draft, and its score [B] float64: the expected number of accepted tokens."""
        most, device = self.k if budget is None else min(self.k, budget), context.pos.device
        read = torch.cat([context.pos.unsqueeze(1), context.live.unsqueeze(1), context.seq[:, : context.reach]], 1)
        seq: Ids = read.cpu().numpy()  # all at once: every read waits for the device
        rows = [self._best(row[2 : row[0] + 3], most) if row[1] and most > 0 else NOTHING for row in seq]
        score = sent(torch.tensor([score for _, score in rows], dtype=torch.float64), device)
        if not (width := max(len(ids) for ids, _ in rows)):
            return Draft.empty(context), score
        ids = sent(torch.tensor([[*ids, *[EDGE] * (width - len(ids))] for ids, _ in rows]), device)
        return chain(ids.clamp_min(0), context, budget, ids != EDGE), score

    def learn(self, context: Context, start: Tensor, draft: Draft, p: Tensor, verdict: Verdict) -> None:
        return  # no state: it depends on the sequence only

    def ended(self, context: Context, rows: Sequence[int]) -> None:
        for row in rows:
            answer = context.seq[row, self._begun[row] : int(context.pos[row]) + 1]
            self._answers.append(answer.cpu().numpy().copy())
        self._earlier = together(self._answers)

    def forget(self) -> None:
        self._answers.clear()
        self._earlier = together(())

    def _best(self, text: Ids, most: int) -> Found:
        """The best continuation from the sequence itself, unless earlier answers give one with a higher score."""
        here, before = (self._after(known, text, most) for known in (together((text,)), self._earlier))
        return here if here[1] >= before[1] else before

    def _after(self, known: Ids, text: Ids, most: int) -> Found:
        """The best continuation of a sequence, from the continuations of its suffixes in `known`."""
        places, found, budget = np.flatnonzero(known == text[-1]), NOTHING, 0
        for length in range(1, limit := min(len(text), self.most)):
            allowed = min(int(self.factor * length + self.offset + 1e-6), most, self.most - length)
            budget, last = max(budget, allowed), length + 1 == limit
            longer = places[:0] if last else places[known[places - length] == text[-1 - length]]
            if len(longer) < len(places):  # otherwise the longer suffix has the same continuations
                one, budget = follow(known, places, budget, self.least), 0
                found = one if one[1] >= found[1] else found
            places = longer
        return found


def together(texts: Sequence[Ids] | deque[Ids]) -> Ids:
    """Texts as one sequence, with an edge before each of them and after the last."""
    edge = np.full(1, EDGE)
    return np.concatenate([part for text in texts for part in (edge, text)] + [edge])


def follow(known: Ids, places: Ids, budget: int, least: float) -> Found:
    """The most frequent token after some positions, the most frequent one after that, … at most `budget` tokens."""
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


# --- tries ------------------------------------------------------------------------------------------------------------
# Texts with common beginnings as one token tree, and the trees of several rows on one topology.

Place = tuple[int, ...]  # a node as child indices from the root down; () is the root
Trie = dict[Place, int]  # the token of every node but the root, a parent before its children


def leaves(parents: Sequence[int], there: Sequence[bool]) -> list[list[int]]:
    """The paths, as nodes from the root down, to all leaves of the masked tree; the first child
    of every node comes first."""
    children: dict[int, list[int]] = {node: [] for node in range(ROOT, len(parents))}
    for node, parent in enumerate(parents):
        if there[node]:
            children[parent].append(node)
    found, waiting = [], [[node] for node in reversed(children[ROOT])]
    while waiting:
        path = waiting.pop()
        below = children[path[-1]]
        found += [] if below else [path]
        waiting += [[*path, node] for node in reversed(below)]
    return found


def trie(texts: Sequence[Sequence[int]], most: int) -> Trie:
    """The tree of some texts, of at most `most` nodes; earlier texts have priority. Children of
    a node have different tokens, so every token of a text is proposed once at its place."""
    found: Trie = {}
    numbers: dict[Place, dict[int, Place]] = {}  # the children of a node by their tokens
    for text in texts:
        place: Place = ()
        for token in text:
            below = numbers.setdefault(place, {})
            if token not in below:
                if len(found) == most:
                    break
                below[token] = (*place, len(below))
                found[below[token]] = token
            place = below[token]
    return found


def merged_tries(tries: Sequence[Trie], most: int) -> tuple[list[Place], tuple[int, ...]]:
    """The nodes of any row, at most `most`, and their parents: a topology for all rows. If
    there are too many, those that come first in a row are kept."""
    rank: dict[Place, int] = {}
    for one in tries:
        for number, place in enumerate(one):
            rank[place] = min(number, rank.get(place, number))
    places = sorted(rank, key=lambda place: (rank[place], place))[:most]  # a parent ranks before its children
    node: dict[Place, int] = {(): ROOT} | {place: n for n, place in enumerate(places)}
    return places, tuple(node[place[:-1]] for place in places)
