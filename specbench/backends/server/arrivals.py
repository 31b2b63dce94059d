"""Requests that are sent at their times, whether or not others have ended: an open load.

Knows times and threads; must not know HTTP, specs or what an answer is. What is late counts: a client that sends the
next request only when it can, and measures from there, hides the very waits that a slow server causes.
"""

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass
from itertools import accumulate
from queue import SimpleQueue
from threading import Thread
from typing import Generic, TypeVar

A = TypeVar("A")
GRACE = 1.0  # seconds in which requests end that were hung up


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


def sent_at(
    times: Sequence[float],
    ask: Callable[[int], A],
    most: int,
    timer: Timer = WALL,
    hang_up: Callable[[], None] = lambda: None,
) -> list[Sent[A]]:
    """Send every request at its time, `ask` with its number; where `most` are under way, it waits until one has ended.

    The first that fails ends all: nothing more is sent, `hang_up` ends those under way, and its error is raised. So
    does an interrupt.
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
    except BaseException:  # an interrupt as well: what waits for a place would still be sent
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
