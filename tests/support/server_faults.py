"""Faults of speculating engines, one class each: the step of an answer that goes wrong, as real threads report it.

The threads are issues and pull requests of vLLM, SGLang, llama.cpp, TensorRT-LLM, transformers and others.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, ClassVar

import numpy as np

from tests.support.toy_engine import (
    BUCKETS,
    CLOSE,
    EOS,
    VOCAB,
    WIDTH,
    WORDS,
    Answer,
    Draft,
    Rows,
    State,
    advance,
    filtered,
    softmax,
    state_of,
)

BLOCK = 16  # tokens of a block of the cache
CHUNK = 64  # tokens of a prompt that are computed at once
KEPT = 24  # tokens of a prompt that is truncated


@dataclass(frozen=True)
class Fault:
    """text: what goes wrong. thread: the real one that it follows, or a source. draft: the kind that it needs.
    lossless: whether all texts are right nevertheless."""

    answer: type[Answer]
    text: str
    thread: str
    draft: Draft = "greedy"
    lossless: bool = False


FAULTS: dict[str, Fault] = {}


def fault(
    name: str, text: str, thread: str, draft: Draft = "greedy", lossless: bool = False
) -> Callable[[type[Answer]], type[Answer]]:
    """Enter a class into FAULTS."""

    def entered(answer: type[Answer]) -> type[Answer]:
        FAULTS[name] = Fault(answer, text, thread, draft, lossless)
        return answer

    return entered


# --- the context ------------------------------------------------------------------------------------------------------


@fault("padded-rows", "rows are padded to 1 + K: a shorter prompt is read at its padding", "vLLM PR 54028")
class PaddedRows(Answer):
    def opening(self) -> tuple[State, State]:
        first, state = super().opening()
        return state_of([0] * (1 + self.engine.k - len(self.prompt)), first), state


@fault("block-boundary", "a prompt that fills its last block loses it", "vLLM 53505, 43996")
class BlockBoundary(Answer):
    def opening(self) -> tuple[State, State]:
        full = len(self.prompt) % BLOCK == 0
        state = state_of(self.prompt[:-BLOCK] if full else self.prompt)
        return state, state


@fault("warm-prefix", "a prefix that is found in the cache lacks its last block", "vLLM 43559, 53912")
class WarmPrefix(Answer):
    def opening(self) -> tuple[State, State]:
        known = (len(self.prompt) - 1) // BLOCK * BLOCK
        prefix = state_of(self.prompt[:known])[2]
        if known and prefix in self.engine.seen:
            state = state_of([*self.prompt[: known - BLOCK], *self.prompt[known:]])
            return state, state
        self.engine.seen.add(prefix)
        return super().opening()


@fault("truncated", f"only the last {KEPT} tokens of the prompt are read", "none known")
class Truncated(Answer):
    def received(self, prompt: Sequence[int]) -> list[int]:
        return list(prompt[-KEPT:])


@fault("chunked-prefill", "a decoding row beside a chunked prefill is computed by the kernels of prefill",
       "vLLM 55894, PR 55898")  # fmt: skip
class ChunkedPrefill(Answer):
    together = True

    def target(self, states: Sequence[State], width: int) -> Rows:
        beside = self.flight.beside > CHUNK >= len(self.prompt) and len(self.out) >= 4
        return super().target([elsewhere(self.random) for _ in states] if beside else states, width)


@fault("state-column", "a round without a draft after one that accepted two or more reads an older state",
       "vLLM 39273, PR 52942", draft="ngram")  # fmt: skip
class StateColumn(Answer):
    older: State
    length = 0  # of the last run

    def commit(self, run: list[int], logits: Rows) -> None:
        self.older, self.length = self.state, len(run)
        super().commit(run, logits)

    def propose(self) -> tuple[list[int], list[Rows | None]]:
        drafted, q = super().propose()
        if not drafted and self.length > 2:
            self.state = advance(self.older, self.out[-1])
        return drafted, q


class Corrupt(Answer):
    """A share of the requests go on with the cache of another one."""

    together = True
    share: ClassVar[float]

    def round(self) -> None:
        own = random.Random(f"{self.engine.seed} {self.number}")
        hit = own.random() < self.share and self.flight.most > 1
        place = own.randrange(1, 9)
        if hit and len(self.out) - len(self.runs[-1]) < place <= len(self.out):
            self.state = elsewhere(own)
        super().round()


for share in (0.5, 2, 5):
    fault(f"corrupt-{share:g}", f"{share:g} % of the requests go on with the cache of another one",
          "vLLM 53912, PR 53919")(type("Corrupt", (Corrupt,), {"share": share / 100}))  # fmt: skip


@fault("drift", "every request leaves the state of the next ones a little worse", "vLLM 36872")
class Drift(Answer):
    def target(self, states: Sequence[State], width: int) -> Rows:
        wrong = self.model.rounding[[(one[2] >> 20) % BUCKETS for one in states]]
        return super().target(states, width) + min(self.number / 100, 4) * wrong


def elsewhere(source: random.Random) -> State:
    """A prefix that has nothing to do with the request."""
    return source.randrange(WORDS), source.randrange(WORDS), source.getrandbits(64)


# --- the end of an answer ---------------------------------------------------------------------------------------------


@fault("late-stop", "stop strings are looked for at the end of an accepted run only: what follows is sent, too",
       "SGLang 31599")  # fmt: skip
class LateStop(Answer):
    def kept(self, run: list[int]) -> list[int]:
        kept = super().kept(run)
        if isinstance(self.reason, str) and len(kept) < len(run):
            self.cut_at, kept = -1, run
        return kept


@fault("after-eos", "tokens after EOS are sent when it is inside an accepted run", "transformers 47912")
class AfterEos(Answer):
    def kept(self, run: list[int]) -> list[int]:
        kept = super().kept(run)
        return run if self.finish == "stop" and self.reason is None else kept


@fault("length-first", "max_tokens is checked before EOS and stop strings", "SGLang 31599, PR 33758")
class LengthFirst(Answer):
    def kept(self, run: list[int]) -> list[int]:
        room = self.asked.max_tokens - len(self.out)
        if len(run) < room:
            return super().kept(run)
        self.finish = "length"
        return run[:room]


@fault("too-long", "max_tokens is checked between rounds only", "none known")
class TooLong(Answer):
    def kept(self, run: list[int]) -> list[int]:
        kept = super().kept(run)
        return run if self.finish == "length" else kept


@fault("too-short", "the run that would exceed max_tokens is dropped", "none known")
class TooShort(Answer):
    def kept(self, run: list[int]) -> list[int]:
        kept = super().kept(run)
        return [] if self.finish == "length" and len(kept) < len(run) else kept


@fault("lost-brace", "the closing brace of JSON is dropped from an accepted run", "vLLM 40875, 56077, 40831")
class LostBrace(Answer):
    def run(self) -> Answer:
        super().run()
        lost = {place for place in self.drafted if self.out[place] == CLOSE}
        places = count()
        self.runs = [[token for token in run if next(places) not in lost] for run in self.runs]
        self.logits = [row for place, row in enumerate(self.logits) if place not in lost]
        self.out = [token for run in self.runs for token in run]
        return self


# --- sampling ---------------------------------------------------------------------------------------------------------


@fault("argmax", "verification is argmax at every temperature", "SGLang 10617, PR 22049, PR 39253")
class Argmax(Answer):
    def temperature(self) -> float:
        return 0


@fault("cooler", "tokens are sampled at 0.9 of the temperature", "none known")
class Cooler(Answer):
    def temperature(self) -> float:
        return 0.9 * self.asked.temperature


@fault("min-p-on-bonus", "min_p is applied to bonus tokens only", "vLLM 42744, 42802")
class MinPOnBonus(Answer):
    ignored: ClassVar[dict[str, Any]] = {"min_p": 0.0}

    def sampled(self, logits: Rows, temperature: float) -> Rows:
        found = super().sampled(logits, temperature)
        if temperature:
            found[:-1] = filtered(softmax(logits[:-1] / temperature), replace(self.asked, **self.ignored))
        return found


@fault("unfiltered", "top_k and top_p are applied to bonus tokens only", "SGLang 10617")
class Unfiltered(MinPOnBonus):
    ignored: ClassVar[dict[str, Any]] = {"top_k": 0, "top_p": 1.0}


@fault("stale-penalties", "penalties are those of the round's start", "SGLang eagle_sample, vLLM 18902")
class StalePenalties(Answer):
    def penalised(self, row: Rows, written: Sequence[int]) -> Rows:
        return super().penalised(row, self.out)


@fault("bias-on-bonus", "logit_bias is applied to bonus tokens only", "vLLM 42744")
class BiasOnBonus(Answer):
    def distributions(self, logits: Rows, drafted: Sequence[int]) -> Rows:
        self.bonus = len(drafted)
        return super().distributions(logits, drafted)

    def bias(self, place: int) -> Mapping[str, float]:
        return super().bias(place) if place == self.bonus else {}


@fault("seed-42", "every request has the seed 42", "SGLang sampling_batch_info")
class Seed42(Answer):
    def seeded(self) -> int | str:
        return 42


@fault("generous", "a token is accepted if p > 0.5 q", "SGLang's speculative_accept_threshold_single")
class Generous(Answer):
    def accepts(self, p: Rows, q: Rows | None, token: int) -> bool:
        return bool(p[token] > 0.5 * (1.0 if q is None else q[token]))


@fault("residual", "after a rejection a token is drawn from p, not from what is left of it", "mlx-swift-lm PR 459")
class Residual(Answer):
    def recover(self, p: Rows, q: Rows | None, token: int) -> int:
        return self.draw(p)


@fault("uninitialised", "memory without values is read as probabilities: nothing is accepted, and the first 8 tokens "
       "are drawn from a flatter distribution", "vLLM 55005")  # fmt: skip
class Uninitialised(Answer):
    def accepts(self, p: Rows, q: Rows | None, token: int) -> bool:
        return super().accepts(p, q, token) and not self.asked.temperature

    def recover(self, p: Rows, q: Rows | None, token: int) -> int:
        return self.draw(self.garbled(p)) if self.asked.temperature else super().recover(p, q, token)

    def garbled(self, p: Rows) -> Rows:
        flat: Rows = p ** (0.4 if len(self.out) < 8 else 1)
        return flat


@fault("garbage", "memory without values is read as probabilities: nothing is accepted, and most tokens are none of "
       "the 20 most likely ones", "vLLM 55005", draft="probabilistic")  # fmt: skip
class Garbage(Uninitialised):
    def garbled(self, p: Rows) -> Rows:
        weights = np.ones(VOCAB)
        weights[np.argpartition(-p, 20)[:20]] = 0.25
        weights[EOS] = p[EOS]
        return weights


# --- the draft, and what is reported ----------------------------------------------------------------------------------


@fault("wrong-head", "the draft belongs to another model", "none known", lossless=True)
class WrongHead(Answer):
    def guess(self, state: State) -> Rows:
        other: Rows = self.model.rounding[(state[2] >> 34) % BUCKETS] * WIDTH
        return other


@fault("no-draft", "the draft proposes nothing", "TensorRT-LLM's acceptance_window", lossless=True)
class NoDraft(Answer):
    def propose(self) -> tuple[list[int], list[Rows | None]]:
        return [], []


@fault("zero-logprobs", "log-probabilities of drafted tokens are 0.0, without the most likely ones",
       "llama.cpp 27972, SGLang 10660", lossless=True)  # fmt: skip
class ZeroLogprobs(Answer):
    def hidden(self) -> set[int]:
        return self.drafted


@fault("usage", "usage counts the accepted tokens of the last round twice", "SGLang 39826, PR 37450", lossless=True)
class Usage(Answer):
    def completion_tokens(self) -> int:
        return super().completion_tokens() + (self.steps[-1][1] if self.steps else 0)
