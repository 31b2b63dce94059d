"""Servers of completions as an engine: one with a draft and one without, which get the same prompts."""

import hashlib
import random
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, field, replace
from itertools import accumulate
from queue import SimpleQueue
from threading import Thread
from typing import Any, ClassVar, Generic, TypeVar

import torch

from specbench.backends.base import Backend, Decode, Held, Loading, refuse_settings, unseen
from specbench.backends.engines.client import WIDEST, Answer, Client, Counters
from specbench.errors import ServerError, UsageError
from specbench.metrics import FIRST_PIECE, HELD, LAST_PIECE, TURN_PART, RoundCounts, Trace, seed_from
from specbench.spec import BASELINE, RunSpec
from specbench.theory.memory import Demand
from specbench.wording import clean

NAME = "openai"
UNLIMITED = 1 << 30  # context in tokens if the server does not report one
NOTES = (
    "lengths of prompts are in bytes, and the server's own tokenizer reads them; outputs are compared as texts",
    "time to the first token holds the network, the queue and the prompt; of it, what a later piece takes counts as "
    "decoding",
)
TOGETHER = "requests in flight together share the seconds of the whole turn, prefill included, in equal parts"
OPEN = (
    "requests come at random times, the same for baseline and method, and each is timed separately: the speedup is "
    "that of answers under this load, and waits count from when a request came"
)
A = TypeVar("A")
GRACE = 1.0  # seconds for aborted requests to end
STEP = RoundCounts(0, 0, 0, 1, ())
FROM_COUNTERS = "acceptance from the server's counters (/metrics)"
FROM_TOTALS = "acceptance from the totals of each request: by position it is a mean"
FROM_PIECES = (
    "acceptance from the pieces of the streams, one per round, with the K of --k: a server that sends several pieces a "
    "round seems to accept less"
)
UNKNOWN = "the server does not report acceptance: every token counts as a round"


def open_pair(specs: Sequence[RunSpec]) -> "Server":
    """The servers of some specs, which must be running. Raises UsageError or ServerError."""
    for spec in specs:
        refuse_spec(spec)
    found = Server(specs)
    for url in dict.fromkeys(address(spec) for spec in (*specs, *(one.baseline for one in specs))):
        found.check(Client(url), specs[0].target)
    return found


def refuse_spec(spec: RunSpec) -> None:
    """UsageError for settings that only the server's operator can choose."""
    if spec.url is None:
        raise UsageError("--backend openai: name the server with --url http://localhost:8000")
    if spec.method != BASELINE and spec.baseline_url is None:
        raise UsageError(
            "--backend openai: name a server of the same model without a draft with --baseline-url, which the speedup "
            "is over; or measure one server alone with --method baseline"
        )
    if spec.arrivals is not None and spec.batch == 1:
        raise UsageError(
            "--arrivals sends requests whether or not others have ended, and --batch 1 allows one in flight: leave it "
            "out, or set how many may be in flight"
        )
    refuse_settings(NAME, spec)


def address(spec: RunSpec) -> str:
    """The URL of the server that decodes a spec."""
    return (spec.baseline_url if spec.method == BASELINE else None) or spec.url or ""


def request_of(spec: RunSpec, prompt: Sequence[int], seed: int) -> dict[str, Any]:
    """The body of a completion request. Fields that only some servers know are included only if set."""
    law = {"top_p": spec.top_p, "top_k": spec.top_k, "min_p": spec.min_p, "ignore_eos": spec.ignore_eos or None}
    known = {"model": spec.target, "prompt": text_of(prompt), "max_tokens": spec.max_new_tokens}
    known |= {"temperature": spec.temperature, "seed": seed % (1 << 31)}
    return {**known, **{name: value for name, value in law.items() if value is not None}}


def text_of(prompt: Sequence[int]) -> str:
    """A prompt as text, before it was encoded."""
    return bytes(prompt).decode("utf-8", "surrogatepass")


@dataclass(eq=False)
class Server:
    """The servers that some specs name. Token ids are the bytes of the text: the server tokenizes."""

    specs: Sequence[RunSpec]
    name: ClassVar[str] = NAME
    context: int = UNLIMITED
    scores: None = None
    networks: None = None
    chat: None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    warnings: tuple[str, ...] = ()
    mute: set[str] = field(default_factory=set)  # URLs of servers whose counters timed out

    @property
    def execution(self) -> str:
        urls = dict.fromkeys(address(one) for spec in self.specs for one in (spec.baseline, spec))
        return f"tier server: requests over HTTP, {', '.join(urls)}; where it runs on this machine, its load is ours"

    def check(self, client: Client, model: str) -> None:
        """ServerError if the server does not serve this model."""
        served = [name for one in client.models() if isinstance(name := one.get("id"), str)]
        if model not in served:
            raise ServerError(
                f"{client.url}: it serves {clean(', '.join(served) or 'no model', 300)}, not {clean(model)}: name one "
                "of them with --target"
            )

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8", "surrogatepass"))

    def describe(self) -> dict[str, Any]:
        return {"target_source": address(self.specs[0]), "tier_resolved": "server", "dtype_resolved": "the server's"}

    def notes(self, spec: RunSpec) -> Sequence[str]:
        return (*NOTES, *([OPEN] if spec.arrivals is not None else [TOGETHER] if spec.batch > 1 else []))

    def demand(self, held: Sequence[Held]) -> Demand | None:
        return None

    def frugal(self) -> Backend | None:
        return None

    def judge(self) -> None:
        return None

    def load(self, longest: int = 0, watch: Loading = unseen) -> None:
        return

    def unload(self) -> None:
        return

    def keep(self, specs: Sequence[RunSpec]) -> None:
        return

    def prepare(self, spec: RunSpec, longest: int) -> Decode:
        def run(prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Trace]:
            client = Client(address(spec), self.mute)
            requests = [request_of(spec, *one) for one in zip(prompts, seeds, strict=True)]
            before = client.counters()
            began = time.perf_counter()
            answers = answered(client, requests, spec)
            part = (time.perf_counter() - began) / len(answers)
            after = client.counters()
            found = after.since(before) if before is not None and after is not None else None
            shared = spec.batch > 1 and spec.arrivals is None
            rounds = self.rounds(spec, answers, found)
            return [trace_of(*one, part, shared) for one in zip(answers, rounds, strict=True)]

        return run

    def rounds(
        self, spec: RunSpec, answers: Sequence[Answer], found: Counters | None
    ) -> Sequence[tuple[RoundCounts, ...]]:
        """The rounds of some answers, from the best available source. ServerError for impossible counts."""
        most = spec.max_new_tokens * len(answers) + 2 * spec.batch  # the counters may include rounds after an answer
        if wrong := impossible(found, answers, most):
            raise ServerError(f"{address(spec)}: {wrong}")
        drafted = found is not None and found.drafts > 0
        totals = [from_totals(answer) for answer in answers]
        if spec.method == BASELINE:
            if spec.baseline_url and (drafted or any(one is not None for one in totals)):
                raise UsageError(f"--baseline-url {spec.baseline_url}: it drafts as well: start it without a draft")
            return list(map(steps, answers))
        if found is not None and drafted:
            return self.said(FROM_COUNTERS, from_counters(found, answers))
        streams = [from_pieces(answer, spec.k) for answer in answers]
        for source, told in ((FROM_TOTALS, totals), (FROM_PIECES, streams)):
            if any(one is not None for one in told):
                return self.said(source, [one or steps(a) for one, a in zip(told, answers, strict=True)])
        return self.said(UNKNOWN, list(map(steps, answers)))

    def said(self, source: str, found: Sequence[tuple[RoundCounts, ...]]) -> Sequence[tuple[RoundCounts, ...]]:
        """Report the source of acceptance once."""
        self.warnings += () if source in self.warnings else (source,)
        return found


def steps(answer: Answer) -> tuple[RoundCounts, ...]:
    """Count every token as a separate round."""
    return (STEP,) * answer.tokens


def answered(client: Client, requests: Sequence[Mapping[str, Any]], spec: RunSpec) -> list[Answer]:
    """The answers: with a fixed number of requests in flight, or each request at its arrival time."""
    if spec.batch == 1:
        return [client.complete(request) for request in requests]
    times = [0.0] * len(requests) if spec.arrivals is None else times_of(spec, requests)
    found = sent_at(times, lambda number: client.complete(requests[number]), spec.batch, hang_up=client.lines.hang_up)
    return [one.answer for one in found] if spec.arrivals is None else list(map(as_it_came, found))


def times_of(spec: RunSpec, requests: Sequence[Mapping[str, Any]]) -> list[float]:
    """The arrival times of the requests of a turn: derived from their prompts and the seed, so equal for all arms."""
    assert spec.arrivals is not None
    seed = seed_from("arrivals", spec.seed, *(request["prompt"] for request in requests))
    return arrival_times(spec.arrivals, len(requests), seed)


@dataclass(frozen=True)
class Sent(Generic[A]):
    """An answer, the delay between its arrival time and its sending, and whether it waited for a free slot."""

    answer: A
    late: float
    held: bool


def as_it_came(one: Sent[Answer]) -> Answer:
    """An answer whose times are counted from its arrival time."""
    arrived = tuple(one.late + seconds for seconds in one.answer.arrived)
    return replace(one.answer, arrived=arrived, held=one.late if one.held else None)


def trace_of(answer: Answer, rounds: Sequence[RoundCounts], part: float, shared: bool) -> Trace:
    """One request as a decode; `part` is its equal share of the turn's seconds. If several share the
    time in flight, that is its whole time. The decode time of an answer in one piece is unknown."""
    first, last = answer.arrived[0], answer.arrived[-1]
    step = (last - first) / (len(answer.arrived) - 1) if len(answer.arrived) > 1 else 0.0
    prefill = 0.0 if shared or len(answer.arrived) == 1 else max(first - step, 0.0)
    seconds = part if shared else last - prefill
    spans = {FIRST_PIECE: first, LAST_PIECE: last, TURN_PART: part}
    spans |= {} if answer.held is None else {HELD: answer.held}
    return Trace(pieces(answer.text, answer.tokens), tuple(rounds), seconds, prefill, spans)


def pieces(text: str, tokens: int) -> tuple[int, ...]:
    """As many numbers as tokens, equal for equal texts, in place of token ids, which the server does not report."""
    data = text.encode("utf-8", "surrogatepass")
    ends = [len(data) * (number + 1) // tokens for number in range(tokens)]
    return tuple(named(data[a:b]) for a, b in zip([0, *ends], ends, strict=False))


def named(piece: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(piece, digest_size=6).digest())


@dataclass(frozen=True)
class Timer:
    """A clock in seconds, and its way to wait."""

    now: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep


WALL = Timer()


def arrival_times(rate: float, count: int, seed: int) -> list[float]:
    """The arrival times of `count` requests in seconds after the first: a Poisson process of
    `rate` per second. Equal seeds give equal times; another rate scales them."""
    draws = random.Random(seed)
    return [0.0, *accumulate(draws.expovariate(rate) for _ in range(count - 1))]


def sent_at(
    times: Sequence[float],
    ask: Callable[[int], A],
    most: int,
    timer: Timer = WALL,
    hang_up: Callable[[], None] = lambda: None,
) -> list[Sent[A]]:
    """Send every request at its time, calling `ask` with its number; if `most` are in flight, it waits until one ends.

    The first failure ends all: no more requests are sent, `hang_up` aborts those in flight, and
    the error is raised. An interrupt does the same.
    """
    asked: list[Future[tuple[A, float]]] = [Future() for _ in times]
    due: SimpleQueue[int | None] = SimpleQueue()
    held: list[bool] = []

    def serve() -> None:
        while (number := due.get()) is not None:
            if asked[number].set_running_or_notify_cancel():
                try:
                    late = max(timer.now() - began - times[number], 0.0)
                    asked[number].set_result((ask(number), late))
                except BaseException as error:
                    asked[number].set_exception(error)

    places: list[Thread] = []
    try:
        for _ in range(min(most, len(times))):
            place = Thread(target=serve, daemon=True)  # a process ends without waiting for it
            place.start()
            places.append(place)
        began = timer.now()
        under_way: list[Future[tuple[A, float]]] = []
        for number, at in enumerate(times):
            timer.sleep(max(began + at - timer.now(), 0.0))
            under_way = [one for one in under_way if not ended(one)]
            held.append(len(under_way) >= most)
            under_way.append(asked[number])
            due.put(number)
        wait(asked, return_when=FIRST_EXCEPTION)
        found = [one.result() for one in asked if ended(one)]
    except BaseException:  # also on an interrupt: requests that wait for a slot would still be sent
        for one in asked:
            one.cancel()
        hang_up()
        raise
    finally:
        for _ in places:
            due.put(None)
        until = time.monotonic() + GRACE
        for place in places:
            place.join(max(until - time.monotonic(), 0.0))
    return [Sent(answer, late, waited) for (answer, late), waited in zip(found, held, strict=True)]


def ended(request: Future[A]) -> bool:
    """Whether a request has ended. Raises its error, if it ended with one."""
    if not request.done():
        return False
    request.result()
    return True


def impossible(found: Counters | None, answers: Sequence[Answer], most: int) -> str | None:
    """The error in the counts of a server that had to decode at most `most` tokens; None if they are possible."""
    for answer in answers:
        drafted, accepted = (answer.timings.get(name) for name in ("draft_n", "draft_n_accepted"))
        if type(drafted) is int and type(accepted) is int and not 0 <= accepted <= drafted <= most * WIDEST:
            said = f"{clean(drafted)} drafted and {clean(accepted)} accepted tokens"
            return f"an answer (timings) counts {said}: see the server's log"
    if found is None:
        return None
    if min(found.drafts, found.drafted, found.accepted, *found.by_position) < 0:
        return "its counters (/metrics) decreased: it was restarted meanwhile"
    accepted = max(found.accepted, sum(found.by_position))
    if found.drafts > most or not accepted <= found.drafted <= found.drafts * WIDEST:
        return (
            f"its counters (/metrics) rose by {clean(found.drafts)} rounds, {clean(found.drafted)} drafted and "
            f"{clean(accepted)} accepted tokens for at most {most} new ones: no one else may use it during a run"
        )
    return None


def from_counters(found: Counters, answers: Sequence[Answer]) -> list[tuple[RoundCounts, ...]]:
    """The rounds of some answers, from the rise of the counters while they were decoded, divided
    equally. The number of rounds by accepted tokens is exact if the server counts them by position."""
    places = sorted(found.by_position)
    accepted = [len(places) - bisect_right(places, number) for number in range(found.drafts)]
    if not places:
        accepted = spread(found.accepted, found.drafts)
    drafted = [max(pair) for pair in zip(spread(found.drafted, found.drafts), accepted, strict=True)]
    rounds = [counted(*pair) for pair in zip(drafted, accepted, strict=True)]
    parts = len(answers)
    return [fitted(rounds[number::parts], answer.tokens) for number, answer in enumerate(answers)]


def from_totals(answer: Answer) -> tuple[RoundCounts, ...] | None:
    """The rounds of one answer from llama.cpp's `draft_n` and `draft_n_accepted`; None if missing."""
    drafted, accepted = answer.timings.get("draft_n"), answer.timings.get("draft_n_accepted")
    if not isinstance(drafted, int) or not isinstance(accepted, int) or not 0 <= accepted < max(answer.tokens, 1):
        return None
    number = answer.tokens - 1 - accepted
    pairs = zip(spread(drafted, number), spread(accepted, number), strict=True)
    return fitted([counted(max(pair), pair[1]) for pair in pairs], answer.tokens)


def from_pieces(answer: Answer, k: int) -> tuple[RoundCounts, ...] | None:
    """The rounds of one answer from its pieces of at most K + 1 tokens each; None if every token came separately."""
    number = len(answer.arrived) - 1
    accepted = answer.tokens - 1 - number
    if accepted <= 0 or accepted > number * k:
        return None
    return fitted([counted(k, one) for one in spread(accepted, number)], answer.tokens)


def spread(total: int, parts: int) -> list[int]:
    """A total divided into `parts` numbers that differ by at most 1."""
    return [total // parts + (number < total % parts) for number in range(parts)] if parts else []


def counted(drafted: int, accepted: int) -> RoundCounts:
    tested = min(accepted + 1, drafted)
    return RoundCounts(drafted, tested, accepted, accepted + 1, (1.0,) * accepted + (0.0,) * (tested - accepted))


def fitted(rounds: Sequence[RoundCounts], tokens: int) -> tuple[RoundCounts, ...]:
    """The first token, the rounds up to `tokens`, and rounds without a draft for the remaining ones."""
    found, left = [STEP], tokens - 1
    for one in rounds:
        emitted = min(one.emitted, left)
        left -= emitted
        found += [replace(one, accepted=min(one.accepted, emitted), emitted=emitted)] if emitted else []
    return (*found, *[STEP] * left)
