"""A hub on this machine: an HTTP server that speaks the API of huggingface.co to its unchanged clients.

Speaks of models and data sets: what a repository is, its tree page by page, its files through a redirect to storage on
another host, in ranges; refuses as the hub does. What shall go wrong is declared as data.

Requests and headers are those of huggingface_hub 1.31 to 2.4 and datasets 5: `hf_api.py`, `file_download.py`,
`utils/_http.py`, `hf_file_system.py`. Xet storage is not announced, so that every byte passes here.
"""

import json
import os
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from huggingface_hub import constants

from specbench import hub
from tests.support.hub_answers import Answer, Asked, answer_to
from tests.support.hub_repos import Repo

BLOCK = 1 << 16


@dataclass(frozen=True, eq=False)
class Fault:
    """What goes wrong with the first `times` requests of a path (a pattern of the shell) and a method.

    Another `status`, with an error `code` and further headers; the connection cut `after` so many bytes of the body;
    `seconds` of silence before the answer, or before the cut. `drip`: seconds between two bytes of the body, or of a
    header if it is in the `head`; the body has no end if it is `endless`.
    """

    path: str
    status: int | None = None
    code: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    after: int | None = None
    seconds: float = 0.0
    times: int = 1
    method: str = "*"
    drip: float = 0.0
    head: bool = False
    endless: bool = False


@dataclass
class Logged:
    """A request and how it was answered; `sent` are bytes of the body that were sent."""

    method: str
    path: str
    query: str
    range: str | None
    token: str | None
    status: int = 0
    sent: int = 0


class HubServer(ThreadingHTTPServer):
    """`prefix` is the path of a mirror that is not the root of its host, `page` the files on one page of a tree."""

    daemon_threads = True

    def __init__(self, repos: Iterable[Repo], faults: Iterable[Fault] = (), *, prefix: str = "", page: int = 1000):
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos = {(repo.kind, repo.id): repo for repo in repos}
        self.left = {fault: fault.times for fault in faults}
        self.prefix, self.page = prefix, page
        self.tokens = {token for repo in self.repos.values() for token in repo.readers}
        self.log: list[Logged] = []
        self.closing = threading.Event()
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        """What HF_ENDPOINT is set to."""
        return f"http://127.0.0.1:{self.server_port}{self.prefix}"

    @property
    def storage(self) -> str:
        """Where large files lie: another origin, to which no token may be sent."""
        return f"http://localhost:{self.server_port}"

    def inside(self, path: str) -> str:
        """A path below the prefix, or of the storage, which has none; any other is answered by nobody."""
        ours = path.startswith(("/storage/", f"{self.prefix}/"))
        return path.removeprefix(self.prefix) if ours else "/elsewhere"

    def fault_of(self, method: str, path: str) -> Fault | None:
        with self.lock:
            for fault, left in self.left.items():
                if left and fault.method in ("*", method) and fnmatchcase(path, fault.path):
                    self.left[fault] -= 1
                    return fault
        return None

    def requests(self, pattern: str = "*", method: str = "*") -> list[Logged]:
        """Those of a path, in the order in which they came."""
        return [one for one in self.log if fnmatchcase(one.path, pattern) and method in ("*", one.method)]

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is no news here."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HubServer

    def do_GET(self) -> None:
        self.reply()

    def do_HEAD(self) -> None:
        self.reply()

    def do_POST(self) -> None:
        self.reply()

    def log_message(self, *_: object) -> None:
        """Nothing on stderr: the log is for the tests."""

    def reply(self) -> None:
        parts = urlsplit(self.path)
        path = self.server.inside(parts.path)
        entry = Logged(self.command, path, parts.query, self.headers["Range"], self.token())
        self.server.log.append(entry)
        body = self.rfile.read(int(self.headers["Content-Length"] or 0)).decode()
        asked = Asked(path, parse_qs(parts.query), parse_qs(body), entry.token, entry.range)
        fault = self.server.fault_of(self.command, path) or Fault("")
        if fault.after is None:
            self.server.closing.wait(fault.seconds)
        self.send(self.faulty(fault) or answer_to(asked, self.server), entry, fault)

    def token(self) -> str | None:
        """None also of a password for a proxy before the hub."""
        kind, _, value = (self.headers["Authorization"] or "").partition(" ")
        return value if kind == "Bearer" else None

    def faulty(self, fault: Fault) -> Answer | None:
        if fault.status is None:
            return None
        named = {"X-Error-Code": fault.code} if fault.code else {}
        return Answer(fault.status, json.dumps({"error": "as declared"}).encode(), {**named, **fault.headers})

    def send(self, answer: Answer, entry: Logged, fault: Fault) -> None:
        entry.status = answer.status
        if fault.drip and fault.head:
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            self.drip(b"a" * 1000, fault.drip)
        self.send_response(answer.status)
        for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
            if not (fault.endless and name == "Content-Length"):
                self.send_header(name, value)
        if fault.endless:
            self.send_header("Content-Length", str(1 << 50))
        self.end_headers()
        if self.command == "HEAD":
            return
        while fault.endless:
            self.wfile.write(b" " * BLOCK)
        whole = memoryview(answer.body)[: fault.after]
        if fault.drip:
            self.drip(whole, fault.drip)
            whole = whole[:0]
        for start in range(0, len(whole), BLOCK):
            entry.sent += self.wfile.write(whole[start : start + BLOCK])
        if fault.after is not None:
            self.server.closing.wait(fault.seconds)
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    def drip(self, content: bytes | memoryview, seconds: float) -> None:
        for start in range(len(content)):
            self.wfile.write(content[start : start + 1])
            self.server.closing.wait(seconds)


@contextmanager
def serving(*repos: Repo, faults: Iterable[Fault] = (), prefix: str = "", page: int = 1000) -> Iterator[HubServer]:
    """A hub with these repositories, in a thread of its own."""
    server = HubServer(repos, faults, prefix=prefix, page=page)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()


def use(server: HubServer, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the clients in this process ask `server`, with a cache of their own and without a token."""
    place = {"ENDPOINT": server.url, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True}
    place["HUGGINGFACE_CO_URL_TEMPLATE"] = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    place["AGENT_HARNESSES_PATH"] = str(cache / "harnesses.json")  # of a request that has nothing to do with files
    for name, value in place.items():
        monkeypatch.setattr(constants, name, value, raising=False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache / "no-token"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setattr(hub, "_ANSWERS", {})


def environment(server: HubServer, home: Path, **more: str) -> dict[str, str]:
    """Of a program that asks `server`, in a home of its own."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    place = {"HF_ENDPOINT": server.url, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"}
    return {**inherited, **place, "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1,localhost", **more}
