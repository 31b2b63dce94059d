"""An HTTP client of a completions server: its models, one streamed completion at a time, and its counters.

It uses only the standard library: client packages rename their functions from version to version.
"""

import http.client
import io
import json
import math
import os
import re
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import zip_longest
from typing import Any, NoReturn
from urllib.parse import urlsplit

from specbench.errors import ServerError, UsageError
from specbench.wording import clean

KEY = "OPENAI_API_KEY"
STALL = 60.0  # seconds without new data after which a request is given up
SLOWEST = 10.0  # maximum seconds per token: an answer may take this for each of its tokens, plus STALL
PAGE_SECONDS = 10.0  # of /v1/models and /metrics
LONGEST = 1 << 20  # bytes of one line of a stream
PAGE = 4 << 20  # bytes of /v1/models or /metrics
EVENT = 4 << 10  # bytes of a stream per token: many times what engines send
SPARE = 16  # events beyond the tokens: the end of a text may be a separate event
WIDEST = 1024  # maximum tokens of a draft: more than any engine drafts per round
COUNTER = re.compile(
    r"^\w+?:spec_decode_num_(?P<name>drafts|draft_tokens|accepted_tokens(?:_per_pos)?)(?:_total)?"
    r"(?:\{(?P<labels>[^}\n]*)\})? +(?P<value>\S+)",
    re.MULTILINE,
)
POSITION = re.compile(r'position="(\d+)"')


@dataclass(frozen=True)
class Answer:
    """A completion: its text and tokens, the seconds from the request to each piece, and the server's own timings
    (`timings` of llama.cpp). held: seconds of these spent waiting for a free slot; None if it did not wait."""

    text: str
    tokens: int
    arrived: tuple[float, ...]
    timings: Mapping[str, Any] = field(default_factory=dict)
    held: float | None = None


@dataclass(frozen=True)
class Counters:
    """Totals of a server since its start: rounds, drafted and accepted tokens, and accepted ones by position."""

    drafts: int
    drafted: int
    accepted: int
    by_position: tuple[int, ...] = ()

    def since(self, before: "Counters") -> "Counters":
        """The difference to an earlier reading; below 0 if the server was restarted in between."""
        places = tuple(a - b for a, b in zip_longest(self.by_position, before.by_position, fillvalue=0))
        return Counters(
            self.drafts - before.drafts, self.drafted - before.drafted, self.accepted - before.accepted, places
        )


class BeyondError(OSError):
    """An answer exceeded a limit of time or size; the message names the limit."""


@dataclass(frozen=True)
class Bounds:
    """The limits of one answer: total seconds and bytes, headers included, and seconds without new data."""

    seconds: float
    size: int
    stall: float = math.inf


class Wire(io.RawIOBase):
    """A connection whose answer is read within bounds. Raises BeyondError.

    http.client reads status, headers and chunks itself: this object replaces its socket, so that every byte is counted.
    """

    def __init__(self, connection: socket.socket, bounds: Bounds) -> None:
        self.connection, self.bounds = connection, bounds
        self.ends, self.left = time.monotonic() + bounds.seconds, bounds.size
        self.heard()

    def heard(self) -> None:
        """Record that a piece of the answer has arrived."""
        self.stalls = time.monotonic() + self.bounds.stall

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(self)

    def sendall(self, data: bytes) -> None:
        self.connection.sendall(data)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = min(self.ends, self.stalls) - time.monotonic()
        self.connection.settimeout(max(left, 1e-6))  # data that has already arrived is still read
        try:
            found = self.connection.recv_into(buffer)
        except TimeoutError:
            if self.stalls < self.ends:
                raise BeyondError(f"the server has been silent for {self.bounds.stall:g} seconds") from None
            raise BeyondError(f"the server has not ended its answer in {self.bounds.seconds:g} seconds") from None
        self.left -= found
        if self.left < 0:
            raise BeyondError(f"the server's answer is longer than {self.bounds.size} bytes")
        return found

    def close(self) -> None:
        """Do nothing: http.client closes its socket before it reads the answer. `Lines` ends the connection."""

    def hang_up(self) -> None:
        """Abort the answer for whichever thread reads it."""
        with suppress(OSError):
            socket.socket.shutdown(self.connection, socket.SHUT_RDWR)


class Lines:
    """Open connections, which can all be aborted at once when their answers are no longer needed."""

    def __init__(self) -> None:
        self._open: set[Wire] = set()
        self._over = False

    @contextmanager
    def open(self, connection: http.client.HTTPConnection, bounds: Bounds) -> Iterator[Wire]:
        """Connect for one answer. Raises OSError."""
        with ExitStack() as ends:
            ends.callback(connection.close)
            connection.connect()
            connection.sock = wire = Wire(ends.enter_context(connection.sock), bounds)
            ends.callback(self._open.discard, wire)
            self._open.add(wire)
            if self._over:
                wire.hang_up()
            yield wire

    def hang_up(self) -> None:
        """Abort every open answer, and those that have not begun."""
        self._over = True
        for wire in list(self._open):
            wire.hang_up()


@dataclass(frozen=True)
class Client:
    """A server by its URL, with or without the /v1 at its end. OPENAI_API_KEY, if set, is sent with requests.

    mute: the URLs of servers whose counters timed out; they are not queried again.
    """

    url: str
    mute: set[str] = field(default_factory=set, compare=False)
    lines: Lines = field(default_factory=Lines, compare=False)

    @property
    def root(self) -> str:
        return self.url.rstrip("/").removesuffix("/v1")

    def models(self) -> list[Mapping[str, Any]]:
        """The models that the server offers. ServerError if there is no server, or not one of completions."""
        status, body = self._read("/v1/models")
        if status != HTTPStatus.OK:
            self._wrong(status, body)
        try:
            return [dict(one) for one in json.loads(body)["data"]]
        except (ValueError, TypeError, KeyError, RecursionError):
            self._wrong(status, body)

    def counters(self) -> Counters | None:
        """The server's counters of speculation; None if it has none. ServerError for impossible values."""
        if self.url in self.mute:
            return None
        try:
            status, body = self._read("/metrics")
        except ServerError:
            self.mute.add(self.url)
            return None
        try:
            return counters_in(body) if status == HTTPStatus.OK else None
        except ValueError as error:
            raise ServerError(f"{self.url}: its counters (/metrics) have {error}: see the server's log") from None

    def complete(self, request: Mapping[str, Any]) -> Answer:
        """Stream one completion. ServerError, in one line, for any failure."""
        most = int(request["max_tokens"])
        bounds = Bounds(STALL + SLOWEST * most, LONGEST + EVENT * most, STALL)
        body = json.dumps({**request, "stream": True, "stream_options": {"include_usage": True}})
        began = time.perf_counter()
        with self._answer("POST", "/v1/completions", bounds, body) as (response, wire):
            if response.status != HTTPStatus.OK:
                self._wrong(response.status, response.read(LONGEST).decode(errors="replace"), response)
            return answer_of(events(response, wire.heard), began, self.url, most)

    def _read(self, path: str) -> tuple[int, str]:
        with self._answer("GET", path, Bounds(PAGE_SECONDS, PAGE)) as (response, _):
            return response.status, response.read(PAGE).decode(errors="replace")

    @contextmanager
    def _answer(
        self, method: str, path: str, bounds: Bounds, body: str | None = None
    ) -> Iterator[tuple[http.client.HTTPResponse, Wire]]:
        """The start of an answer. ServerError for any failure."""
        silence = min(bounds.seconds, bounds.stall)
        connection = self._connect(silence)
        try:
            with self.lines.open(connection, bounds) as wire:
                response = self._ask(connection, method, path, body)
                try:
                    yield response, wire
                except (OverflowError, ValueError) as error:  # malformed or oversized chunk lengths
                    raise self._lost(error, silence) from error
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(error, silence) from error

    def _connect(self, seconds: float) -> http.client.HTTPConnection:
        kinds: dict[str, tuple[type[http.client.HTTPConnection], int]] = {
            "http": (http.client.HTTPConnection, http.client.HTTP_PORT),
            "https": (http.client.HTTPSConnection, http.client.HTTPS_PORT),
        }
        try:
            parts = urlsplit(self.root)
            kind, port = kinds[parts.scheme]
            host = (parts.hostname or "").replace("%25", "%")  # the scope separator of an IPv6 address
            if not host.encode("idna") or not re.fullmatch("[!-~]*", parts.path):
                raise ValueError
            return kind(host, port if parts.port is None else parts.port, timeout=seconds)
        except (ValueError, KeyError, http.client.InvalidURL):  # malformed host or port
            wrong = f"--url {clean(self.url)!r} is not the URL of a server: write it like http://localhost:8000"
            raise UsageError(wrong) from None

    def _ask(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: str | None = None
    ) -> http.client.HTTPResponse:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if key := api_key():
            headers["Authorization"] = f"Bearer {key}"
        connection.request(method, urlsplit(self.root).path + path, body, headers)
        return connection.getresponse()

    def _lost(self, error: Exception, seconds: float) -> ServerError:
        """The error of a connection that broke or could not be opened."""
        if isinstance(error, BeyondError):
            return ServerError(f"{self.url}: {error}: see the server's log")
        if isinstance(error, TimeoutError):
            return ServerError(f"{self.url}: the server has been silent for {seconds:g} seconds: see the server's log")
        said = clean(str(error) or type(error).__name__)
        if isinstance(error, ConnectionRefusedError | socket.gaierror):
            return ServerError(f"{self.url}: no server is there ({said}): start it, or name another --url")
        return ServerError(f"{self.url}: the connection was lost ({said}): see the server's log")

    def _wrong(self, status: int, body: str, response: http.client.HTTPResponse | None = None) -> NoReturn:
        """Raise ServerError for an unusable answer."""
        after = response.getheader("Retry-After") if response else None
        wait = f"; it requests a wait of {clean(after)} seconds" if after else ""
        advice = {429: "lower --batch", 404: "see which models it serves (/v1/models)"}.get(
            status, "see the server's log"
        )
        raise ServerError(f"{self.url}: the server answered {status} ({clean(body, 200)}){wait}: {advice}")


def api_key() -> str:
    """The API key for servers; empty if unset. UsageError, without the key, if no header can carry it."""
    key = os.environ.get(KEY, "").strip()  # a file may add a line end
    if not all("!" <= letter <= "~" for letter in key):
        raise UsageError(f"{KEY} holds a space, a line break or a letter that is not ASCII: set it to the key alone")
    return key


def events(response: http.client.HTTPResponse, heard: Callable[[], None]) -> Iterator[str]:
    """The data of a stream of server-sent events; `heard` is called for each event."""
    while line := response.readline(LONGEST):
        text = line.decode(errors="replace").strip()
        if text.startswith("data:"):
            heard()
            yield text.removeprefix("data:").strip()


def answer_of(stream: Iterator[str], began: float, url: str, most: int) -> Answer:
    """The complete answer from a stream of at most `most` tokens. ServerError if it is cut off,
    has more, or is not a completion."""
    pieces: list[str] = []
    arrived: list[float] = []
    usage: Any = None
    timings: Any = None
    for data in stream:
        now = time.perf_counter() - began
        if data == "[DONE]":
            break
        text, *totals = event_of(data, url)
        usage, timings = totals[0] or usage, totals[1] or timings
        if text:
            pieces.append(text)
            arrived.append(now)
        if len(pieces) > most + SPARE:
            raise ServerError(f"{url}: the stream has more pieces than --max-new-tokens {most}: see the server's log")
    else:
        raise ServerError(f"{url}: the stream broke off after {len(pieces)} pieces: see the server's log")
    tokens = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
    if tokens is None or not arrived:
        raise ServerError(f"{url}: the stream ended without text or the number of its tokens (usage)")
    if type(tokens) is not int or not 0 < tokens <= most:
        raise ServerError(f"{url}: the server counts {clean(tokens)} tokens (usage) with --max-new-tokens {most}")
    return Answer("".join(pieces), tokens, tuple(arrived), timings if isinstance(timings, Mapping) else {})


def event_of(data: str, url: str) -> tuple[str, Any, Any]:
    """The text, `usage` and `timings` of an event. ServerError if it is an error, or not part of a completion."""
    try:
        event = json.loads(data)
        text = "".join(choice.get("text") or "" for choice in event.get("choices", ()))
        failed = clean(event["error"], 200) if "error" in event else None
        totals = event.get("usage"), event.get("timings")
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise ServerError(
            f"{url}: the stream holds {clean(data)!r}, which is not a completion: is this another API?"
        ) from None
    if failed is not None:
        raise ServerError(f"{url}: the server ended the stream: {failed}")
    return text, *totals


def counters_in(text: str) -> Counters | None:
    """The speculation counters in Prometheus text; vLLM and llama.cpp use the same names.
    ValueError, naming the counter, for an impossible value."""
    totals: Counter[str] = Counter()
    places: Counter[int] = Counter()
    for found in COUNTER.finditer(text):
        value = count_in(found["value"], math.inf)
        position = POSITION.search(found["labels"] or "")
        if position and found["name"] == "accepted_tokens_per_pos":
            places[count_in(position[1], WIDEST)] += value
        else:
            totals[found["name"]] += value
    if "drafts" not in totals:
        return None
    by_position = tuple(places[i] for i in range(max(places, default=-1) + 1))
    return Counters(totals["drafts"], totals["draft_tokens"], totals["accepted_tokens"], by_position)


def count_in(text: str, end: float) -> int:
    """A whole number below `end`, which may be written as 16.0. ValueError for anything else."""
    try:
        value = float(text)
        if 0 <= value < end and value.is_integer():
            return int(value)
    except ValueError:
        pass
    raise ValueError(f"{clean(text)!r} instead of a count")
