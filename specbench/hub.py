"""Hub files in the local cache: fetched if missing, within bounds, or refused in one sentence.

Most of huggingface_hub is imported on the first fetch, because most commands fetch nothing.
"""

import importlib
import logging
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, thread
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import huggingface_hub
from huggingface_hub import constants

from specbench.files import in_units
from specbench.wording import first_line

T = TypeVar("T")
Progress = Callable[[int, int], None]  # (bytes received, bytes in total)

COMMIT = re.compile("[0-9a-f]{40}")
FRESH = 60.0  # seconds for which an answer about a repository is reused
LEAST, PATIENCE = 10 << 10, 90.0  # least bytes within so many seconds; the library's six attempts take less
ANSWER, ANSWERED = 64 << 20, 120.0  # limits on size and time of an API answer; a page of a listing has 1 MiB


class UnavailableError(Exception):
    """A hub file is not available; the message is one line with the reason and the remedy."""


class SlowError(Exception):
    """The hub sends too little, or data without end."""


@dataclass(frozen=True)
class Repository:
    """A repository at a revision (None: its main branch), by the user's name for it; `gated` if it needs a login."""

    id: str
    revision: str | None = None
    name: str = ""
    kind: str = "model"
    gated: bool = False

    @property
    def subject(self) -> str:
        """The subject of a sentence about it."""
        return self.id if self.name in ("", self.id) else f"{self.name} ({self.id})"

    @property
    def url(self) -> str:
        return f"{constants.ENDPOINT}/{'datasets/' if self.kind == 'dataset' else ''}{self.id}"

    @property
    def place(self) -> dict[str, Any]:
        """The arguments that the library's functions take."""
        return {"repo_id": self.id, "repo_type": self.kind, "revision": self.revision}

    @property
    def pinned(self) -> bool:
        """Whether the revision is immutable."""
        return COMMIT.fullmatch(self.revision or "") is not None

    def command(self, file: str = "") -> str:
        kind = " --repo-type dataset" if self.kind == "dataset" else ""
        revision = f" --revision {self.revision}" if self.revision else ""
        return f"hf download {self.id}{' ' * bool(file)}{file}{kind}{revision}"


def snapshot(repository: Repository, patterns: list[str], progress: Progress | None = None) -> Path:
    """The cached folder with the matching top-level files. Raises UnavailableError."""
    return _fetched(repository, {"allow_patterns": patterns, "ignore_patterns": ["*/*"]}, progress)


def one_file(repository: Repository, file: str) -> Path:
    """The cached path of one file of a repository. Raises UnavailableError."""
    if repository.pinned and (path := cached_file(repository, file)):
        return path
    return _fetched(repository, {"allow_patterns": [file]}, file=file) / file


def cached_file(repository: Repository, file: str) -> Path | None:
    """The path of a file in the cache; None if missing."""
    found = huggingface_hub.try_to_load_from_cache(filename=file, **repository.place)
    return Path(found) if isinstance(found, str) else None


def _fetched(repository: Repository, wanted: Any, progress: Progress | None = None, file: str = "") -> Path:
    """The snapshot with the requested files; from the cache alone if complete there, or if the hub does not answer."""
    from huggingface_hub.errors import CachedRepoTreeNotFoundError, EntryNotFoundError, LocalEntryNotFoundError

    def fetch(watch: Watch, cached: bool) -> Path:
        shown: Any = {"tqdm_class": bars(watch, progress), "local_files_only": cached}
        return Path(huggingface_hub.snapshot_download(**repository.place, **wanted, **shown))

    if not file and repository.pinned:
        try:
            huggingface_hub.get_cached_repo_tree(**repository.place)  # raises if completeness is unknown
            return _bounded(lambda watch: fetch(watch, True))
        except (CachedRepoTreeNotFoundError, LocalEntryNotFoundError):
            pass
    refusal = answer_of(repository)  # first, because a download would retry for minutes
    try:
        folder = _bounded(lambda watch: fetch(watch, refusal is not None))
        if file and not (folder / file).exists():
            raise EntryNotFoundError(file)
    except Exception as error:  # the library also raises errors of its HTTP library
        failure: Any = refusal or _cause(error)
        if isinstance(failure, SlowError) or (refused(failure) and failure.response.status_code >= 500):
            _ANSWERS[repository] = time.monotonic(), failure  # so that the next file does not wait again
        raise UnavailableError(reason(repository, failure, file)) from failure
    return folder


_ANSWERS: dict[Repository, tuple[float, Exception | None]] = {}


def answer_of(repository: Repository) -> Exception | None:
    """Why the hub refuses this repository or does not answer; None if it is available."""
    checked, answer = _ANSWERS.get(repository, (-FRESH, None))
    if time.monotonic() - checked < FRESH:
        return answer
    answer, most = None, constants.HF_HUB_ETAG_TIMEOUT
    try:
        _bounded(lambda _: huggingface_hub.HfApi().repo_info(timeout=most, **repository.place))
    except Exception as error:  # refused, no connection, proxy error or timeout
        answer = error.with_traceback(None)
    _ANSWERS[repository] = time.monotonic(), answer
    return answer


def file_sizes(repository: Repository) -> dict[str, int]:
    """File sizes of a repository in bytes; empty if the hub does not answer."""
    if answer_of(repository) is not None:
        return {}
    try:
        found = _bounded(lambda _: list(huggingface_hub.HfApi().list_repo_tree(recursive=True, **repository.place)))
    except Exception:  # sizes are only displayed
        return {}
    return {one.path: one.size for one in found if isinstance(one, huggingface_hub.hf_api.RepoFile)}


# --- bounds on time and size ------------------------------------------------------------------------------------------


class Watch:
    """The bytes received by one library call, over all of its threads."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self.restart()

    def restart(self, wait: float = 0.0) -> None:
        self.since, self.came = time.monotonic() + wait, 0

    def add(self, size: float) -> None:
        """Count a received block or a request, on a background thread; an interrupt ends the call here."""
        if self.stopped.is_set():
            raise InterruptedError("interrupted")
        self.came += int(size)
        if self.came >= LEAST:
            self.restart()

    def check(self) -> None:
        if time.monotonic() - self.since > (most := patience()):
            raise SlowError(f"sent less than {in_units(LEAST)} in {most:g} seconds")


def patience() -> float:
    """Seconds; more if the user set a longer HF_HUB_DOWNLOAD_TIMEOUT."""
    return max(PATIENCE, constants.HF_HUB_DOWNLOAD_TIMEOUT + PATIENCE / 10)


def _bounded(work: Callable[[Watch], T]) -> T:
    """Run `work` in the background, so that an interrupt or a slow hub ends the wait.

    The library itself waits for all transfers of a snapshot before it handles an interrupt.
    """
    watch, result = Watch(), Future[T]()
    _set_client(watch)

    def keep() -> None:
        try:
            result.set_result(work(watch))
        except BaseException as error:  # raised again below
            result.set_exception(error)

    background = threading.Thread(target=keep, daemon=True)
    with _quiet(watch):
        try:
            background.start()
            while background.is_alive():
                background.join(0.5)  # an endless wait would miss a signal that came just before
                watch.check()
            return result.result()
        finally:
            if not result.done():
                watch.stopped.set()
                waited_for: Any = thread._threads_queues  # at exit Python would wait for the library's workers
                for worker in [one for one in list(waited_for) if one.daemon]:
                    waited_for.pop(worker, None)


def _set_client(watch: Watch) -> None:
    """Make the library send through a client with bounds; its own requests have no limit of time or size."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    # httpx or httpx2, whichever this release uses
    http: Any = importlib.import_module(HfHubHTTPError.__mro__[1].__module__.partition(".")[0])

    def request(sent: Any) -> None:
        if huggingface_hub.is_offline_mode():
            raise OfflineModeIsEnabled(f"cannot reach {sent.url}: HF_HUB_OFFLINE is set")
        if sent.url.path.endswith("/api/agent-harnesses"):  # telemetry, sent even if the cache is complete
            raise InterruptedError("not needed")
        watch.add(0)
        most = constants.HF_HUB_DOWNLOAD_TIMEOUT
        limits = sent.extensions.get("timeout", {})
        sent.extensions["timeout"] = {step: min(limit or most, most) for step, limit in limits.items()}

    class Counted(http.SyncByteStream):  # type: ignore[misc]
        def __init__(self, stream: Any) -> None:
            self.stream, self.close = stream, stream.close

        def __iter__(self) -> Iterator[bytes]:
            for part in self.stream:
                watch.add(len(part))
                yield part
            watch.restart()

    def response(received: Any) -> None:
        if received.status_code >= 400:
            watch.restart(_wait(received.headers) or 0)  # the library waits that long before its next attempt
        received.stream = Counted(received.stream)
        path = received.request.url.path
        if received.status_code < 300 and ("/api/" not in path or "/resolve" in path):
            return  # a file, which the library reads by blocks
        parts, size, began = [], 0, time.monotonic()
        for part in received.iter_bytes():
            size += len(part)
            if size > ANSWER or time.monotonic() - began > ANSWERED:
                raise SlowError(f"gives an answer of more than {in_units(ANSWER)}, or {ANSWERED:g} seconds")
            parts.append(part)
        received._content = b"".join(parts)  # the client's `read` returns this from now on

    hooks = {"request": [request], "response": [response]}
    huggingface_hub.set_client_factory(lambda: http.Client(event_hooks=hooks, follow_redirects=True, timeout=None))


def _wait(headers: Any) -> int | None:
    """The seconds that the hub requests to wait."""
    limit = re.search(r";\s*t\s*=\s*(\d{1,9})\b", headers.get("RateLimit", ""))
    after = limit or re.fullmatch(r"\s*(\d{1,9})\s*", headers.get("Retry-After", ""))
    return int(after[1]) if after else None


def bars(watch: Watch, progress: Progress | None) -> type[Any]:
    """The library's progress-bar class: draws nothing, reports bytes, and refuses more than twice the announced size.

    The library makes one for the bytes on disk, one for those on the wire, and one that counts files.
    """
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(tqdm):
        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **settings)  # type: ignore[no-untyped-call]
            self.on_disk = settings.get("unit") == "B" and not str(settings.get("desc", "")).startswith("Downloading b")
            self.came = 0

        def update(self, n: float | None = 1) -> None:
            watch.add(n or 0)
            self.came += int(n or 0)
            if self.total and self.came > 2 * self.total:  # a second attempt may count again
                raise OSError(f"more came than the {self.total:,} bytes that were announced")
            if progress and self.on_disk:
                progress(self.came, int(self.total or 0))

    return Bar


@contextmanager
def _quiet(watch: Watch) -> Iterator[None]:
    """Silence the library's retries, advice and progress bars; raise an error if the disk is too full."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    no_bars, library = are_progress_bars_disabled(), logging.getLogger("huggingface_hub")
    waiting = logging.StreamHandler(sys.stderr)
    waiting.addFilter(lambda record: "Rate limited" in record.getMessage())  # it explains a silence
    waiting.setFormatter(logging.Formatter("note: %(message)s"))
    handlers, library.handlers = library.handlers, [waiting]
    disable_progress_bars()
    try:
        with warnings.catch_warnings(action="ignore"):
            warnings.filterwarnings("error", "Not enough free disk space")
            yield
    finally:
        if not watch.stopped.is_set():  # otherwise the background thread would complain at its end
            library.handlers = handlers
        if not no_bars:
            enable_progress_bars()


# --- sentences --------------------------------------------------------------------------------------------------------

NOT_HERE = "is not complete in the cache and {why}: run `{command}` where there is a network{gated}"
BROKEN = "did not arrive whole: the connection broke off ({error}): run the same again; {kept}"
NO_FILE = "has no file {file} at {revision}: see {url}/tree/main"
NOT_FOUND = "does not exist ({where} {url}), or it is gated or private: then {login}"
SENTENCES = {  # by the name of the error or of a base class; refusals by their status
    "GatedRepoError": "is gated: accept its conditions on {url}, then {login}",
    "RepositoryNotFoundError": NOT_FOUND,
    "RevisionNotFoundError": "has no revision {revision}: see {url}/commits/main",
    "RemoteEntryNotFoundError": NO_FILE,
    "EntryNotFoundError": NO_FILE,
    "FileMetadataError": "cannot be fetched: {hub} does not answer as a hub does: check HF_ENDPOINT and the proxy",
    "401 without a token": NOT_FOUND,
    "401": "is refused: the token in use is not valid: log in again with `hf auth login`, or set or unset HF_TOKEN",
    "403": "is refused: the token in use lacks the permission to read it: see {hub}/settings/tokens",
    "429": "cannot be fetched now: the hub's rate limit is reached: run the same again {when}{more}; {kept}",
    "5xx": "cannot be fetched now: {hub} answers with error {status}: try again later; {kept}",
    "HfHubHTTPError": "is refused with status {status}: {error}",
    "SlowError": "cannot be fetched now: {hub} {error}: try again later; {kept}",
    "TimeoutException": NOT_HERE.replace(
        "{why}", "{hub} was silent for {most} seconds (HF_HUB_DOWNLOAD_TIMEOUT sets how long to wait)"
    ),
    "RemoteProtocolError": BROKEN,
    "ReadError": BROKEN,
    "WriteError": BROKEN,
    "HTTPError": NOT_HERE.replace("{why}", "{hub} cannot be reached ({kind}: {error})"),
    "OSError without a number": BROKEN,  # the received size differs from the announced one
    "OSError": "could not be fetched into {cache}: {strerror} (HF_HOME names another place)",
    "UserWarning": "does not fit on the disk: {size} for one file, {free} free in {cache} "
    "(HF_HOME names another place); {kept}",
    "Exception": "cannot be fetched: {kind}: {error}; {kept}",
}


def reason(repository: Repository, error: Any, file: str = "") -> str:
    """The message for a library error; `file` is the requested one."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    error = _cause(error)
    hub, token, offline = constants.ENDPOINT, huggingface_hub.get_token(), huggingface_hub.is_offline_mode()
    status, wait = (error.response.status_code, _wait(error.response.headers)) if refused(error) else (0, None)
    sizes = re.findall(r"[\d.]+ [kMGT]?B", str(error)) or ["more than there is"]
    names = [kind.__name__ for kind in type(error).__mro__]
    if "HfHubHTTPError" in names:
        at = names.index("HfHubHTTPError")
        names[at:at] = ["401 without a token"] * (status == 401 and not token) + [str(status), f"{status // 100}xx"]
    elif "OSError" in names and not error.errno:
        names.insert(names.index("OSError"), "OSError without a number")
    known = not offline and not isinstance(error, LocalEntryNotFoundError)
    text = next(SENTENCES[name] for name in names if name in SENTENCES) if known else NOT_HERE
    login = "log in with `hf auth login` or set HF_TOKEN (no token is set)"
    return f"{repository.subject} " + text.format(
        url=repository.url,
        hub=hub,
        login="check that the token in use may read it (`hf auth whoami`, HF_TOKEN)" if token else login,
        where="neither as a folder nor at" if repository.kind == "model" else "at",
        revision=repository.revision or "main",
        file=file or "of that name",
        status=status,
        when=f"in {wait} seconds" if wait is not None else "in some minutes",
        more="" if token else " (more requests are allowed after `hf auth login`)",
        kind=type(error).__name__,
        error=first_line(error),
        strerror=getattr(error, "strerror", ""),
        kept="files that arrived whole are kept",
        most=constants.HF_HUB_DOWNLOAD_TIMEOUT,
        cache=constants.HF_HUB_CACHE,
        size=sizes[0],
        free=sizes[-1],
        why="HF_HUB_OFFLINE is set" if offline else f"there is no answer from {hub}",
        command=repository.command(file),
        gated=" (it is gated: log in with `hf auth login` first)" if repository.gated else "",
    )


def _cause(error: Any) -> Any:
    """The original failure, after which the library found nothing in its cache either."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    while isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    return error


def refused(error: Any) -> bool:
    """Whether the hub answered with a refusal."""
    from huggingface_hub.errors import HfHubHTTPError

    return isinstance(error, HfHubHTTPError)
