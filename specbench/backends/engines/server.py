"""Servers of completions as an engine: one with a draft and one without, which get the same prompts."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, field, replace
from itertools import accumulate
from queue import SimpleQueue
from threading import Thread
from typing import Any, Generic, TypeVar

import torch

from specbench.acceptance import COUNTERS, MEAN, SPARE, TOTALS, Counters, Record, divided, fitted
from specbench.backends.base import Backend, Decode, Held, Loading, refuse_settings, unseen
from specbench.backends.engines.client import Client
from specbench.backends.engines.dialects import (
    UNKNOWN,
    Answer,
    Dialect,
    ServedChat,
    dialect_of,
    pieces,
    refuse_fields,
    request_of,
)
from specbench.errors import ServerError, UsageError
from specbench.metrics import (
    FIRST_PIECE,
    HELD,
    LAST_PIECE,
    PIECE_GAP,
    STEP,
    TURN_PART,
    UNREPORTED,
    RoundCounts,
    Trace,
    seed_from,
)
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
TOGETHER = (
    "the seconds of a request are its latency, prompt and waits included, ÷ the requests in flight: tokens ÷ seconds "
    "is the throughput while that many are in flight"
)
OPEN = (
    "requests come at random times, the same for baseline and method, and each is timed separately: the speedup is "
    "that of answers under this load, and waits count from when a request came"
)
AGAIN = (
    "every load sends the same prompts to the same servers: with a cache of prompts, first tokens of later loads come "
    "earlier, and lookups that keep earlier answers (suffix, ngram-mod) draft better: restart them for every load"
)
A = TypeVar("A")
GRACE = 1.0  # seconds for aborted requests to end
NOT_REPORTED = "the server does not report acceptance: every token counts as a round"
COARSE = (TOTALS, MEAN)  # sources without rounds or drafted tokens: counters are better


def open_pair(specs: Sequence[RunSpec]) -> "Server":
    """The servers of some specs, which must be running. Raises UsageError or ServerError."""
    for spec in specs:
        if spec.url is None:
            raise UsageError("--backend openai: name the server with --url http://localhost:8000")
        if spec.method != BASELINE and spec.baseline_url is None:
            raise UsageError(
                "--backend openai: name a server of the same model without a draft with --baseline-url, which the "
                "speedup is over; or measure one server alone with --method baseline"
            )
        refuse_requests(spec)
    found = Server(specs)
    for url in dict.fromkeys(address(spec) for spec in (*specs, *(one.baseline for one in specs))):
        found.check(Client(url), specs[0].target)
    return found


def refuse_requests(spec: RunSpec) -> None:
    """UsageError for settings that requests to servers cannot have."""
    if spec.arrivals is not None and spec.batch == 1:
        raise UsageError(
            "--arrivals sends requests whether or not others have ended, and --batch 1 allows one in flight: leave it "
            "out, or set how many may be in flight"
        )
    refuse_settings(str(spec.backend), spec)
    refuse_fields(spec)


def address(spec: RunSpec) -> str:
    """The URL of the server that decodes a spec."""
    return (spec.baseline_url if spec.method == BASELINE else None) or spec.url or ""


@dataclass(eq=False)
class Server:
    """The servers that some specs name. Token ids are the bytes of the text: the server tokenizes."""

    specs: Sequence[RunSpec]
    name: str = NAME
    context: int = UNLIMITED
    scores: None = None
    networks: None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    warnings: tuple[str, ...] = ()
    mute: set[str] = field(default_factory=set)  # URLs of servers whose counters timed out
    dialects: dict[str, Dialect] = field(default_factory=dict)  # by URL

    @property
    def chat(self) -> ServedChat:
        return ServedChat(self.specs[0].target)

    @property
    def execution(self) -> str:
        urls = dict.fromkeys(address(one) for spec in self.specs for one in (spec.baseline, spec))
        return f"tier server: requests over HTTP, {', '.join(urls)}; where it runs on this machine, its load is ours"

    def client(self, url: str) -> Client:
        """The client of a server, in the dialect that it has been found to speak."""
        return Client(url, self.dialects.get(url, UNKNOWN), mute=self.mute)

    def check(self, client: Client, model: str) -> None:
        """Learn the dialect of a server. ServerError if it does not serve this model."""
        served = {name: one for one in client.models() if isinstance(name := one.get("id"), str)}
        self.dialects[client.url] = dialect_of(served.get(model, {}))
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
        loads = {(one.batch, one.arrivals, one.temperature) for one in self.specs if one.dataset == spec.dataset}
        again, waits = spec.backend == NAME and len(loads) > 1, spec.arrivals is not None
        more = {AGAIN: again, OPEN: waits, TOGETHER: spec.batch > 1 and not waits}
        return (*NOTES, *(note for note, holds in more.items() if holds))

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
            client = self.client(address(spec))
            requests = [request_of(spec, *one, client.dialect) for one in zip(prompts, seeds, strict=True)]
            before = client.drained()
            began = time.perf_counter()
            answers = answered(client, requests, spec)
            part = (time.perf_counter() - began) / len(answers)
            after = client.drained()
            found = after.since(before) if before is not None and after is not None else None
            slots = min(spec.batch, len(answers)) if spec.batch > 1 and spec.arrivals is None else 0
            source, rounds = self.rounds(spec, answers, found)
            return [trace_of(*one, part, slots, source) for one in zip(answers, rounds, strict=True)]

        return run

    def rounds(
        self, spec: RunSpec, answers: Sequence[Answer], found: Counters | None
    ) -> tuple[str, Sequence[tuple[RoundCounts, ...]]]:
        """The rounds of some answers, and the source that they come from: the best available one. ServerError for
        impossible counts."""
        window = checked(spec, answers, found)
        steps = [(STEP,) * answer.tokens for answer in answers]
        records = [answer.record for answer in answers]
        if spec.method == BASELINE:
            if spec.baseline_url and (window or any(one is not None and one.drafted != 0 for one in records)):
                raise UsageError(f"--baseline-url {spec.baseline_url}: it drafts as well: start it without a draft")
            return "", steps
        source = next((one.source for one in records if one is not None), "")
        if (not source or source in COARSE) and found is not None and window is not None:
            drafted = sum(one.drafted or 0 for one in records if one is not None)
            other = found.foreign(len(answers), sum(answer.tokens for answer in answers))
            if source == TOTALS and not other and drafted != window.drafted:
                other = f"its counters rose by {window.drafted} drafted tokens, and {drafted} are ours"
            if not other:
                self.report(f"acceptance from {COUNTERS}")
                return COUNTERS, divided(window, [answer.tokens for answer in answers], spec.k)
            self.report(f"the server's counters are not used: {other}")
        self.report(f"acceptance from {source}" if source else NOT_REPORTED)
        each = [fitted(one.each(spec.k, a.tokens), a.tokens) if one is not None else step
                for one, a, step in zip(records, answers, steps, strict=True)]  # fmt: skip
        return source or UNREPORTED, each

    def report(self, line: str) -> None:
        """Warn once."""
        self.warnings += () if line in self.warnings else (line,)


def checked(spec: RunSpec, answers: Sequence[Answer], found: Counters | None) -> Record | None:
    """What the server drafted by its counters; None if they show nothing. ServerError for counts of the answers or of
    the counters that cannot be."""
    for record in (answer.record for answer in answers):
        if record and (wrong := record.wrong(spec.max_new_tokens + SPARE)):
            raise ServerError(f"{address(spec)}: {record.source} counts {wrong}: see the server's log")
    if found is None:
        return None
    if found.fell:
        raise ServerError(f"{address(spec)}: its counters (/metrics) decreased: it was restarted meanwhile")
    window = found.record(len(answers))
    if window and (rose := window.wrong((spec.max_new_tokens + SPARE) * len(answers))):
        only = "no one else may use it during a run"
        raise ServerError(f"{address(spec)}: its counters (/metrics) rose by {rose}: {only}")
    return window


def answered(client: Client, requests: Sequence[Mapping[str, Any]], spec: RunSpec) -> list[Answer]:
    """The answers: with a fixed number of requests in flight, or each request at its arrival time."""
    if spec.batch == 1:
        return [client.complete(request) for request in requests]
    times = [0.0] * len(requests) if spec.arrivals is None else times_of(spec, requests)
    found = sent_at(times, lambda number: client.complete(requests[number]), spec.batch, hang_up=client.lines.hang_up)
    if spec.arrivals is None:
        return [one.answer for one in found]
    came = [tuple(one.late + seconds for seconds in one.answer.arrived) for one in found]  # from its arrival time
    return [replace(one.answer, arrived=arrived, held=one.late if one.held else None)
            for one, arrived in zip(found, came, strict=True)]  # fmt: skip


def times_of(spec: RunSpec, requests: Sequence[Mapping[str, Any]]) -> list[float]:
    """The arrival times of the requests of a turn: derived from their prompts and the seed, so equal for all arms."""
    assert spec.arrivals is not None
    seed = seed_from("arrivals", spec.seed, *(request.get("prompt", request.get("messages")) for request in requests))
    return arrival_times(spec.arrivals, len(requests), seed, spec.burstiness or 1.0)


@dataclass(frozen=True)
class Sent(Generic[A]):
    """An answer, the delay between its arrival time and its sending, and whether it waited for a free slot."""

    answer: A
    late: float
    held: bool


def trace_of(answer: Answer, rounds: Sequence[RoundCounts], part: float, slots: int, source: str = "") -> Trace:
    """One request as a decode; `part` is its equal share of the turn's seconds.

    With a fixed number of requests in flight (`slots`, else 0), its seconds are its latency ÷ slots, so that tokens ÷
    seconds is the throughput under that load. The elapsed time of a turn is not: near its end only the slowest requests
    are in flight. The decode time of an answer in one piece is unknown.
    """
    first, last = answer.arrived[0], answer.arrived[-1]
    step = (last - first) / (len(answer.arrived) - 1) if len(answer.arrived) > 1 else 0.0
    prefill = 0.0 if slots or len(answer.arrived) == 1 else max(first - step, 0.0)
    seconds = last / slots if slots else last - prefill
    spans = {FIRST_PIECE: first, LAST_PIECE: last, TURN_PART: part}
    spans |= {PIECE_GAP: step} if len(answer.arrived) > 1 else {}
    spans |= {} if answer.held is None else {HELD: answer.held}
    return Trace(pieces(answer.text, answer.tokens), tuple(rounds), seconds, prefill, spans, source=source)


@dataclass(frozen=True)
class Timer:
    """A clock in seconds, and its way to wait."""

    now: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep


WALL = Timer()


def arrival_times(rate: float, count: int, seed: int, burstiness: float = 1.0) -> list[float]:
    """The arrival times of `count` requests in seconds after the first, at `rate` per second on average.

    Gaps are gamma distributed with shape `burstiness` and mean 1 ÷ rate, as in `vllm bench serve` and AIPerf
    (`--arrival-smoothness`); 1 is a Poisson process. vLLM then scales all times to count ÷ rate seconds; these are not
    scaled. Equal seeds give equal times; another rate scales them.
    """
    draws = random.Random(seed)
    return [0.0, *accumulate(draws.gammavariate(burstiness, 1 / (rate * burstiness)) for _ in range(count - 1))]


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
    replies: list[Future[tuple[A, float]]] = [Future() for _ in times]
    due: SimpleQueue[int | None] = SimpleQueue()
    held: list[bool] = []

    def serve() -> None:
        while (number := due.get()) is not None:
            if replies[number].set_running_or_notify_cancel():
                try:
                    late = max(timer.now() - began - times[number], 0.0)
                    replies[number].set_result((ask(number), late))
                except BaseException as error:
                    replies[number].set_exception(error)

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
            under_way.append(replies[number])
            due.put(number)
        wait(replies, return_when=FIRST_EXCEPTION)
        found = [one.result() for one in replies if ended(one)]
    except BaseException:  # also on an interrupt: requests that wait for a slot would still be sent
        for one in replies:
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
