"""A server of completions over HTTP: its models, one streamed completion at a time, and its counters.

Knows OpenAI's API and what vLLM and llama.cpp add to it; must not know specs or rounds. Nothing but the standard
library: the clients that come with other packages change their names from version to version.
"""

import http.client
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NoReturn
from urllib.parse import urlsplit

from specbench.errors import ServerError, UsageError
from specbench.wording import clean

KEY = "OPENAI_API_KEY"
STALL = 60.0  # seconds without a byte after which a server is given up
LONGEST = 1 << 20  # bytes of one line of a stream
COUNTER = re.compile(
    r"^\w+?:spec_decode_num_(?P<name>\w+?)(?:_total)?(?:\{(?P<labels>[^}]*)\})? (?P<value>[0-9.eE+]+)$", re.MULTILINE
)
POSITION = re.compile(r'position="(\d+)"')


@dataclass(frozen=True)
class Answer:
    """A completion: its text and tokens, the seconds from the request to each piece of it, and what the server says of
    its own time (`timings` of llama.cpp). held: seconds of these in which the request waited for a place, None where it
    had one at once."""

    text: str
    tokens: int
    arrived: tuple[float, ...]
    timings: Mapping[str, Any] = field(default_factory=dict)
    held: float | None = None


@dataclass(frozen=True)
class Counters:
    """What a server has drafted since it began: rounds, drafted and accepted tokens, and accepted ones by position."""

    drafts: int
    drafted: int
    accepted: int
    by_position: tuple[int, ...] = ()

    def since(self, before: "Counters") -> "Counters":
        old = (*before.by_position, *[0] * (len(self.by_position) - len(before.by_position)))
        places = tuple(a - b for a, b in zip(self.by_position, old, strict=True))
        return Counters(
            self.drafts - before.drafts, self.drafted - before.drafted, self.accepted - before.accepted, places
        )


@dataclass(frozen=True)
class Client:
    """A server by its URL, with or without the /v1 at its end. OPENAI_API_KEY, where it is set, goes with requests."""

    url: str

    @property
    def root(self) -> str:
        return self.url.rstrip("/").removesuffix("/v1")

    def models(self) -> list[Mapping[str, Any]]:
        """What the server serves. ServerError where there is no server, or it is another kind of one."""
        status, body = self._read("GET", "/v1/models")
        if status != HTTPStatus.OK:
            self._wrong(status, body)
        try:
            return [dict(one) for one in json.loads(body)["data"]]
        except (ValueError, TypeError, KeyError):
            self._wrong(status, body)

    def counters(self) -> Counters | None:
        """Its counters of speculation; None where it has none."""
        try:
            status, body = self._read("GET", "/metrics")
        except ServerError:
            return None
        return counters_in(body) if status == HTTPStatus.OK else None

    def complete(self, request: Mapping[str, Any]) -> Answer:
        """Stream one completion. ServerError, in one line, for whatever else a server does."""
        body = json.dumps({**request, "stream": True, "stream_options": {"include_usage": True}})
        began = time.perf_counter()
        connection = self._connect()
        try:
            response = self._ask(connection, "POST", "/v1/completions", body)
            if response.status != HTTPStatus.OK:
                self._wrong(response.status, response.read(LONGEST).decode(errors="replace"), response)
            return answer_of(events(response), began, self.url)
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(error) from error
        finally:
            connection.close()

    def _read(self, method: str, path: str) -> tuple[int, str]:
        connection = self._connect()
        try:
            response = self._ask(connection, method, path)
            return response.status, response.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise self._lost(error) from error
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        kinds: dict[str, type[http.client.HTTPConnection]] = {
            "http": http.client.HTTPConnection,
            "https": http.client.HTTPSConnection,
        }
        wrong = UsageError(f"--url {clean(self.url)!r} is no URL of a server: write http://localhost:8000")
        try:
            parts = urlsplit(self.root)
            port = parts.port
        except ValueError:  # brackets or a port that are none
            raise wrong from None
        if parts.scheme not in kinds or not parts.hostname:
            raise wrong
        return kinds[parts.scheme](parts.hostname, port, timeout=STALL)

    def _ask(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: str | None = None
    ) -> http.client.HTTPResponse:
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if key := api_key():
            headers["Authorization"] = f"Bearer {key}"
        connection.request(method, urlsplit(self.root).path + path, body, headers)
        return connection.getresponse()

    def _lost(self, error: Exception) -> ServerError:
        """What a connection that broke, or never was, says."""
        if isinstance(error, TimeoutError):
            return ServerError(f"{self.url}: the server has been silent for {STALL:g} seconds: see what it logs")
        said = clean(str(error) or type(error).__name__)
        if isinstance(error, ConnectionRefusedError):
            return ServerError(f"{self.url}: no server is there ({said}): start it, or name another --url")
        return ServerError(f"{self.url}: the connection was lost ({said}): see what the server logs")

    def _wrong(self, status: int, body: str, response: http.client.HTTPResponse | None = None) -> NoReturn:
        """ServerError for an answer that is none."""
        after = response.getheader("Retry-After") if response else None
        wait = f"; it asks to wait for {clean(after)} seconds" if after else ""
        advice = {429: "lower --batch", 404: "see which models it serves (/v1/models)"}.get(status, "see what it logs")
        raise ServerError(f"{self.url}: the server answered {status} ({clean(body, 200)}){wait}: {advice}")


def api_key() -> str:
    """The key of servers; empty where none is set. UsageError, without the key, for one that no header can carry."""
    key = os.environ.get(KEY, "").strip()  # a line end, as a file has it, is no part of a header
    if not all("!" <= letter <= "~" for letter in key):
        raise UsageError(f"{KEY} holds a space, a line break or a letter that is not ASCII: set it to the key alone")
    return key


def events(response: http.client.HTTPResponse) -> Iterator[str]:
    """The data of a stream of server-sent events, one after the other."""
    while line := response.readline(LONGEST):
        text = line.decode(errors="replace").strip()
        if text.startswith("data:"):
            yield text.removeprefix("data:").strip()


def answer_of(stream: Iterator[str], began: float, url: str) -> Answer:
    """What a stream gave, in full: one that is cut off or no completion is a ServerError."""
    pieces: list[str] = []
    arrived: list[float] = []
    usage: Any = None
    timings: Any = None
    for data in stream:
        now = time.perf_counter() - began
        if data == "[DONE]":
            break
        try:
            event = json.loads(data)
            text = "".join(choice.get("text") or "" for choice in event.get("choices", ()))
            usage, timings = event.get("usage") or usage, event.get("timings") or timings
        except (ValueError, TypeError, AttributeError):
            raise ServerError(
                f"{url}: the stream holds {clean(data)!r}, which is no completion: another API?"
            ) from None
        if "error" in event:
            raise ServerError(f"{url}: the server ended the stream: {clean(event['error'], 200)}")
        if text:
            pieces.append(text)
            arrived.append(now)
    else:
        raise ServerError(f"{url}: the stream broke off after {len(pieces)} pieces: see what the server logs")
    tokens = usage.get("completion_tokens") if isinstance(usage, Mapping) else None
    if not isinstance(tokens, int) or not arrived:
        raise ServerError(f"{url}: the stream ended without text or the number of its tokens (usage)")
    return Answer("".join(pieces), tokens, tuple(arrived), timings if isinstance(timings, Mapping) else {})


def counters_in(text: str) -> Counters | None:
    """The counters of speculation in what Prometheus reads; the same names in vLLM and llama.cpp."""
    totals: dict[str, int] = {}
    places: dict[int, int] = {}
    for found in COUNTER.finditer(text):
        value = int(float(found["value"]))
        position = POSITION.search(found["labels"] or "")
        if position and found["name"] == "accepted_tokens_per_pos":
            places[int(position[1])] = places.get(int(position[1]), 0) + value
        else:
            totals[found["name"]] = totals.get(found["name"], 0) + value
    if "drafts" not in totals:
        return None
    by_position = tuple(places.get(i, 0) for i in range(max(places, default=-1) + 1))
    return Counters(totals["drafts"], totals.get("draft_tokens", 0), totals.get("accepted_tokens", 0), by_position)
