"""A hub on this machine: repositories, what they answer to the real clients, and what goes wrong.

A tree comes page by page, a small file through a redirect, a large one from storage on another host, in ranges. Xet
storage is not announced, so every byte passes here.
"""

import hashlib
import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

import pytest
from huggingface_hub import constants

from specbench import hub
from specbench.data.sources import HUB, HubFile
from specbench.files import ASSETS
from specbench.models.checkpoints.names import resolve

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_abcdefghijklmnopqrstuvwxyz"
LARGE = (".safetensors", ".bin", ".parquet", ".gguf", ".model")  # what .gitattributes hands to LFS
BLOCK = 1 << 16

# --- repositories -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Repo:
    """`readers` are the tokens that may read a private one, or the files of a gated one."""

    id: str
    files: Mapping[str, bytes]
    commit: str = COMMIT
    kind: str = "models"
    private: bool = False
    gated: bool = False
    readers: tuple[str, ...] = ()
    branches: Mapping[str, str] = field(default_factory=dict)


def folder_files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.is_file()}


def alias(name: str, folder: Path) -> Repo:
    """The repository that an alias names, at the commit that it is pinned at, with the files of `folder`."""
    found = resolve(name)
    return Repo(found.source, folder_files(folder), found.revision or COMMIT, gated=found.gated)


def shipped(target: str, draft: str) -> list[Repo]:
    """The pair that ships with specbench under the names of another one."""
    return [alias(target, ASSETS / "pair" / "target"), alias(draft, ASSETS / "pair" / "draft")]


ROWS = {  # with the columns of the official files; the texts are ours
    "humaneval": {"prompt": "def add_{n}(a: int, b: int) -> int:\n    ", "task_id": "{n}", "test": ""},
    "xsum": {"document": "It rained in town {n} for a day.", "summary": "summary/{n}", "id": "id/{n}"},
    "gsm8k": {"question": "What is {n} plus one?", "answer": "More than {n}. #### {n}1"},
    "cnn_dailymail": {"article": "It snowed in town {n} all week.", "highlights": "Snow in {n}.", "id": "cnn/{n}"},
    "alpaca": {
        "instruction": "Translate {n}.",
        "input": "one {n}",
        "output": "un",
        "text": "Below … ### Response:\nun",
    },
    "math500": {"problem": "Halve {n}.", "solution": "", "answer": "", "subject": "Algebra", "unique_id": "test/{n}"},
    "aime": {"id": "{n}", "problem": "Find {n}.", "solution": "", "answer": "7"},
    "mbpp": {"task_id": "{n}", "text": "Write a function that returns {n}.", "code": "pass"},
    "livecodebench": {"question_title": "A", "question_content": "Print {n}.", "question_id": "{n}"},
    "tool_call": {"prompt": "Call f({n})."},
}


def rows(name: str) -> list[dict[str, str]]:
    return [{column: text.format(n=n) for column, text in ROWS[name].items()} for n in range(3)]


def data_repo(source: HubFile, found: Iterable[Mapping[str, object]]) -> Repo:
    """A repository of data with one file of parquet or JSON lines where `source` says, and that of another split."""
    if source.file.endswith(".jsonl"):
        lines = "".join(f"{json.dumps(row)}\n" for row in found)
        return Repo(source.repo, {"README.md": b"Rows.\n", source.file: lines.encode()}, source.revision, "datasets")
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist([dict(row) for row in found]), buffer := BytesIO())
    other = {"README.md": b"Rows.\n", source.file.replace("test-", "train-"): b"PAR1 is not to be read"}
    return Repo(source.repo, other | {source.file: buffer.getvalue()}, source.revision, "datasets")


def official(name: str) -> Repo:
    """The data set in the official layout, at the pinned commit."""
    return data_repo(HUB[name], rows(name))


# --- answers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def as_json(value: object, status: int = 200, **headers: str) -> Answer:
    return Answer(status, json.dumps(value).encode(), {"Content-Type": "application/json", **headers})


def refusal(status: int, code: str = "", message: str = "as declared", **more: str) -> Answer:
    named = {"X-Error-Code": code} if code else {}
    return as_json({"error": message}, status, **{"X-Error-Message": message}, **named, **more)


ID = r"(?P<id>[^/]+/[^/]+)"
API = rf"/api/(?P<kind>models|datasets)/{ID}(?:/(?P<what>revision|tree)/(?P<rev>[^/]+))?"
RESOLVE = rf"(?:/(?P<kind>datasets))?/{ID}/resolve/(?P<rev>[^/]+)/(?P<path>.+)"
SMALL = rf"/api/resolve-cache/(?P<kind>models|datasets)/{ID}/(?P<rev>[^/]+)/(?P<path>.+)"


class Hub:
    """`prefix`: the path of a mirror that is not the root of its host; `page`: the files on one page of a tree."""

    def __init__(self, repos: Iterable[Repo], url: str, prefix: str = "", page: int = 1000) -> None:
        self.repos = {(repo.kind, repo.id): repo for repo in repos}
        self.tokens = {token for repo in self.repos.values() for token in repo.readers}
        self.url, self.prefix, self.page = url, prefix, page

    def answer(self, path: str, query: Mapping[str, Sequence[str]], token: str | None, span: str | None) -> Answer:
        if found := re.fullmatch(r"/storage/([0-9a-f]{64})", path):
            if token is not None or query.get("Signature") != ["x"]:
                return refusal(400, message="Only one auth mechanism allowed")
            files = [file for repo in self.repos.values() for file in repo.files.values()]
            return part_of(next(file for file in files if sha256(file) == found[1]), span)
        matched = next((found for route in (SMALL, API, RESOLVE) if (found := re.fullmatch(route, path))), None)
        if matched is None:
            return refusal(404, message="Sorry, we can't find the page you are looking for.")
        parts = {name: unquote(part or "") for name, part in matched.groupdict().items()}
        if token is not None and token not in self.tokens:
            return refusal(401, message="Invalid credentials in Authorization header")
        repo = self.repos.get((parts["kind"] or "models", parts["id"]))
        if repo is None or (repo.private and token not in repo.readers):  # it does not tell a private one from none
            return refusal(401) if token is None else refusal(404, "RepoNotFound")
        commits = {one: one for one in (repo.commit, *repo.branches.values())}
        known = {"": repo.commit, "main": repo.commit, **commits, **repo.branches}
        if (commit := known.get(parts["rev"])) is None:
            return refusal(404, "RevisionNotFound")
        if parts.get("what") == "tree":
            return self.tree(repo, path, int(query.get("cursor", ["0"])[0]))
        if "path" not in parts:
            names = [{"rfilename": name} for name in repo.files]
            about = {"id": repo.id, "sha": commit, "private": repo.private, "gated": "manual" if repo.gated else False}
            return as_json({**about, "siblings": names})
        if repo.gated and token not in repo.readers:  # only its listing is public
            return refusal(401 if token is None else 403, "GatedRepo", f"Access to model {repo.id} is restricted.")
        if parts["path"] not in repo.files:
            return refusal(404, "EntryNotFound")
        content = repo.files[parts["path"]]
        headers = {"X-Repo-Commit": commit}
        if matched.re.pattern == SMALL:
            return part_of(content, span, **headers, ETag=f'"{blob_id(content)}"')
        if not parts["path"].endswith(LARGE):
            place = f"{self.prefix}/api/resolve-cache/{repo.kind}/{repo.id}/{commit}/{quote(parts['path'])}"
            return Answer(307, headers={"Location": place, **headers})
        storage = f"http://localhost:{urlsplit(self.url).port}"  # another origin, to which no token may be sent
        headers |= {"X-Linked-Size": str(len(content)), "X-Linked-ETag": f'"{sha256(content)}"'}
        return Answer(302, headers={"Location": f"{storage}/storage/{sha256(content)}?Signature=x", **headers})

    def tree(self, repo: Repo, path: str, first: int) -> Answer:
        """One page of all entries; a Link header names the next one."""
        folders = {str(parent) for name in repo.files for parent in Path(name).parents} - {"."}
        empty = {"type": "directory", "oid": "0" * 40, "size": 0}
        entries: list[dict[str, Any]] = [{**empty, "path": folder} for folder in folders]
        for name, content in repo.files.items():
            lfs = {"oid": sha256(content), "size": len(content), "pointerSize": 134}
            entry = {"type": "file", "oid": blob_id(content), "size": len(content), "path": name}
            entries.append(entry | ({"lfs": lfs} if name.endswith(LARGE) else {}))
        last = first + self.page
        more = f'<{self.url}{path}?recursive=true&cursor={last}>; rel="next"'
        page = sorted(entries, key=lambda entry: str(entry["path"]))[first:last]
        return as_json(page, **({"Link": more} if last < len(entries) else {}))


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def part_of(content: bytes, span: str | None, **headers: str) -> Answer:
    """The file, or what the Range header asks for."""
    headers = {"ETag": f'"{sha256(content)}"', "Accept-Ranges": "bytes", **headers}
    found = re.fullmatch(r"bytes=(\d+)-(\d*)", span or "")
    if not found:
        return Answer(200, content, headers)
    first, end = int(found[1]), min(int(found[2] or len(content) - 1) + 1, len(content))
    if first >= end:
        return Answer(416, headers={"Content-Range": f"bytes */{len(content)}"})
    return Answer(206, content[first:end], headers | {"Content-Range": f"bytes {first}-{end - 1}/{len(content)}"})


# --- a server ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Fault:
    """What goes wrong with the first `times` requests of a path (a pattern of the shell) and a method.

    Another `status`, with further headers; the connection cut `after` so many bytes of the body; `seconds` of silence
    before the answer, or before the cut. `drip`: seconds between two bytes of the body, or of a header if it is in the
    `head`; the body has no end if it is `endless`.
    """

    path: str
    status: int | None = None
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
    range: str | None
    token: str | None
    sent: int = 0


class HubServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, repos: Iterable[Repo], faults: Iterable[Fault], prefix: str, page: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}{prefix}"  # what HF_ENDPOINT is set to
        self.hub = Hub(repos, self.url, prefix, page)
        self.left = {fault: fault.times for fault in faults}
        self.log: list[Logged] = []
        self.closing = threading.Event()
        self.lock = threading.Lock()

    def fault_of(self, method: str, path: str) -> Fault:
        with self.lock:
            for fault, left in self.left.items():
                if left and fault.method in ("*", method) and fnmatchcase(path, fault.path):
                    self.left[fault] -= 1
                    return fault
        return Fault("")

    def requests(self, pattern: str = "*", method: str = "*") -> list[Logged]:
        """Those of a path, in the order in which they came."""
        return [one for one in self.log if fnmatchcase(one.path, pattern) and method in ("*", one.method)]

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is no news here."""


Serve = Callable[..., HubServer]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HubServer

    def do_GET(self) -> None:
        server, parts = self.server, urlsplit(self.path)
        inside = parts.path.startswith(("/storage/", f"{server.hub.prefix}/"))
        path = parts.path.removeprefix(server.hub.prefix) if inside else "/elsewhere"
        kind, _, value = (self.headers["Authorization"] or "").partition(" ")
        entry = Logged(self.command, path, self.headers["Range"], value if kind == "Bearer" else None)
        server.log.append(entry)
        fault = server.fault_of(self.command, path)
        if fault.after is None:
            server.closing.wait(fault.seconds)
        if fault.status is None:
            answer = server.hub.answer(path, parse_qs(parts.query), entry.token, entry.range)
        else:
            answer = refusal(fault.status, **fault.headers)
        self.send(answer, entry, fault)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Nothing on stderr: the log is for the tests."""

    def send(self, answer: Answer, entry: Logged, fault: Fault) -> None:
        if fault.drip and fault.head:
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            self.drip(b"a" * 1000, fault.drip)
        self.send_response(answer.status)
        length = str(1 << 50 if fault.endless else len(answer.body))
        for name, value in {**answer.headers, "Content-Length": length}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        while fault.endless:
            self.wfile.write(b" " * BLOCK)
        whole = memoryview(answer.body)[: fault.after]
        if fault.drip:
            self.drip(whole, fault.drip)
            return
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
    server = HubServer(repos, faults, prefix, page)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()


def use(url: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the clients in this process ask the hub at `url`, with a cache of their own and without a token."""
    place = {"ENDPOINT": url, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True}
    place["HUGGINGFACE_CO_URL_TEMPLATE"] = url + "/{repo_id}/resolve/{revision}/{filename}"
    place["AGENT_HARNESSES_PATH"] = str(cache / "harnesses.json")  # of a request that has nothing to do with files
    place["HF_TOKEN_PATH"] = str(cache / "no-token")
    for name, value in place.items():
        monkeypatch.setattr(constants, name, value, raising=False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.setattr(hub, "_ANSWERS", {})


def environment(server: HubServer, home: Path) -> dict[str, str]:
    """Of a program that asks `server`, in a home of its own."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "TRANSFORMERS_"))}
    place = {"HF_ENDPOINT": server.url, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"}
    return {**inherited, **place, "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "127.0.0.1,localhost"}
