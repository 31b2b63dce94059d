"""The hub's library as a command needs it: quiet, never waiting without end, and ended by an interrupt.

Knows how huggingface_hub sends, waits and tells; must not know what is fetched. It is imported when it is used.
"""

import logging
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, thread
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from specbench.files import in_units

T = TypeVar("T")

NO_ROOM = "Not enough free disk space"  # a warning of the library, which would begin all the same: here it is an error
# A transfer must bring these bytes in these seconds, or end earlier; six attempts at silence take less.
LEAST, PATIENCE = 10 << 10, 90.0
ANSWER, ANSWERED = 64 << 20, 120.0  # bytes and seconds of an answer of the API at most; a page of a listing has 1 MiB

_STOPPED = threading.Event()


class SlowError(Exception):
    """The hub sends, but so little that nothing would ever be complete, or without an end; says which."""


@dataclass
class _Transfer:
    """What a thread receives, over all attempts at it: since when, and the bytes since then."""

    since: float = field(default_factory=time.monotonic)
    came: int = 0
    goes_on: bool = False  # with another attempt

    def add(self, size: int) -> None:
        self.came += size
        if self.came >= LEAST:
            self.since, self.came = time.monotonic(), 0
        self.check()

    def check(self) -> None:
        if time.monotonic() - self.since > (most := _patience()):
            raise SlowError(f"sent less than {in_units(LEAST)} in {most:g} seconds")


def _patience() -> float:
    """Seconds; whoever waits longer for a sign of life waits longer for all."""
    from huggingface_hub import constants

    return max(PATIENCE, constants.HF_HUB_DOWNLOAD_TIMEOUT + PATIENCE / 10)


_TRANSFERS: dict[int, _Transfer] = {}  # under way, by the thread


def _begin() -> None:
    """A request begins a transfer, or is another attempt at one that broke off."""
    known = _TRANSFERS.get(threading.get_ident())
    if known is None or not known.goes_on or time.monotonic() - known.since > 2 * _patience():
        _TRANSFERS[threading.get_ident()] = _Transfer()
    else:
        known.goes_on = False


def stop_if_interrupted() -> None:
    """Called by everything that goes on in the background, at every request and every block of a file."""
    if _STOPPED.is_set():
        raise InterruptedError("interrupted")


def interruptible(work: Callable[[], T]) -> T:
    """What `work` gives, waited for here: an interrupt ends the wait, and the transfers at their next block.

    The library waits for all transfers of a snapshot before it lets an interrupt through, which may take an hour.
    SlowError where one of them does not get on, even if it waits for the first line of an answer.
    """
    result: Future[T] = Future()
    _TRANSFERS.clear()
    background = threading.Thread(target=lambda: _keep(result, work), daemon=True)
    try:
        background.start()
        while background.is_alive():
            background.join(0.5)  # a signal that comes just before a wait without end would not end it
            for transfer in list(_TRANSFERS.values()):
                transfer.check()
        return result.result()
    finally:
        if not result.done():  # an interrupted `join` may say wrongly that the thread has ended
            _abandon()


def _abandon() -> None:
    """End what goes on in the background at its next request or block; this process does not wait for it when it ends.

    The threads of a pool that a daemon began are daemons as well, but Python waits for them unless it forgets them.
    """
    from huggingface_hub.utils import _xet

    _STOPPED.set()
    _xet.abort_xet_session()  # type: ignore[no-untyped-call]  # its transfers do not pass through Python
    waited_for: Any = thread._threads_queues
    for worker in [one for one in list(waited_for) if one.daemon]:
        waited_for.pop(worker, None)


def _keep(result: Future[T], work: Callable[[], T]) -> None:
    try:
        result.set_result(work())
    except BaseException as error:  # raised again where the result is waited for
        result.set_exception(error)


def stoppable(bars: type[Any] | None) -> type[Any]:
    """A class of progress bars that ends a transfer after an interrupt, and one that brings twice what was announced
    (a second attempt may count again); the library's own are silent (None)."""
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(bars or tqdm):  # type: ignore[misc]
        bytes_so_far = 0.0

        def update(self, n: float | None = 1) -> Any:
            stop_if_interrupted()
            self.bytes_so_far += n or 0
            if self.total and self.bytes_so_far > 2 * self.total:
                raise OSError(f"more came than the {self.total:,} bytes that were announced")
            return super().update(n)

    return Bar


def _received(response: Any) -> None:
    """Bound an answer before it is read: a refusal has no more to come, one of the API is read here and now."""
    transfer = _TRANSFERS.get(threading.get_ident())
    if transfer is None or response.status_code >= 400:
        _TRANSFERS.pop(threading.get_ident(), None)
        return
    response.stream = _counted(response.stream, transfer)
    path = response.request.url.path
    if "/api/" not in path or "/resolve" in path or response.request.method == "HEAD":  # a file, or nothing at all
        return
    parts, size, began = [], 0, time.monotonic()
    for part in response.iter_bytes():
        size += len(part)
        if size > ANSWER or time.monotonic() - began > ANSWERED:
            raise SlowError(f"gives an answer of more than {in_units(ANSWER)}, or {ANSWERED:g} seconds")
        parts.append(part)
    response._content = b"".join(parts)  # what `read` of the client returns from now on


def _counted(stream: Any, transfer: _Transfer) -> Any:
    """A stream of bytes that counts what it brings; the transfer is over with it, unless it breaks off."""
    http: Any = sys.modules[type(stream).__module__.partition(".")[0]]  # httpx or httpx2, as the hub's release has it

    class Counted(http.SyncByteStream):  # type: ignore[misc]
        def __iter__(self) -> Iterator[bytes]:
            try:
                for part in stream:
                    stop_if_interrupted()
                    transfer.add(len(part))
                    yield part
            except http.TransportError:
                transfer.goes_on = True
                raise

        def close(self) -> None:
            stream.close()
            if not transfer.goes_on:
                _TRANSFERS.pop(threading.get_ident(), None)

        def __getattr__(self, name: str) -> Any:
            return getattr(stream, name)

    return Counted()


def bound_waiting() -> None:
    """Bound every request, also those that the library sends by itself; to be called before anything of it is.

    None waits longer for a sign of life than HF_HUB_DOWNLOAD_TIMEOUT: listings have no limit of their own.
    """
    import huggingface_hub
    from huggingface_hub.utils import _http

    def bound(request: Any) -> None:
        stop_if_interrupted()
        if request.url.path.endswith("/api/agent-harnesses"):  # for telemetry, and sent even if the cache has all
            raise InterruptedError("not needed")
        _begin()
        most = huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT
        limits = request.extensions.get("timeout", {})
        request.extensions["timeout"] = {step: min(limit or most, most) for step, limit in limits.items()}

    def client() -> Any:
        made = _http.default_client_factory()
        made.event_hooks = {**made.event_hooks, "request": [*made.event_hooks["request"], bound]}
        made.event_hooks = {**made.event_hooks, "response": [*made.event_hooks["response"], _received]}
        return made

    huggingface_hub.set_client_factory(client)


class _Waiting(logging.Handler):
    """Shows of what the library says only what explains a silence: that the hub asked to wait."""

    def emit(self, record: logging.LogRecord) -> None:
        if "Rate limited" in record.getMessage():
            print(f"note: {record.getMessage()}", file=sys.stderr)


@contextmanager
def quiet() -> Iterator[None]:
    """Silences the hub's retries, advice and progress bars meanwhile: our one line says how it ended."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    _STOPPED.clear()
    no_bars, library = are_progress_bars_disabled(), logging.getLogger("huggingface_hub")
    handlers, library.handlers = library.handlers, [_Waiting()]
    disable_progress_bars()
    try:
        with warnings.catch_warnings(action="ignore"):
            warnings.filterwarnings("error", NO_ROOM)
            yield
    finally:
        if not _STOPPED.is_set():  # else what goes on in the background would complain of its end
            library.handlers = handlers
        if not no_bars:
            enable_progress_bars()
