"""The hub's library as a command needs it: quiet, never waiting without end, and ended by an interrupt.

Knows how huggingface_hub sends, waits and tells; must not know what is fetched. It is imported when it is used.
"""

import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

NO_ROOM = "Not enough free disk space"  # a warning of the library, which would begin all the same: here it is an error

_STOPPED = threading.Event()


def stop_if_interrupted() -> None:
    """Called by everything that goes on in the background, at every request and every block of a file."""
    if _STOPPED.is_set():
        raise InterruptedError("interrupted")


def interruptible(work: Callable[[], str]) -> str:
    """What `work` gives, waited for here: an interrupt ends the wait, and the transfers at their next block.

    The library waits for all transfers of a snapshot before it lets an interrupt through, which may take an hour.
    """
    from huggingface_hub.utils import _xet

    result: Future[str] = Future()
    background = threading.Thread(target=lambda: _keep(result, work), daemon=True)
    try:
        background.start()
        while background.is_alive():
            background.join(0.5)  # a signal that comes just before a wait without end would not end it
        return result.result()
    except (KeyboardInterrupt, SystemExit):
        _STOPPED.set()
        _xet.abort_xet_session()  # type: ignore[no-untyped-call]  # its transfers do not pass through Python
        raise


def _keep(result: Future[str], work: Callable[[], str]) -> None:
    try:
        result.set_result(work())
    except BaseException as error:  # raised again where the result is waited for
        result.set_exception(error)


def stoppable(bars: type[Any] | None) -> type[Any]:
    """A class of progress bars that ends a transfer after an interrupt; the library's own are silent (None)."""
    from huggingface_hub.utils.tqdm import tqdm

    class Bar(bars or tqdm):  # type: ignore[misc]
        def update(self, n: float | None = 1) -> Any:
            stop_if_interrupted()
            return super().update(n)

    return Bar


def bound_waiting() -> None:
    """No request waits longer for a sign of life than HF_HUB_DOWNLOAD_TIMEOUT: listings have no limit of their own."""
    import huggingface_hub
    from huggingface_hub.utils import _http

    def bound(request: Any) -> None:
        stop_if_interrupted()
        most = huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT
        limits = request.extensions.get("timeout", {})
        request.extensions["timeout"] = {step: min(limit or most, most) for step, limit in limits.items()}

    def client() -> Any:
        made = _http.default_client_factory()
        made.event_hooks = {**made.event_hooks, "request": [*made.event_hooks["request"], bound]}
        return made

    huggingface_hub.set_client_factory(client)


class _Waiting(logging.Handler):
    """Shows of what the library says only what explains a silence: that the hub asked to wait."""

    def emit(self, record: logging.LogRecord) -> None:
        if "Rate limited" in record.getMessage():
            print(record.getMessage(), file=sys.stderr)


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
