"""Files of the hub in its cache on this machine: fetched where they are missing, named where they cannot be.

Knows huggingface_hub; must not know what is in a file or what it is for. The library is imported when something is
fetched, because most commands fetch nothing. The hub is asked first whether it answers: a download that nobody answers
would be tried again for minutes.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specbench.hub_client import bound_waiting, interruptible, quiet, stoppable
from specbench.repository import COMMIT, Repository

FRESH = 60.0  # seconds for which an answer counts for the next files of a repository, too


class UnavailableError(Exception):
    """A file of the hub cannot be had: one line that says why, and what to do."""


def snapshot(repository: Repository, patterns: list[str], bars: type[Any] | None = None) -> Path:
    """The folder in the cache with those files of a repository that match, none of a subfolder.

    `bars` shows progress: a class like `tqdm`, made for the bytes of all files together. Raises UnavailableError.
    """
    import huggingface_hub

    def fetch(cached: bool) -> str:
        return huggingface_hub.snapshot_download(
            repository.id,
            repo_type=repository.kind,
            revision=repository.revision,
            allow_patterns=patterns,
            ignore_patterns=["*/*"],
            tqdm_class=stoppable(bars),
            local_files_only=cached,
        )

    return _fetched(repository, fetch, known=_has_listing(repository))


def one_file(repository: Repository, file: str) -> Path:
    """One file of a repository in the cache. Raises UnavailableError."""
    import huggingface_hub

    def fetch(cached: bool) -> str:
        return huggingface_hub.hf_hub_download(
            repository.id, file, repo_type=repository.kind, revision=repository.revision, local_files_only=cached
        )

    return _fetched(repository, fetch, known=_is_commit(repository), file=file)


def cached_file(repository: Repository, file: str) -> Path | None:
    """Where one file of a repository lies in the cache."""
    import huggingface_hub

    found = huggingface_hub.try_to_load_from_cache(
        repository.id, file, revision=repository.revision, repo_type=repository.kind
    )
    return Path(found) if isinstance(found, str) else None


def _fetched(repository: Repository, fetch: Callable[[bool], str], known: bool, file: str = "") -> Path:
    """What `fetch` gives: from the cache alone where that is `known` to tell whether it is whole, or nobody answers."""
    from specbench.hub_refusals import reason

    with quiet():
        if known and (folder := _from_cache(fetch)):
            return folder
        refusal = answer_of(repository)
        try:
            return Path(interruptible(lambda: fetch(refusal is not None)))
        except Exception as error:  # besides its own errors the hub lets those of its HTTP library through
            failure = refusal or error
            raise UnavailableError(reason(repository, failure, file)) from failure


def _from_cache(fetch: Callable[[bool], str]) -> Path | None:
    from huggingface_hub.errors import LocalEntryNotFoundError

    bound_waiting()
    try:
        return Path(fetch(True))
    except LocalEntryNotFoundError:
        return None


def _is_commit(repository: Repository) -> bool:
    """Whether the revision can never mean other files."""
    return COMMIT.fullmatch(repository.revision or "") is not None


def _has_listing(repository: Repository) -> bool:
    """Whether the cache knows which files the commit has, and so whether it is whole."""
    from huggingface_hub import get_cached_repo_tree
    from huggingface_hub.errors import CachedRepoTreeNotFoundError

    try:
        get_cached_repo_tree(repository.id, repo_type=repository.kind, revision=repository.revision)
    except CachedRepoTreeNotFoundError:
        return False
    return _is_commit(repository)


_ANSWERS: dict[Repository, tuple[float, Exception | None]] = {}


def answer_of(repository: Repository) -> Exception | None:
    """Why the hub does not give this repository, or that nobody answers; None if it does."""
    asked, answer = _ANSWERS.get(repository, (-FRESH, None))
    if time.monotonic() - asked >= FRESH:
        answer = _ask(repository)
        _ANSWERS[repository] = time.monotonic(), answer
    return answer


def _ask(repository: Repository) -> Exception | None:
    import huggingface_hub

    bound_waiting()
    try:
        with quiet():
            interruptible(
                lambda: huggingface_hub.HfApi().repo_info(
                    repository.id,
                    repo_type=repository.kind,
                    revision=repository.revision,
                    timeout=huggingface_hub.constants.HF_HUB_ETAG_TIMEOUT,
                )
            )
    except Exception as error:  # refused, no connection, no proxy, no answer in time
        return error.with_traceback(None)
    return None


def file_sizes(repository: Repository) -> dict[str, int]:
    """The bytes of the files of a repository, as the hub lists them; empty where it does not answer."""
    import huggingface_hub

    if answer_of(repository) is not None:
        return {}
    tree = huggingface_hub.HfApi().list_repo_tree
    try:
        with quiet():
            found = interruptible(
                lambda: list(
                    tree(repository.id, repo_type=repository.kind, revision=repository.revision, recursive=True)
                )
            )
    except Exception:  # it is known already that nothing can be fetched, or that everything can
        return {}
    return {one.path: one.size for one in found if isinstance(one, huggingface_hub.hf_api.RepoFile)}
