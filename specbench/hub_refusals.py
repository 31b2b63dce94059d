"""What went wrong between the hub and this machine, as one line that says what to do.

Knows the errors of huggingface_hub and of the HTTP library under it; must not fetch anything.
"""

import importlib
import re
from collections.abc import Callable
from typing import Any

import huggingface_hub
from huggingface_hub import constants, is_offline_mode
from huggingface_hub.errors import (
    EntryNotFoundError,
    FileMetadataError,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils._http import parse_ratelimit_headers

from specbench.hub_client import SlowError
from specbench.repository import Repository
from specbench.wording import first_line

# httpx or httpx2, as the hub's release has it
http = importlib.import_module(HfHubHTTPError.__mro__[1].__module__.partition(".")[0])
KEPT = "files that arrived whole are kept"


def reason(repository: Repository, error: Exception, file: str = "") -> str:
    """The line for an error that asking or fetching ended with; `file` is what was asked for, if it was one."""
    while isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # not in the cache, because of what went wrong before
    if is_offline_mode() or isinstance(error, LocalEntryNotFoundError):
        why = "HF_HUB_OFFLINE is set" if is_offline_mode() else f"there is no answer from {constants.ENDPOINT}"
        return _not_here(repository, why, file)
    for kind, words in SENTENCES:
        if isinstance(error, kind):
            return f"{repository.subject} {words(repository, error, file)}"
    return f"{repository.subject} cannot be fetched: {type(error).__name__}: {first_line(error)}; {KEPT}"


def refused(error: BaseException | None) -> bool:
    """Whether the hub answered, and said no."""
    return isinstance(error, HfHubHTTPError)


def _not_here(repository: Repository, why: str, file: str = "") -> str:
    login = " (it is gated: log in with `hf auth login` first)" if repository.gated else ""
    command = repository.command(file)
    return (
        f"{repository.subject} is not complete in the cache and {why}: run `{command}` where there is a network{login}"
    )


def _log_in() -> str:
    if huggingface_hub.get_token():
        return "check that the token in use may read it (`hf auth whoami`, HF_TOKEN)"
    return "log in with `hf auth login` or set HF_TOKEN (no token is set)"


def _gated(repository: Repository, error: Any, file: str) -> str:
    return f"is gated: accept its conditions on {repository.url}, then {_log_in()}"


def _not_found(repository: Repository, error: Any, file: str) -> str:
    """The hub gives the same answer for what does not exist and for what it does not show to us."""
    here = "neither as a folder nor at" if repository.kind == "model" else "at"
    return f"does not exist ({here} {repository.url}), or it is gated or private: then {_log_in()}"


def _no_revision(repository: Repository, error: Any, file: str) -> str:
    return f"has no revision {repository.revision}: see {repository.url}/commits/main"


def _no_file(repository: Repository, error: Any, file: str) -> str:
    return f"has no file {file or 'of that name'} at {repository.revision or 'main'}: see {repository.url}/tree/main"


def _refused(repository: Repository, error: Any, file: str) -> str:
    status = error.response.status_code
    if status == 429:
        return f"cannot be fetched now: {_rate_limit(error.response.headers)}; {KEPT}"
    if status == 401 and not huggingface_hub.get_token():
        return _not_found(repository, error, file)
    if status == 401:
        return "is refused: the token in use is not valid: log in again with `hf auth login`, or set or unset HF_TOKEN"
    if status == 403:
        return f"is refused: the token in use lacks the permission to read it: see {constants.ENDPOINT}/settings/tokens"
    if status >= 500:
        return f"cannot be fetched now: {constants.ENDPOINT} answers with error {status}: try again later; {KEPT}"
    return f"is refused with status {status}: {first_line(error)}"


def _rate_limit(headers: Any) -> str:
    known = parse_ratelimit_headers(headers)
    seconds = known.reset_in_seconds if known else headers.get("Retry-After", "")
    when = f"in {seconds} seconds" if str(seconds).isdigit() else "in some minutes"
    more = "" if huggingface_hub.get_token() else " (more requests are allowed after `hf auth login`)"
    return f"the hub's rate limit is reached: run the same again {when}{more}"


def _slow(repository: Repository, error: Any, file: str) -> str:
    most = constants.HF_HUB_DOWNLOAD_TIMEOUT
    why = f"{constants.ENDPOINT} was silent for {most} seconds (HF_HUB_DOWNLOAD_TIMEOUT sets how long to wait)"
    return _not_here(repository, why, file).removeprefix(f"{repository.subject} ")


def _too_slow(repository: Repository, error: Any, file: str) -> str:
    return f"cannot be fetched now: {constants.ENDPOINT} {error}: try again later; {KEPT}"


def _broken(repository: Repository, error: Any, file: str) -> str:
    return f"did not arrive whole: the connection broke off ({first_line(error)}): run the same again; {KEPT}"


def _unreachable(repository: Repository, error: Any, file: str) -> str:
    why = f"{constants.ENDPOINT} cannot be reached ({type(error).__name__}: {first_line(error)})"
    return _not_here(repository, why, file).removeprefix(f"{repository.subject} ")


def _no_hub(repository: Repository, error: Any, file: str) -> str:
    return f"cannot be fetched: {constants.ENDPOINT} does not answer as a hub does: check HF_ENDPOINT and the proxy"


def _system(repository: Repository, error: Any, file: str) -> str:
    if error.errno:
        return f"could not be fetched into {constants.HF_HUB_CACHE}: {error.strerror} (HF_HOME names another place)"
    return _broken(repository, error, file)  # what arrived has not the size that was announced


def _no_room(repository: Repository, error: Any, file: str) -> str:
    """The library says how large the file is, and how much is free."""
    sizes = re.findall(r"[\d.]+ [kMGT]?B", str(error)) or ["more than there is"]
    place = f"{constants.HF_HUB_CACHE} (HF_HOME names another place)"
    return f"does not fit on the disk: {sizes[0]} for one file, {sizes[-1]} free in {place}; {KEPT}"


SENTENCES: tuple[tuple[Any, Callable[[Repository, Any, str], str]], ...] = (  # the first that fits; special ones first
    (GatedRepoError, _gated),
    (RepositoryNotFoundError, _not_found),
    (RevisionNotFoundError, _no_revision),
    (EntryNotFoundError, _no_file),
    (FileMetadataError, _no_hub),
    (HfHubHTTPError, _refused),
    (SlowError, _too_slow),
    (http.TimeoutException, _slow),
    ((http.RemoteProtocolError, http.ReadError, http.WriteError), _broken),
    (http.HTTPError, _unreachable),
    (OSError, _system),
    (UserWarning, _no_room),
)
