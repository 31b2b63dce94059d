"""A toy language model, and its decoding with and without speculation, exact by rejection sampling.

Every step of an answer is a method, so that a fault of an engine (`server_faults`) replaces one of them.
"""

import random
import re
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float64]  # [n, VOCAB]: logits or probabilities
State = tuple[int, int, int]  # a prefix: its last token, the one before, and a hash of all
Draft = Literal["greedy", "probabilistic", "ngram"]

WORDS = 191
JSON = ('{"', '": "', '", "', '"}')
TEMPLATE = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
TEXTS = (*(f"w{number:03d} " for number in range(WORDS)), *JSON, *TEMPLATE, "<|eos|>")
VOCAB, EOS = len(TEXTS), len(TEXTS) - 1
OPEN, COLON, COMMA, CLOSE = range(WORDS, WORDS + len(JSON))
SPECIAL = frozenset(range(WORDS + len(JSON), VOCAB))  # not part of the text of an answer
IDS = {text: number for number, text in enumerate(TEXTS)}
PIECE = re.compile("|".join([r"w\d{3} ", *map(re.escape, TEXTS[WORDS:]), r"\S+\s*"]))

BUCKETS = 1024  # of hashes of prefixes
WIDTH, SHARES = 3.1, (0.6, 0.25, 0.15)  # deviation of logits, and the parts of the two last tokens and of the hash
FREQUENT, AGAIN = 1.5, 3.0  # deviation of the logits of words, and what the last one but one has in addition
APART = 0.75  # deviation of the draft's logits from the target's: they agree on 70 % of tokens
RARE, ENDS, EVERY = 4.8, 14.0, 150  # the logit of EOS: 0.3 %, but certain after one prefix of so many
EMPTY: State = (0, 0, 0)
PROMPT = 0  # the width of a pass over a prompt, however long


def ids_of(text: str) -> list[int]:
    """The tokens of a text: what is no text of a token is a word by its checksum."""
    pieces = PIECE.findall(text)
    return [IDS.get(one, IDS.get(f"{one} ", zlib.crc32(one.strip().encode()) % WORDS)) for one in pieces]


def text_of(tokens: Sequence[int]) -> str:
    """The text of an answer's tokens."""
    return "".join(TEXTS[one] for one in tokens if one not in SPECIAL)


def advance(state: State, token: int) -> State:
    return token, state[0], (state[2] * 6364136223846793005 + token * 2862933555777941757 + 1442695040888963407) % 2**64


def state_of(tokens: Sequence[int], start: State = EMPTY) -> State:
    for token in tokens:
        start = advance(start, token)
    return start


class Model:
    """Logits are sums of rows of tables, by the two last tokens and by the bucket of the prefix's hash."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.last, self.before, self.bucket = (
            rng.normal(size=(many, VOCAB)) * WIDTH * share**0.5
            for many, share in zip((VOCAB, VOCAB, BUCKETS), SHARES, strict=True)
        )
        self.last[:, WORDS:EOS] -= 5
        self.last[:, sorted(SPECIAL - {EOS})] -= 10
        self.last[:, EOS] = self.before[:, EOS] = 0
        self.bucket[:, EOS] = np.where(rng.random(BUCKETS) < 1 / EVERY, ENDS, RARE)
        self.last[:, :WORDS] += rng.normal(size=WORDS) * FREQUENT
        self.before[range(WORDS), range(WORDS)] += AGAIN
        self.apart = rng.normal(size=(BUCKETS, VOCAB)) * APART
        self.rounding = rng.normal(size=(BUCKETS, VOCAB))
        self.row = lru_cache(10_000)(self.computed)

    def computed(self, state: State) -> Rows:
        """Exact logits [VOCAB] of what follows a prefix."""
        last, before, prefix = state
        found: Rows = self.last[last] + self.before[before]
        found += self.bucket[prefix >> 54]
        found.flags.writeable = False
        return found

    def rounded(self, states: Sequence[State], noise: float, width: int) -> Rows:
        """Logits with a rounding of deviation `noise` that depends on the prefix and on the width of the pass."""
        found: Rows = np.array([self.row(one) for one in states])
        if noise:
            places = [((one[2] ^ width * 0x9E3779B97F4A7C15) * 0xD6E8FEB86659FD93 % 2**64) >> 54 for one in states]
            found += noise * self.rounding[places]
        return found

    def drafts(self, state: State) -> Rows:
        """Logits [VOCAB] of the draft."""
        found: Rows = self.row(state) + self.apart[(state[2] >> 34) % BUCKETS]
        return found


model_of = lru_cache(8)(Model)


@dataclass(frozen=True)
class Asked:
    """The fields of a request that decoding reads, with vLLM's defaults."""

    prompt: tuple[int, ...]
    max_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    repeat_last_n: int = 0  # llama.cpp's: penalties count this many last tokens, the prompt's too
    logit_bias: Mapping[str, float] = field(default_factory=dict)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    json: bool = False

    @cached_property
    def penalised(self) -> bool:
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0, 0, 1)

    @cached_property
    def shaped(self) -> bool:
        """Whether logits are changed before the temperature."""
        return bool(self.penalised or self.logit_bias or self.json)


@dataclass(eq=False)
class Flight:
    """A request that is served: the most that were at once, itself included, and the longest prompt of the others."""

    length: int
    most: int = 1
    beside: int = 0


@dataclass
class Engine:
    """What all requests share. k: the draft's length, 0 without a draft."""

    model: Model
    k: int
    draft: Draft = "greedy"
    noise: float = 0.0
    seed: int = 0
    seen: set[int] = field(default_factory=set)  # prefixes, for a fault of their cache
    lock: threading.Lock = field(default_factory=threading.Lock)


class Answer:
    """A request as it is decoded. number: how many requests the engine had before.

    out: the tokens; runs: those of every round; steps: drafted and accepted tokens of every round with a draft;
    drawn: the place of every token that was drafted; logits: raw, of every token.
    """

    together = False  # whether it depends on what else is in flight

    def __init__(self, engine: Engine, asked: Asked, number: int, flight: Flight) -> None:
        self.engine, self.model, self.flight, self.number = engine, engine.model, flight, number
        self.asked = asked
        self.prompt = self.received(asked.prompt)
        self.random = random.Random(self.seeded())
        self.out: list[int] = []
        self.runs: list[list[int]] = []
        self.steps: list[tuple[int, int]] = []
        self.drafted: set[int] = set()
        self.logits: list[Rows] = []
        self.after: dict[tuple[int, ...], int] = {}  # the place after the latest occurrence of one or two tokens
        self.indexed = 0  # tokens that it knows
        self.finish, self.cut_at = "", -1
        self.reason: int | str | None = None

    def run(self) -> "Answer":
        """Decode to the end."""
        first, self.state = self.opening()
        logits = self.target([first], PROMPT)
        self.commit([self.draw(self.distributions(logits, [])[0])], logits)
        while not self.finish:
            self.round()
        return self

    def received(self, prompt: Sequence[int]) -> list[int]:
        return list(prompt)

    def seeded(self) -> int | str:
        return f"{self.engine.seed} {self.number}" if self.asked.seed is None else self.asked.seed

    def opening(self) -> tuple[State, State]:
        """The prefix of the first token, and that of those after it without the first one."""
        state = state_of(self.prompt)
        return state, state

    def round(self) -> None:
        drafted, q = self.propose()
        states = [self.state]
        for token in drafted:
            states.append(advance(states[-1], token))
        logits = self.target(states, len(states))
        p = self.distributions(logits, drafted)
        accepted = 0
        while accepted < len(drafted) and self.accepts(p[accepted], q[accepted], drafted[accepted]):
            accepted += 1
        rejected = accepted < len(drafted)
        token = self.recover(p[accepted], q[accepted], drafted[accepted]) if rejected else self.draw(p[-1])
        if drafted:
            self.steps.append((len(drafted), accepted))
        self.commit([*drafted[:accepted], token], logits)

    # --- the draft ---

    def propose(self) -> tuple[list[int], list[Rows | None]]:
        """Drafted tokens, and the probabilities that each was drawn from; None for a certain one."""
        if self.engine.draft == "ngram":
            found = self.looked_up() if self.engine.k else []
            return found, [None] * len(found)
        drafted: list[int] = []
        q: list[Rows | None] = []
        state = self.state
        for _ in range(self.engine.k):
            row = self.guess(state)
            if self.asked.json:
                row = self.masked(row, [*self.out, *drafted])
            if self.engine.draft == "greedy" or not self.asked.temperature:
                q.append(None)
                drafted.append(int(row.argmax()))
            else:
                weights = softmax(row / self.asked.temperature)
                q.append(weights)
                drafted.append(self.draw(weights))
            state = advance(state, drafted[-1])
        return drafted, q

    def guess(self, state: State) -> Rows:
        return self.model.drafts(state)

    def looked_up(self) -> list[int]:
        """What followed the last two tokens before, or else the last one."""
        text = [*self.prompt, *self.out]
        for place in range(self.indexed, len(text) - 1):
            self.after[tuple(text[place : place + 1])] = place + 1
            self.after[tuple(text[max(place - 1, 0) : place + 1])] = place + 1
        self.indexed = len(text) - 1
        found = self.after.get(tuple(text[-2:]), self.after.get(tuple(text[-1:]), len(text)))
        return text[found : found + self.engine.k]

    # --- the target ---

    def target(self, states: Sequence[State], width: int) -> Rows:
        """Logits [n, VOCAB] of what follows n prefixes, from one pass."""
        return self.model.rounded(states, self.engine.noise, width)

    def distributions(self, logits: Rows, drafted: Sequence[int]) -> Rows:
        """Probabilities [n, VOCAB] that tokens are sampled from, in vLLM's order of processors."""
        asked = self.asked
        if asked.shaped:
            logits = np.stack([self.shaped(row, [*self.out, *drafted[:j]], j) for j, row in enumerate(logits)])
        return self.sampled(logits, self.temperature())

    def temperature(self) -> float:
        return self.asked.temperature

    def sampled(self, logits: Rows, temperature: float) -> Rows:
        if not temperature:
            best = logits.argmax(-1)
            found = np.zeros_like(logits)
            found[np.arange(len(best)), best] = 1
            return found
        return filtered(softmax(logits / temperature), self.asked)

    def shaped(self, row: Rows, written: Sequence[int], place: int) -> Rows:
        """Logits [VOCAB] after the grammar, bias and penalties; place: of the row in its pass."""
        asked = self.asked
        row = self.masked(row, written) if asked.json else row.copy()
        for token, bias in self.bias(place).items():
            row[int(token)] += bias
        return self.penalised(row, written) if asked.penalised else row

    def bias(self, place: int) -> Mapping[str, float]:
        return self.asked.logit_bias

    def penalised(self, row: Rows, written: Sequence[int]) -> Rows:
        asked = self.asked
        counted = (*self.prompt, *written)[-asked.repeat_last_n :] if asked.repeat_last_n else written
        counts = np.bincount(counted, minlength=VOCAB)
        seen = counts > 0
        seen[self.prompt] = True
        repeated = np.where(row > 0, row / asked.repetition_penalty, row * asked.repetition_penalty)
        row = np.where(seen, repeated, row)
        found: Rows = row - asked.frequency_penalty * counts - asked.presence_penalty * (counts > 0)
        return found

    def masked(self, row: Rows, written: Sequence[int]) -> Rows:
        """Logits with -inf for what is no object of strings."""
        place, found = len(written) % 4, np.full_like(row, -np.inf)
        allowed: Any = [COMMA, CLOSE] if place == 0 else [COLON] if place == 2 else slice(WORDS)
        allowed = [OPEN] if not written else [EOS] if CLOSE in written else allowed
        found[allowed] = row[allowed]
        return found

    # --- acceptance ---

    def accepts(self, p: Rows, q: Rows | None, token: int) -> bool:
        return bool(self.random.random() * (1.0 if q is None else q[token]) < p[token])

    def recover(self, p: Rows, q: Rows | None, token: int) -> int:
        """The token in the place of a rejected one."""
        if q is None:
            left = p.copy()
            left[token] = 0
        else:
            left = np.maximum(p - q, 0)
        return self.draw(left)

    def draw(self, weights: Rows) -> int:
        sums = np.cumsum(weights)
        return int(sums.searchsorted(self.random.random() * sums[-1], "right"))

    # --- the end ---

    def commit(self, run: list[int], logits: Rows) -> None:
        """Add the tokens of a round, the last of them not drafted, up to the end."""
        kept = self.kept(run)
        self.drafted.update(range(len(self.out), len(self.out) + min(len(kept), len(run) - 1)))
        self.out += kept
        self.runs.append(kept)
        self.logits += list(logits[: len(kept)])
        self.state = state_of(kept, self.state)

    def kept(self, run: list[int]) -> list[int]:
        for place in range(1, len(run) + 1):
            if self.ends([*self.out, *run[:place]]):
                return run[:place]
        return run

    def ends(self, tokens: Sequence[int]) -> bool:
        """Whether an answer ends here; then `finish`, `reason` and the length of its text are set."""
        asked, last = self.asked, tokens[-1]
        if last == EOS and not asked.ignore_eos:
            self.finish = "stop"
        elif last in asked.stop_token_ids:
            self.finish, self.reason, self.cut_at = "stop", last, len(text_of(tokens[:-1]))
        elif asked.stop and (found := self.stops(text_of(tokens))):
            self.finish, (self.cut_at, self.reason) = "stop", found
        if not self.finish and len(tokens) >= asked.max_tokens:
            self.finish = "length"
        return bool(self.finish)

    def stops(self, text: str) -> tuple[int, str] | None:
        """The place of the first stop string, and which it is."""
        return min(((text.find(one), one) for one in self.asked.stop if one in text), default=None)

    # --- what is said of it ---

    def text(self) -> str:
        whole = text_of(self.out)
        return whole if self.cut_at < 0 else whole[: self.cut_at]

    def completion_tokens(self) -> int:
        return len(self.out)

    def hidden(self) -> set[int]:
        """Places of tokens without log-probabilities."""
        return set()


def softmax(logits: Rows) -> Rows:
    found: Rows = np.exp(logits - logits.max(-1, keepdims=True))
    found /= found.sum(-1, keepdims=True)
    return found


def filtered(p: Rows, asked: Asked) -> Rows:
    """Probabilities [n, VOCAB] after min-p, top-k and top-p, in this order."""
    if asked.min_p:
        p = np.where(p >= asked.min_p * p.max(-1, keepdims=True), p, 0)
    if 0 < asked.top_k < VOCAB:
        p = np.where(p >= -np.partition(-p, asked.top_k - 1)[:, asked.top_k - 1, None], p, 0)
    if asked.min_p or asked.top_k > 0:
        p = p / p.sum(-1, keepdims=True)
    if asked.top_p < 1:
        order = np.argsort(-p)
        sums = np.take_along_axis(p, order, -1).cumsum(-1)
        kept = np.empty(p.shape, bool)
        np.put_along_axis(kept, order, np.roll(sums, 1, -1) < asked.top_p, -1)
        np.put_along_axis(kept, order[:, :1], True, -1)
        p = np.where(kept, p, 0)
        p = p / p.sum(-1, keepdims=True)
    return p
