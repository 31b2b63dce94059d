"""The course of an audit: every request to both arms, within bounds of time and number, each answer on disk at once."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from threading import Lock
from typing import Any, TypeVar

from specbench.audit.cells import BUILDERS, FIRST, UNDER_LOAD, Answers, Cell, Plan, more_together
from specbench.audit.probes import Ask, Probe, Reply
from specbench.audit.statistics import Scored
from specbench.errors import ServerError

T = TypeVar("T")
EXTRA = 32  # further requests under load at a time
ARMS = ("baseline", "audited")
FLOOR_ANSWERS = 8  # answers of the baseline that its floors are measured on


class OverError(Exception):
    """The audit has used its time."""


@dataclass(frozen=True)
class Bounds:
    """The bounds of an audit: requests to the audited arm, and the time of a clock at which it ends."""

    requests: int | None = None
    until: float | None = None
    clock: Callable[[], float] = time.monotonic

    def check(self) -> None:
        if self.until is not None and self.clock() >= self.until:
            raise OverError


@dataclass(frozen=True)
class Trial:
    """A request, and the answers of both arms."""

    ask: Ask
    baseline: Reply
    audited: Reply


@dataclass
class Course:
    """The answers and scores of an audit; those that are known, from an earlier start, are not requested again.

    keep: writes an entry to the journal. watch: called before every cell with its name.
    """

    baseline: Probe
    audited: Probe
    plan: Plan
    bounds: Bounds = field(default_factory=Bounds)
    known: dict[str, Any] = field(default_factory=dict)
    keep: Callable[[Mapping[str, Any]], None] = lambda entry: None
    watch: Callable[[str], None] = lambda name: None
    agrees: Callable[[Sequence[int], Sequence[int]], list[bool]] | None = None  # of the draft model, along a text
    part: str = ""  # the cell that is tried now
    sent: int = 0  # answers that were requested in this start
    lost: str = ""  # why the baseline gives no scores anymore
    lock: Lock = field(default_factory=Lock)

    def trials(self) -> Iterator[tuple[Cell, list[Trial]]]:
        """All cells with their trials, in order, then further requests under load up to the bound of requests. An
        incomplete cell is the last one."""
        answers: Answers = ()
        sent = 0
        for build in BUILDERS:
            cell = build(self.plan, answers)
            found = self.cell(cell)
            answers = answers or [(one.ask, one.baseline) for one in found if not one.baseline.refused]
            sent += len(found)
            yield cell, found
            if len(found) < len(cell.asks) * cell.passes:
                return
        start = 0
        while self.bounds.requests is not None and sent < self.bounds.requests and answers:
            cell = more_together(self.plan, answers, min(EXTRA, self.bounds.requests - sent), start)
            found = self.cell(cell, start)
            start, sent = start + len(cell.asks), sent + len(found)
            yield cell, found
            if len(found) < len(cell.asks):
                return

    def cell(self, cell: Cell, start: int = 0) -> list[Trial]:
        """The trials of a cell, as many as the bounds allow."""
        found: list[Trial] = []
        self.part = cell.name
        self.watch(cell.name)
        try:
            for number in range(cell.passes):
                prefix = f"{cell.name} {start} {number}"
                if cell.at_once == 1:
                    for at, ask in enumerate(cell.asks):
                        found.append(Trial(ask, *(self.reply(arm, f"{prefix} {at}", ask) for arm in ARMS)))
                else:
                    arms = [self.replies(arm, prefix, cell) for arm in ARMS]
                    found += map(Trial, cell.asks, *arms)
        except OverError:
            pass
        return found

    def replies(self, arm: str, prefix: str, cell: Cell) -> list[Reply]:
        """The answers of one arm, several requests at a time."""
        with ThreadPoolExecutor(cell.at_once) as pool:
            futures = [pool.submit(self.reply, arm, f"{prefix} {at}", ask) for at, ask in enumerate(cell.asks)]
            try:
                return [one.result() for one in futures]
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def reply(self, arm: str, number: str, ask: Ask) -> Reply:
        """One answer, from the journal if it is there."""
        self.bounds.check()
        key = f"{arm} {number} {digest(asdict(ask))}"
        probe = self.baseline if arm == ARMS[0] else self.audited
        with self.lock:
            self.sent += key not in self.known
        return self.once(
            key, lambda: probe.complete(ask), asdict, lambda one: Reply(**one | {"ids": tuple(one["ids"])})
        )

    def score(self, prompt: Sequence[int], output: Sequence[int]) -> list[Scored]:
        """The baseline's scores of an output."""
        key = f"score {digest([list(prompt), list(output)])}"
        if self.lost and key not in self.known:
            raise ServerError(self.lost)
        try:
            return self.once(key, lambda: self.baseline.score(prompt, output), plain, scores_in)
        except ServerError as error:
            self.lost = self.lost or f"{error}, while answers were judged"
            raise

    def drawable(self, ask: Ask, output: Sequence[int], start: int = 0) -> list[Scored]:
        """The baseline's scores of an output from a place on, without tokens that it never draws for this request."""
        found = self.score((*ask.prompt, *output[:start]), output[start:])
        if not ask.fields.get("ignore_eos", True):
            return found
        banned = self.once("banned", self.baseline.banned, sorted, frozenset)
        return [one.without(banned) for one in found]

    def decoded(self, prompt: Sequence[int], new: int, arm: str = ARMS[0]) -> list[Scored]:
        """The greedy answer of an arm with the scores that it gives while it decodes."""
        probe = self.baseline if arm == ARMS[0] else self.audited
        return self.once(
            f"{arm} decoded {new} {digest(list(prompt))}", lambda: probe.decoded(prompt, new), plain, scores_in
        )

    def once(self, key: str, make: Callable[[], T], write: Callable[[T], Any], read: Callable[[Any], T]) -> T:
        """A value that is computed once, over all starts of an audit."""
        if key not in self.known:
            value = write(make())
            with self.lock:
                self.keep({key: value})
            self.known[key] = value
        return read(self.known[key])


def digest(value: Any) -> str:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=8).hexdigest()


def plain(scores: Sequence[Scored]) -> list[Any]:
    """Scores as JSON, with six digits behind the point."""
    return [[one.token, [[token, round(value, 6)] for token, value in one.top]] for one in scores]


def scores_in(found: Sequence[Any]) -> list[Scored]:
    return [Scored(token, tuple((int(known), float(value)) for known, value in top)) for token, top in found]


# --- floors -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Floors:
    """How far the baseline differs from itself.

    nats: the largest difference of a log-probability of its five best tokens between one row at a time and many, over
    `positions`. leads: differences of the lead of the best token between the two. again: answers that changed when they
    were requested again, of `repeated`. load, loaded: the same between two passes under load.
    """

    nats: float = 0.0
    positions: int = 0
    leads: tuple[float, ...] = ()
    again: int = 0
    repeated: int = 0
    load: int = 0
    loaded: int = 0

    @property
    def limit(self) -> float:
        """The largest gap that rounding can close: each of two log-probabilities is off by up to `nats`."""
        return 2 * self.nats


FIVE = 5
SMALLEST = 1e-6  # nats, below the resolution of float32


def floors_of(course: Course, trials: Sequence[tuple[Cell, Sequence[Trial]]]) -> Floors:
    """The floors, with the answers of the first cell and those under load."""
    first = [one for cell, found in trials if cell.name == FIRST for one in found if one.baseline.ids][:FLOOR_ANSWERS]
    apart, leads, again = [SMALLEST], list[float](), 0
    for trial in first if course.baseline.scores else []:
        one = course.decoded(trial.ask.prompt, trial.ask.new)
        ids = [scored.token for scored in one]
        again += tuple(ids) != trial.baseline.ids[: len(ids)]
        for narrow, wide in zip(one, course.score(trial.ask.prompt, ids), strict=True):
            both = [(value, other) for token, value in narrow.top[:FIVE] if (other := wide.of(token)) is not None]
            apart += [abs(value - other) for value, other in both]
            leads.append(narrow.lead - wide.lead)
    loaded = next((found for cell, found in trials if cell.name == UNDER_LOAD and cell.passes > 1), ())
    half = len(loaded) // 2
    changed = sum(a.baseline.ids != b.baseline.ids for a, b in zip(loaded[:half], loaded[half:], strict=False))
    return Floors(max(apart), len(leads), tuple(leads), again, len(first) if leads else 0, changed, half)
