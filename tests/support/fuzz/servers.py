"""Servers on this machine that answer as no server should: an honest answer, spoilt on its way out.

Knows HTTP byte by byte, OpenAI's completions and the hub; must not know who asks. A server is a process of its own, as
a process with threads cannot be forked safely.
"""

import http.client
import json
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from tests.support.fuzz import changes
from tests.support.hub import Hub, Repo

OK = b"HTTP/1.1 200 OK\r\n"
STREAM = OK + b"Content-Type: text/event-stream\r\n\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
EVENT = b'data: {"choices": [{"text": "a"}]}\n\n'
ENDLESS = (  # how an answer begins, and what then comes for ever
    (b"", b"HTTP/1.1 100 Continue\r\n\r\n"), (OK, b"X-Name: value\r\n"), (OK + b"X-Name: ", b"a"), (OK + b"\r\n", b"x"),
    (OK + b"\r\n", b" "), (OK + b"\r\n[", b"1,"), (OK + b"Content-Length: 1125899906842624\r\n\r\n", b"{"),
    (CHUNKED, b"1\r\nx\r\n"), (STREAM, b": ping\n\n"), (STREAM + b"data: ", b"a"), (STREAM, EVENT),
    (STREAM, EVENT.replace(b"a", b"a" * 100_000)), (OK + b"\r\n", b'vllm:spec_decode_num_drafts_total{a="'),
)  # fmt: skip
NESTED = (b"[" * 100_000, b'{"a":' * 100_000, b'{"data": ' + b"[" * 100_000, b'data: {"choices": ' + b"[" * 100_000)
LENGTHS = (b"-5", b"0", b"1", b"99999999", b"9" * 23, b"x", b"1e3", b"5\r\nContent-Length: 7")
CHUNKS = (b"-5", b"f" * 30, b"0", b"x", b"", b"7fffffff")
STATUS = (301, 302, 307, 400, 401, 403, 404, 429, 500, 503, 0, 999)
NUMBERS: tuple[Any, ...] = (0, 1, -1, 3, 5, 10**6, 10**12, 10**400, -(10**12), 2.5, 1e308, True, None, "12", [], {})
COUNTS = ("0", "3", "9", "16.0", "1e15", "1e308", "1e999", "-3", "nan", "1.2.3", "e+e", "9" * 5000, "")
PLACES = ("0", "1", "2", "1023", "1024", "99999999999", "9" * 5000, "-1", "x")
KEY = b"@KEY@"  # stands for the key that a request came with


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


Reply = Callable[[Request], Iterable[bytes]]
Honest = Callable[[Request], tuple[bytes, bytes]]  # the head and the body of an answer
Way = Callable[[bytes, bytes], Iterable[bytes]]  # what is made of them


@contextmanager
def serving(listener: socket.socket, reply: Reply) -> Iterator[None]:
    """Answer whoever connects, meanwhile."""
    parent = os.getpid()
    child = os.fork()
    if not child:
        try:
            answer_all(listener, reply, parent)
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def answer_all(listener: socket.socket, reply: Reply, parent: int) -> None:
    """Until the process is killed, or that which began it has ended."""
    listener.settimeout(1.0)
    while os.getppid() == parent:
        with suppress(TimeoutError):
            connection, _ = listener.accept()
            threading.Thread(target=answer, args=(connection, reply), daemon=True).start()


def answer(connection: socket.socket, reply: Reply) -> None:
    """One request of a connection, which is closed then."""
    with suppress(OSError, ValueError), connection, connection.makefile("rb") as lines:
        method, path, _ = lines.readline(1 << 16).decode("latin-1").split(" ", 2)
        headers = cast(Mapping[str, str], http.client.parse_headers(lines))
        body = lines.read(int(headers.get("Content-Length") or 0))
        for part in reply(Request(method, path, headers, body)):
            connection.sendall(part)


def spoilt(honest: Honest, way: Way, path: str, after: int) -> Reply:
    """Honest answers, but for those to requests of a path (a part of it) from the `after`-th on."""
    seen = count()

    def reply(asked: Request) -> Iterable[bytes]:
        head, body = honest(asked)
        chosen = way if path in asked.path and next(seen) >= after else plain
        key = asked.headers.get("Authorization", "").encode("latin-1", "replace")
        parts = chosen(head, b"" if asked.method == "HEAD" else body)
        return (part.replace(KEY, key) for part in parts)

    return reply


def watched(reply: Reply, wrong: Callable[[Request], bool], mark: Path) -> Reply:
    """The same, leaving a file where a request is wrong: it brings a key to a server that must not have it."""

    def watching(asked: Request) -> Iterable[bytes]:
        if "Authorization" in asked.headers and wrong(asked):
            mark.touch()
        return reply(asked)

    return watching


# --- what is made of an answer ----------------------------------------------------------------------------------------


def plain(head: bytes, body: bytes) -> Iterable[bytes]:
    """The answer as it is."""
    return [head + body]


def endless(first: bytes, part: bytes, seconds: float) -> Iterator[bytes]:
    """Something for ever: slowly, or as fast as it goes."""
    yield first
    while True:
        time.sleep(seconds)
        yield part if seconds else part * (1 + (1 << 16) // len(part))


def dripping(content: bytes, seconds: float) -> Iterator[bytes]:
    """A byte at a time."""
    for at in range(len(content)):
        yield content[at : at + 1]
        time.sleep(seconds)


def way_of(chance: random.Random, url: str) -> Way:
    """A way to spoil an answer."""
    at, pace = chance.randrange(60), chance.choice([0.0, 0.0, 0.02, 0.4])
    first, part = chance.choice(ENDLESS)
    length, chunk, nested, status = map(chance.choice, (LENGTHS, CHUNKS, NESTED, STATUS))
    to = chance.choice([url, f"{url}/x", url.replace("127.0.0.1", "localhost"), "file:///etc/passwd", "http://[", ""])
    said = json.dumps({"error": {"message": f"wrong key {KEY.decode()}: {changes.text(chance)}"}}).encode()
    refusal = f"HTTP/1.1 {status} no\r\nLocation: {to}\r\nRetry-After: 1\r\n\r\n".encode()
    damaged = random.Random(chance.random())
    ways: list[Way] = [
        *[lambda head, body: endless(first, part, pace)] * 6,
        lambda head, body: endless((head + body)[:at], b"", 1.0),  # silent, at once or soon
        lambda head, body: dripping(head + body, pace or 1.0),
        lambda head, body: [(head + body)[:at]],
        lambda head, body: [head + body[:at]],
        lambda head, body: [OK + b"Content-Length: " + length + b"\r\n\r\n" + body],
        lambda head, body: [CHUNKED + chunk + b"\r\n" + body],
        lambda head, body: [OK + b"\r\n" + nested],
        lambda head, body: [OK + b"\r\n" + changes.spoilt(damaged, body)],
        lambda head, body: [refusal + said],
        lambda head, body: [refusal + said],
    ]
    return chance.choice(ways)


# --- honest answers ---------------------------------------------------------------------------------------------------


def completions(says: Mapping[str, Any], counters: Sequence[str]) -> Honest:
    """OpenAI's API. says: more of the last event of an answer; counters: pages of /metrics, the last one for ever."""
    pages = iter(counters)

    def honest(asked: Request) -> tuple[bytes, bytes]:
        if asked.method == "GET":
            models = json.dumps({"data": [{"id": "tiny"}]})
            return OK + b"\r\n", (next(pages, counters[-1]) if asked.path.endswith("/metrics") else models).encode()
        new = json.loads(asked.body)["max_tokens"]
        end = json.dumps({"choices": [], "usage": {"completion_tokens": new}, **says}).encode()
        return STREAM, EVENT * new + b"data: " + end + b"\n\ndata: [DONE]\n\n"

    return honest


def impossible(chance: random.Random) -> tuple[dict[str, Any], list[str]]:
    """What a server may say of an answer, or its counters, before and after."""
    two = {"draft_n": chance.choice(NUMBERS), "draft_n_accepted": chance.choice(NUMBERS)}
    says: list[dict[str, Any]] = [
        {"usage": {"completion_tokens": chance.choice(NUMBERS)}}, {"usage": chance.choice(changes.VALUES)},
        {"timings": two}, {"timings": chance.choice(changes.VALUES)}, {"choices": chance.choice(changes.VALUES)},
        {"error": {"message": f"wrong key {KEY.decode()}"}},
    ]  # fmt: skip
    counted = chance.random() < 0.4
    pages = [counters(chance, wrong) for wrong in chance.choice([(0, 1), (1, 1), (0, 0)])]
    return {} if counted else chance.choice(says), pages if counted else ["cpu 3.5\n"]


def counters(chance: random.Random, wrong: int) -> str:
    """A page of Prometheus with counters of speculation, so many of which are wrong."""
    name = "vllm:spec_decode_num_"
    values = chance.choices(COUNTS[:4], k=4)
    values[chance.randrange(4)] = chance.choice(COUNTS[4:] if wrong else COUNTS[:4])
    place = f'accepted_tokens_per_pos_total{{position="{chance.choice(PLACES[3:] if wrong else PLACES[:3])}"}}'
    names = ("drafts_total", "draft_tokens_total", "accepted_tokens_total", place)
    return "".join(f"{name}{one} {value}\n" for one, value in zip(names, values, strict=True))


def hub(url: str, token: str, repos: Sequence[Repo]) -> Honest:
    """The hub with some repositories, as their readers see it; large files are on another host."""
    place = Hub(repos, url)
    place.tokens.add(token)

    def honest(asked: Request) -> tuple[bytes, bytes]:
        parts = urlsplit(asked.path)
        came = asked.headers.get("Authorization", "").removeprefix("Bearer ") or None
        found = place.answer(parts.path, parse_qs(parts.query), came, asked.headers.get("Range"))
        headers = {"Content-Length": str(len(found.body)), "Connection": "close", **found.headers}
        lines = [f"HTTP/1.1 {found.status} as said", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        return "\r\n".join(lines).encode(), found.body

    return honest
