"""A fleet of devices under load: tokens per second and latencies of an engine with measured steps.

Every device batches continuously (Orca, Yu et al., OSDI 2022): requests join between two steps while there are slots,
first come, first served; a prompt is read whole before the next step; a step takes the measured time for its rows,
interpolated between measured batches, and gives every row a drawn number of tokens. With one slot: the M/G/1 queue.
"""

import math
import random
from bisect import bisect_left
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from simpy import Environment, Event

WARM = 0.1  # share of the requests that only fill the queues
SHARES = (0.5, 0.95, 0.99)

Steps = Generator[Event, None, None]


@dataclass(frozen=True)
class Engine:
    """One device. seconds: of a step, by ascending number of rows; below the first it takes as
    long as there. tokens: the probabilities that a row emits 1, 2, … tokens in a step. prefill:
    seconds of a prompt. slots: maximum rows, at most as many as were measured."""

    seconds: tuple[tuple[int, float], ...]
    tokens: tuple[float, ...]
    prefill: float
    slots: int

    def step(self, rows: int) -> float:
        for (low, before), (high, after) in pairwise(self.seconds):
            if low <= rows <= high:
                return before + (after - before) * (rows - low) / (high - low)
        return self.seconds[0][1] if rows < self.seconds[0][0] else self.seconds[-1][1]

    def capacity(self, length: float) -> float:
        """Requests per second of `length` tokens when all slots are always taken."""
        tokens = math.fsum(number * chance for number, chance in enumerate(self.tokens, start=1))  # of a row per step
        return 1 / (self.prefill + length / tokens * self.step(self.slots) / self.slots)


@dataclass(frozen=True)
class Load:
    """The arriving requests: their number, their lengths in tokens, each as likely, and their users, who
    send the next request after each answer (closed), or `rate` a second at random, Poisson (open)."""

    requests: int
    lengths: Sequence[int]
    rate: float | None = None
    users: int | None = None
    seed: int = 0


@dataclass
class Request:
    """One request: its arrival time, the times of its first `begun` tokens and its last, and its remaining tokens."""

    came: float
    length: int
    done: Event
    left: int
    begun: int = 0
    first: float = math.nan
    last: float = math.nan


@dataclass(frozen=True)
class Served:
    """All devices together, and requests at the median, 95 % and 99 %, in seconds. busy: share
    of the time in which a device works; rows: mean rows of a step. first_token counts from the
    request; per_token: of those after the first step's."""

    tokens_per_second: float
    requests_per_second: float
    busy: float
    rows: float
    first_token: tuple[float, ...]
    per_token: tuple[float, ...]
    latency: tuple[float, ...]


def simulate(engine: Engine, load: Load, devices: int = 1) -> Served:
    """Serve a load; the same seed gives the same lengths and arrival times for every engine."""
    environment, draws = Environment(), random.Random(load.seed)
    fleet = [Device(environment, engine, random.Random(f"{load.seed} {number}")) for number in range(devices)]
    lengths = [draws.choice(load.lengths) for _ in range(load.requests)]
    requests = [Request(0.0, length, environment.event(), length) for length in lengths]
    if load.rate is None:
        queue = iter(requests)
        senders = [environment.process(user(fleet, queue)) for _ in range(load.users or 1)]
    else:
        senders = [environment.process(crowd(fleet, requests, load.rate, draws))]
    environment.run(environment.all_of(senders))
    environment.run(environment.all_of([request.done for request in requests]))
    return figures(requests, fleet, environment.now)


def user(fleet: "Sequence[Device]", queue: Iterator[Request]) -> Steps:
    """Send a request, wait for its answer, send the next one."""
    for request in queue:
        sent_to_the_freest(fleet, request)
        yield request.done


def crowd(fleet: "Sequence[Device]", requests: Sequence[Request], rate: float, draws: random.Random) -> Steps:
    """Send requests at random times, however many are waiting."""
    for request in requests:
        yield fleet[0].environment.timeout(draws.expovariate(rate))
        sent_to_the_freest(fleet, request)


def sent_to_the_freest(fleet: "Sequence[Device]", request: Request) -> None:
    device = min(fleet, key=lambda one: one.taken)
    request.came = device.environment.now
    device.take(request)


def figures(requests: Sequence[Request], fleet: "Sequence[Device]", now: float) -> Served:
    """Rates from the end of the first requests on, latencies of all others; busy and rows are of the whole time."""
    first = math.floor(WARM * len(requests))
    ended = sorted(requests, key=lambda one: one.last)
    seconds = now - (ended[first - 1].last if first else requests[0].came)
    counted, stepped = requests[first:], math.fsum(device.stepped for device in fleet)
    after = [(one.last - one.first) / (one.length - one.begun) for one in counted if one.length > one.begun]
    return Served(
        tokens_per_second=sum(request.length for request in ended[first:]) / seconds,
        requests_per_second=len(counted) / seconds,
        busy=math.fsum(device.worked for device in fleet) / (len(fleet) * now),
        rows=math.fsum(device.row_seconds for device in fleet) / stepped,
        first_token=percentiles([request.first - request.came for request in counted]),
        per_token=percentiles(after),
        latency=percentiles([request.last - request.came for request in counted]),
    )


def percentiles(values: Sequence[float]) -> tuple[float, ...]:
    """The nearest ranks at `SHARES`; empty without values."""
    ordered = sorted(values)
    return tuple(ordered[math.ceil(share * len(ordered)) - 1] for share in SHARES) if ordered else ()


@dataclass
class Device:
    """A device with its queue; `worked` and `stepped` are its seconds of work and of steps."""

    environment: Environment
    engine: Engine
    draws: random.Random
    waiting: deque[Request] = field(default_factory=deque)
    rows: list[Request] = field(default_factory=list)
    worked: float = 0.0
    stepped: float = 0.0
    row_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.called = self.environment.event()
        self.below = list(accumulate(self.engine.tokens))
        self.environment.process(self._serve())

    @property
    def taken(self) -> int:
        return len(self.waiting) + len(self.rows)

    def take(self, request: Request) -> None:
        self.waiting.append(request)
        if not self.called.triggered:
            self.called.succeed()

    def _serve(self) -> Steps:
        while True:
            if not self.taken:
                self.called = self.environment.event()
                yield self.called
            while self.waiting and len(self.rows) < self.engine.slots:
                request = self.waiting.popleft()
                yield self._for(self.engine.prefill)
                self.rows.append(request)
            seconds = self.engine.step(len(self.rows))
            self.stepped, self.row_seconds = self.stepped + seconds, self.row_seconds + seconds * len(self.rows)
            yield self._for(seconds)
            for request in self.rows:
                self._emit(request)
            self.rows = [request for request in self.rows if request.left > 0]

    def _for(self, seconds: float) -> Event:
        self.worked += seconds
        return self.environment.timeout(seconds)

    def _emit(self, request: Request) -> None:
        """Give a row its tokens of this step."""
        now = self.environment.now
        drawn = bisect_left(self.below, self.draws.random() * self.below[-1]) + 1
        if not request.begun:
            request.first, request.begun = now, min(drawn, request.length)
        request.left -= drawn
        if request.left <= 0:
            request.last = now
            request.done.succeed()
