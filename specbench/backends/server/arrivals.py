"""Requests that are sent at their times, whether or not others have ended: an open load.

Knows times and threads; must not know HTTP, specs or what an answer is. What is late counts: a client that sends the
next request only when it can, and measures from there, hides the very waits that a slow server causes.
"""

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, TypeVar

A = TypeVar("A")


@dataclass(frozen=True)
class Timer:
    """A clock in seconds, and how one waits by it."""

    now: Callable[[], float] = time.perf_counter
    sleep: Callable[[float], None] = time.sleep


WALL = Timer()


@dataclass(frozen=True)
class Sent(Generic[A]):
    """An answer, the seconds between the time of its request and its sending, and whether that waited for a place."""

    answer: A
    late: float
    held: bool


def arrival_times(rate: float, count: int, seed: int) -> list[float]:
    """When so many requests come, in seconds after the first: `rate` a second at random (Poisson). They are equal for
    equal seeds; another rate stretches them."""
    draws = random.Random(seed)
    return [0.0, *accumulate(draws.expovariate(rate) for _ in range(count - 1))]


def sent_at(times: Sequence[float], ask: Callable[[int], A], most: int, timer: Timer = WALL) -> list[Sent[A]]:
    """Send every request at its time, `ask` with its number; where `most` are under way, it waits until one has ended.

    The first that fails ends all: nothing more is sent, and its error is raised.
    """
    began = timer.now()
    asked: list[Future[tuple[A, float]]] = []
    under_way: list[Future[tuple[A, float]]] = []
    held: list[bool] = []

    def begun(number: int) -> tuple[A, float]:
        late = max(timer.now() - began - times[number], 0.0)
        return ask(number), late

    with ThreadPoolExecutor(most) as pool:
        try:
            for number, due in enumerate(times):
                timer.sleep(max(began + due - timer.now(), 0.0))
                under_way = [one for one in under_way if not ended(one)]
                held.append(len(under_way) >= most)
                under_way.append(pool.submit(begun, number))
                asked.append(under_way[-1])
            found = [one.result() for one in asked]
        except BaseException:  # an interrupt as well: what waits for a place would still be sent
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [Sent(answer, late, waited) for (answer, late), waited in zip(found, held, strict=True)]


def ended(request: Future[A]) -> bool:
    """Whether a request has ended. Raises its error, if it ended with one."""
    if not request.done():
        return False
    request.result()
    return True
