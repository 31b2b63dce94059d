"""An HTTP client of a model server: its models, one streamed answer at a time, and its counters."""

import json
import math
import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from http import HTTPStatus
from typing import Any

import httpcore2
import httpx2

from specbench.acceptance import Counters, counters_in
from specbench.backends.engines.dialects import UNKNOWN, Answer, Dialect, answer_of
from specbench.errors import ServerError, UsageError
from specbench.wording import clean

KEY = "OPENAI_API_KEY"
PATH = re.compile("[!-~]*")  # of a URL
HOST = re.compile(r"[^%\s]+(%25\w+)?")  # of a URL, with the scope of an IPv6 address
STALL = 60.0  # seconds without new data after which a request is given up
SLOWEST = 10.0  # maximum seconds per token: an answer may take this for each of its tokens, plus STALL
PAGE_SECONDS = 10.0  # of /v1/models and /metrics
DRAIN = 2.0  # seconds for the last requests to leave a server's counters of requests under way
LONGEST = 1 << 20  # bytes of one line of a stream
PAGE = 4 << 20  # bytes of /v1/models or /metrics
POST_SECONDS, POSTED = 600.0, 256 << 20  # of an answer that is not streamed: log-probabilities of a prompt are long
REFUSED = "leave out what it refuses; a model without a chat template needs --endpoint completions"
ADVICE = {400: REFUSED, 404: "see which models it serves (/v1/models)", 422: REFUSED, 429: "lower --batch"}
EVENT = 4 << 10  # bytes of a stream per token: many times what engines send


class BeyondError(OSError):
    """An answer exceeded a limit of time or size; the message names the limit."""


class Watch:
    """One answer that is read within limits, and can be aborted by another thread.

    total, size: seconds and bytes of all, headers included; stall: seconds without new data.
    """

    def __init__(self, total: float, size: int, stall: float = math.inf) -> None:
        self.total, self.size, self.stall = total, size, stall
        self.ends, self.left = time.monotonic() + total, size
        self.stream: httpcore2.NetworkStream | None = None
        self.over = False
        self.heard()

    def heard(self) -> None:
        """Record that a piece of the answer has arrived."""
        self.stalls = time.monotonic() + self.stall

    def seconds(self, stream: httpcore2.NetworkStream) -> float:
        """The time that is left for the next part, on this connection: data that has already arrived is still read."""
        self.stream = stream
        if self.over:
            raise ConnectionAbortedError("the answer is no longer needed")
        return max(min(self.ends, self.stalls) - time.monotonic(), 1e-6)

    def late(self) -> BeyondError:
        """The error of an answer whose time is over."""
        if self.stalls < self.ends:
            return BeyondError(f"the server has been silent for {self.stall:g} seconds")
        return BeyondError(f"the server has not ended its answer in {self.total:g} seconds")

    def hang_up(self) -> None:
        """Abort the answer for whichever thread reads it."""
        self.over = True
        if self.stream is not None:
            with suppress(OSError):
                socket.socket.shutdown(self.stream.get_extra_info("socket"), socket.SHUT_RDWR)


WATCH: ContextVar[Watch] = ContextVar("watch")  # of the answer that this thread reads


class Watched(httpcore2.NetworkStream):
    """A connection whose bytes are counted, headers included, by the watch of the answer that is read."""

    def __init__(self, stream: httpcore2.NetworkStream) -> None:
        self.stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        watch = WATCH.get()
        try:
            found = self.stream.read(max_bytes, watch.seconds(self.stream))
        except httpcore2.ReadTimeout:
            raise watch.late() from None
        watch.left -= len(found)
        if watch.left < 0:
            raise BeyondError(f"the server's answer is longer than {watch.size} bytes")
        return found

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        watch = WATCH.get()
        try:
            self.stream.write(buffer, watch.seconds(self.stream))
        except httpcore2.WriteTimeout:
            raise watch.late() from None

    def close(self) -> None:
        self.stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        return Watched(self.stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self.stream.get_extra_info(info)


class Network(httpcore2.SyncBackend):
    """Connections that are watched."""

    def connect_tcp(self, host: str, *where: Any, **how: Any) -> httpcore2.NetworkStream:
        return Watched(super().connect_tcp(host.replace("%25", "%"), *where, **how))  # the scope of an IPv6 address


@cache
def connections(own: bool = False) -> httpx2.Client:
    """The client of this process: proxies and certificates as the environment names them, but none for a server of
    ours. Every request has a connection of its own, so that none waits for another or meets a closed one.

    httpx2 comes with huggingface_hub, and has TLS, proxies and server-sent events. Its timeouts are for single reads:
    an answer that drips would never end. So its connections are watched.
    """
    client = httpx2.Client(
        trust_env=not own, limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
        headers={"Accept-Encoding": "identity"},
    )  # fmt: skip
    for transport in (client._transport, *client._mounts.values()):
        if isinstance(transport, httpx2.HTTPTransport):
            transport._pool._network_backend = Network()
    return client


class Lines:
    """Answers under way, which can all be aborted at once when they are no longer needed."""

    def __init__(self) -> None:
        self._open: set[Watch] = set()
        self._over = False

    @contextmanager
    def ask(self, request: httpx2.Request, watch: Watch, client: httpx2.Client) -> Iterator[httpx2.Response]:
        """The start of an answer. Raises OSError or httpx2.HTTPError."""
        watch.over = self._over
        self._open.add(watch)
        before = WATCH.set(watch)
        try:
            with closing(client.send(request, stream=True)) as response:
                if response.headers.get("content-encoding", "identity") != "identity":
                    raise httpx2.DecodingError("a compressed answer, which was not requested", request=request)
                yield response
        finally:
            WATCH.reset(before)
            self._open.discard(watch)

    def hang_up(self) -> None:
        """Abort every open answer, and those that have not begun."""
        self._over = True
        for watch in list(self._open):
            watch.hang_up()


@dataclass(frozen=True)
class Client:
    """A server by its URL, with or without the /v1 at its end. OPENAI_API_KEY, if set, is sent with requests.

    dialect: of its engine. own: whether it was started here. mute: the URLs of servers whose counters timed out; they
    are not queried again.
    """

    url: str
    dialect: Dialect = UNKNOWN
    own: bool = False
    mute: set[str] = field(default_factory=set, compare=False)
    lines: Lines = field(default_factory=Lines, compare=False)

    @property
    def root(self) -> str:
        return self.url.rstrip("/").removesuffix("/v1")

    def models(self) -> list[Mapping[str, Any]]:
        """The models that the server offers. ServerError if there is no server, or not one of completions."""
        status, body = self._read("/v1/models")
        with suppress(ValueError, TypeError, KeyError, RecursionError):
            if status == HTTPStatus.OK:
                return [dict(one) for one in json.loads(body)["data"]]
        raise self._wrong(status, body)

    def ready(self) -> bool:
        """Whether the server says that it can answer."""
        with suppress(ServerError):
            return self._read("/health")[0] == HTTPStatus.OK
        return False

    def page(self, path: str) -> Mapping[str, Any]:
        """A page that is a JSON object; empty if it is missing or something else."""
        with suppress(ServerError, ValueError, RecursionError):
            found = json.loads(self._read(path)[1])
            return found if isinstance(found, Mapping) else {}
        return {}

    def counters(self) -> Counters | None:
        """The server's counters of speculation; None if it has none. ServerError for impossible values."""
        if self.url in self.mute:
            return None
        try:
            status, body = self._read(self.dialect.metrics)
            return counters_in(body) if status == HTTPStatus.OK else None
        except ServerError:
            self.mute.add(self.url)
            return None
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
        watch = Watch(STALL + SLOWEST * most, LONGEST + EVENT * most, STALL)
        body = json.dumps({**request, "stream": True, "stream_options": {"include_usage": True}})
        path = "/v1/chat/completions" if "messages" in request else "/v1/completions"
        began = time.perf_counter()
        with self._answer("POST", path, watch, body) as response:
            streams = response.headers.get("content-type", "").startswith("text/event-stream")
            if response.status_code != HTTPStatus.OK or not streams:
                raise self._wrong(response.status_code, whole(response), response)
            return answer_of(events(response, watch.heard), began, self.url, most)

    def post(self, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        """The status and the JSON of an answer, or its text where it is none. ServerError if there is no answer."""
        with self._answer("POST", path, Watch(POST_SECONDS, POSTED), json.dumps(body)) as response:
            text = whole(response)
            with suppress(ValueError, RecursionError):
                return response.status_code, json.loads(text)
            return response.status_code, text

    def _read(self, path: str) -> tuple[int, str]:
        with self._answer("GET", path, Watch(PAGE_SECONDS, PAGE)) as response:
            return response.status_code, whole(response)

    @contextmanager
    def _answer(self, method: str, path: str, watch: Watch, body: str | None = None) -> Iterator[httpx2.Response]:
        """The start of an answer. ServerError for any failure."""
        headers = {"Content-Type": "application/json"} if body is not None else {}
        if key := api_key():
            headers["Authorization"] = f"Bearer {key}"
        silence = min(watch.total, watch.stall)
        request = httpx2.Request(method, self._place(path), headers=headers, content=body,
                                 extensions={"timeout": httpx2.Timeout(silence).as_dict()})  # fmt: skip
        try:
            with self.lines.ask(request, watch, connections(self.own)) as found:
                yield found
        except (OSError, httpx2.HTTPError) as error:
            raise self._lost(error, silence) from error

    def _place(self, path: str) -> httpx2.URL:
        with suppress(httpx2.InvalidURL, UnicodeError):  # a malformed host or port
            url = httpx2.URL(self.root)
            known = url.scheme in ("http", "https") and (url.port or 1) < 1 << 16 and PATH.fullmatch(url.path)
            if known and HOST.fullmatch(url.host) and url.host.partition("%")[0].encode("idna"):
                return url.copy_with(path=f"{url.path.rstrip('/')}{path}")
        raise UsageError(f"--url {clean(self.url)!r} is not the URL of a server: write it like http://localhost:8000")

    def _lost(self, error: Exception, seconds: float) -> ServerError:
        """The error of a connection that broke or could not be opened."""
        if isinstance(error, BeyondError):
            return ServerError(f"{self.url}: {error}: see the server's log")
        if isinstance(error, httpx2.TimeoutException):
            return ServerError(f"{self.url}: the server has been silent for {seconds:g} seconds: see the server's log")
        said = clean(str(error) or type(error).__name__)
        if isinstance(error, httpx2.ConnectError | httpx2.ProxyError):
            return ServerError(f"{self.url}: no server is there ({said}): start it, or name another --url")
        return ServerError(f"{self.url}: the connection was lost ({said}): see the server's log")

    def _wrong(self, status: int, body: str, response: httpx2.Response | None = None) -> ServerError:
        """The error of an unusable answer."""
        after = response.headers.get("Retry-After") if response else None
        wait = f"; it requests a wait of {clean(after)} seconds" if after else ""
        advice = ADVICE.get(status, "see the server's log")
        return ServerError(f"{self.url}: the server answered {status} ({clean(body, 200)}){wait}: {advice}")


def api_key() -> str:
    """The API key for servers; empty if unset. UsageError, without the key, if no header can carry it."""
    key = os.environ.get(KEY, "").strip()  # a file may add a line end
    if not all("!" <= letter <= "~" for letter in key):
        raise UsageError(f"{KEY} holds a space, a line break or a letter that is not ASCII: set it to the key alone")
    return key


def whole(response: httpx2.Response) -> str:
    """An answer as text; its bounds limit its size."""
    return b"".join(response.iter_raw()).decode(errors="replace")


def events(response: httpx2.Response, heard: Callable[[], None]) -> Iterator[str]:
    """The data of a stream of server-sent events; `heard` is called for each event.

    Named events, such as TensorRT-LLM's trtllm.perf_metrics, are no part of the answer, but for errors.
    """
    for event in httpx2.EventSource(response, max_event_size=None):  # the bounds of the answer limit its size
        if event.event in ("message", "error") and event.data:
            heard()
            yield event.data.strip()
