"""An HTTP client of a model server: its models, one streamed answer at a time, and its counters.

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
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NoReturn
from urllib.parse import urlsplit

from specbench.backends.engines.acceptance import Counters, counters_in
from specbench.backends.engines.dialects import UNKNOWN, Answer, Dialect, answer_of
from specbench.errors import ServerError, UsageError
from specbench.wording import clean

KEY = "OPENAI_API_KEY"
STALL = 60.0  # seconds without new data after which a request is given up
SLOWEST = 10.0  # maximum seconds per token: an answer may take this for each of its tokens, plus STALL
PAGE_SECONDS = 10.0  # of /v1/models and /metrics
DRAIN = 2.0  # seconds for the last requests to leave a server's counters of requests under way
LONGEST = 1 << 20  # bytes of one line of a stream
PAGE = 4 << 20  # bytes of /v1/models or /metrics
ADVICE = {
    400: "it refuses these settings or fields, which the message names",
    404: "see which models it serves (/v1/models)",
    422: "it refuses these settings or fields, which the message names",
    429: "lower --batch",
}
EVENT = 4 << 10  # bytes of a stream per token: many times what engines send


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

    dialect: of its engine. mute: the URLs of servers whose counters timed out; they are not queried again.
    """

    url: str
    dialect: Dialect = UNKNOWN
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
            status, body = self._read(self.dialect.metrics)
        except ServerError:
            self.mute.add(self.url)
            return None
        try:
            return counters_in(body) if status == HTTPStatus.OK else None
        except ValueError as error:
            page = self.dialect.metrics
            raise ServerError(f"{self.url}: its counters ({page}) have {error}: see the server's log") from None

    def drained(self) -> Counters | None:
        """The counters once no request is under way, or as they are after DRAIN seconds."""
        until = time.monotonic() + DRAIN
        while (found := self.counters()) is not None and found.running and time.monotonic() < until:
            time.sleep(0.05)
        return found

    def complete(self, request: Mapping[str, Any]) -> Answer:
        """Stream the answer to messages or to a prompt. ServerError, in one line, for any failure."""
        most = int(request["max_tokens"])
        bounds = Bounds(STALL + SLOWEST * most, LONGEST + EVENT * most, STALL)
        body = json.dumps({**request, "stream": True, "stream_options": {"include_usage": True}})
        began = time.perf_counter()
        path = "/v1/chat/completions" if "messages" in request else "/v1/completions"
        with self._answer("POST", path, bounds, body) as (response, wire):
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
        advice = ADVICE.get(status, "see the server's log")
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
