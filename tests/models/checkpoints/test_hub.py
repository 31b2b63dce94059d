"""Checkpoints of a hub: what is asked for, what is fetched, and what a user reads where that fails.

The clients are the real ones; the hub is a server on this machine.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants

from specbench import hub, hub_client
from specbench.models.checkpoints.description import load_config, load_tokenizer
from specbench.models.checkpoints.hub import fetch
from specbench.models.checkpoints.loading import load_model
from specbench.models.checkpoints.pairs import Checkpoint, resolve
from tests.support.checkpoints import CPU, WEIGHTS, WORDS, refusal_of, save_tiny
from tests.support.hub_repos import COMMIT, Repo, folder_files
from tests.support.hub_server import Fault, HubServer, serving, use

TOKEN = "hf_abcdefghijklmnopqrstuvwxyz"
PINNED = Checkpoint("ours", "some/model", COMMIT)
LATEST = Checkpoint("ours", "some/model")
Serve = Callable[..., HubServer]


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A tiny checkpoint, and what else lies in repositories."""
    files = folder_files(save_tiny(tmp_path_factory.mktemp("hub") / "tiny"))
    more = ("pytorch_model.bin", "tf_model.h5", "README.md", "onnx/model.onnx", "original/model.safetensors")
    return files | dict.fromkeys(more, b"is not to be read")


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the clients would have slept between two attempts."""
    found: list[float] = []
    monkeypatch.setattr("time.sleep", found.append)
    return found


@pytest.fixture
def serve(
    files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, naps: list[float]
) -> Iterator[Serve]:
    """A hub with some/model, which the clients in this process ask."""
    with ExitStack() as stack:

        def call(*faults: Fault, prefix: str = "", page: int = 1000, **repo: Any) -> HubServer:
            model = Repo("some/model", files, **repo)
            server = stack.enter_context(serving(model, faults=faults, prefix=prefix, page=page))
            use(server, tmp_path / "cache", monkeypatch)
            return server

        yield call


# --- what is asked for ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [2, 1000])
def test_only_what_is_needed_is_fetched_and_only_at_the_pinned_revision(
    serve: Serve, files: dict[str, bytes], page: int
) -> None:
    server = serve(page=page, branches={"main": "f" * 40})
    loaded = load_model(PINNED, None, CPU)
    needed = {name for name in files if name.endswith(".json")} | {WEIGHTS}
    assert {one.path.rpartition("/")[2] for one in server.requests("/some/model/resolve/*")} == needed
    assert [one.path for one in server.requests("*some/model*") if COMMIT not in one.path] == []
    assert (loaded.commit, load_tokenizer(PINNED).get_vocab()) == (COMMIT, WORDS)


def test_a_pinned_checkpoint_that_lies_whole_in_the_cache_needs_no_hub(serve: Serve) -> None:
    server = serve()
    first = load_model(PINNED, None, CPU)
    server.log.clear()
    again = load_model(PINNED, None, CPU)
    assert (server.log, again.commit) == ([], first.commit)


def test_the_main_branch_is_recorded_as_the_commit_that_it_was(serve: Serve) -> None:
    serve(commit="c" * 40)
    assert load_model(LATEST, None, CPU).commit == "c" * 40


def test_a_hub_below_a_path(serve: Serve, files: dict[str, bytes]) -> None:
    server = serve(prefix="/mirror/hub")
    folder = fetch(PINNED, (WEIGHTS,))
    assert (folder / WEIGHTS).read_bytes() == files[WEIGHTS]
    assert server.requests("/elsewhere") == []


def test_progress_is_told_in_bytes(serve: Serve, files: dict[str, bytes]) -> None:
    seen: list[float] = []

    class Bar(huggingface_hub.utils.tqdm):  # type: ignore[misc]
        def update(self, n: float | None = 1) -> None:
            seen.append(n or 0)

    serve()
    fetch(PINNED, (WEIGHTS,), Bar)
    assert sum(seen) >= len(files[WEIGHTS])


# --- transfers that break off -----------------------------------------------------------------------------------------


def test_an_interrupted_transfer_goes_on_where_it_broke_off(
    serve: Serve, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    server = serve(Fault("/storage/*", after=5000, times=2))
    folder = fetch(PINNED, (WEIGHTS,))
    assert (folder / WEIGHTS).read_bytes() == files[WEIGHTS]
    sent = server.requests("/storage/*", "GET")
    assert [one.range for one in sent] == [None, "bytes=5000-", "bytes=10000-"]
    assert sum(one.sent for one in sent) == len(files[WEIGHTS])


def test_what_broke_off_for_good_is_said_and_the_next_run_fetches_only_that(serve: Serve) -> None:
    server = serve(Fault("/storage/*", after=0, times=6))
    message = refusal_of(fetch, PINNED, (WEIGHTS,))
    assert "ours (some/model) did not arrive whole: the connection broke off" in message
    assert "run the same again; files that arrived whole are kept" in message
    server.log.clear()
    fetch(PINNED, (WEIGHTS,))
    assert {one.path.rpartition("/")[2] for one in server.requests("*/resolve/*")} == {WEIGHTS}


def test_an_interrupt_ends_the_transfers_too(serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    told: list[float] = []

    class Bar(huggingface_hub.utils.tqdm):  # type: ignore[misc]
        def update(self, n: float | None = 1) -> None:
            told.append(n or 0)
            signal.raise_signal(signal.SIGINT)  # as from the keyboard: it reaches the main thread
            assert hub_client._STOPPED.wait(30)

    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    serve()
    with pytest.raises(KeyboardInterrupt):
        fetch(PINNED, (WEIGHTS,), Bar)
    for thread in threading.enumerate():
        if thread.name.startswith("ThreadPoolExecutor"):
            thread.join(30)
    assert sum(told) < 8 * 1000 + 1
    assert list((tmp_path / "cache").rglob("*.incomplete")) == []
    assert (fetch(PINNED, (WEIGHTS,)) / WEIGHTS).exists()


def test_a_silent_hub_is_given_up(serve: Serve, naps: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.05)
    server = serve(Fault("*/tree/*", seconds=60, times=9))
    message = refusal_of(load_config, PINNED)
    assert "was silent for 0.05 seconds (HF_HUB_DOWNLOAD_TIMEOUT sets how long to wait)" in message
    assert f"run `hf download some/model --revision {COMMIT}` where there is a network" in message
    assert (len(server.requests("*/tree/*")), sum(naps)) == (6, 1 + 2 + 4 + 8 + 8)


def test_waiting_for_a_rate_limit_is_told(serve: Serve, naps: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    limit = {"RateLimit": '"resolvers";r=0;t=55'}
    serve(Fault("*/resolve/*/config.json", status=429, headers=limit, times=2))
    load_config(PINNED)
    assert 56 in naps
    assert "Rate limited. Waiting 56.0s before retry" in capsys.readouterr().err


# --- refusals ---------------------------------------------------------------------------------------------------------

ASK = "/api/models/some/model*"
OURS = "ours (some/model) "
REFUSALS: dict[str, tuple[dict[str, Any], str | None, list[str]]] = {
    "gated, no token": ({"gated": True}, None, ["is gated: accept its conditions on http", "no token is set"]),
    "gated, not granted": ({"gated": True}, TOKEN, ["is gated", "check that the token in use may read it"]),
    "private, no token": ({"private": True}, None, ["does not exist", "gated or private", "hf auth login"]),
    "private, other token": ({"private": True}, TOKEN, ["does not exist", "gated or private", "the token in use"]),
    "invalid token": ({}, "hf_invalidinvalidinvalid", ["the token in use is not valid", "hf auth login"]),
    "no such revision": ({"commit": "a" * 40}, None, [f"has no revision {COMMIT}", "/some/model/commits"]),
    "forbidden": ({"fault": Fault(ASK, status=403, times=9)}, TOKEN, ["lacks the permission", "/settings/tokens"]),
    "rate limit": (
        {"fault": Fault(ASK, status=429, headers={"RateLimit": '"api";r=0;t=55'}, times=9)},
        None,
        ["the hub's rate limit is reached: run the same again in 55 seconds", "more requests are allowed after"],
    ),
    "retry after": (
        {"fault": Fault(ASK, status=429, headers={"Retry-After": "7"}, times=9)},
        TOKEN,
        ["the hub's rate limit is reached: run the same again in 7 seconds; files that arrived whole are kept"],
    ),
    "down": ({"fault": Fault(ASK, status=503, times=9)}, None, ["answers with error 503: try again later"]),
    "not a hub": ({"fault": Fault("*/resolve/*", status=200, times=99)}, None, ["check HF_ENDPOINT and the proxy"]),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_is_one_line_that_says_what_to_do(serve: Serve, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    settings, token, said = REFUSALS[case]
    settings = dict(settings)
    faults = [settings.pop("fault")] if "fault" in settings else []
    server = serve(*faults, **settings)
    server.tokens |= {TOKEN}
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    for step in (load_config, load_tokenizer):
        message = refusal_of(step, PINNED)
        assert message.startswith(OURS), message
        assert [words for words in said if words not in message] == [], message
        assert token is None or token not in message


def test_a_gated_repository_is_read_with_its_token_which_storage_never_sees(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(gated=True, private=True, readers=(TOKEN,))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert load_model(PINNED, None, CPU).commit == COMMIT
    assert {one.token for one in server.requests("*/resolve/*")} == {TOKEN}
    assert {one.token for one in server.requests("/storage/*")} == {None}


def test_a_repository_that_is_not_there_and_is_called_by_its_id(serve: Serve) -> None:
    serve()
    message = refusal_of(load_config, resolve("nobody/nothing"))
    assert message.startswith("nobody/nothing does not exist (neither as a folder nor at ")


def test_a_full_disk(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    serve()
    monkeypatch.setattr("huggingface_hub.file_download.http_get", fail)
    message = refusal_of(load_config, PINNED)
    assert "could not be fetched into" in message
    assert "No space left on device (HF_HOME names another place)" in message


# --- without a hub ----------------------------------------------------------------------------------------------------


def test_without_a_network_a_part_in_the_cache_is_not_taken_for_the_whole(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve()
    load_config(PINNED)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert load_tokenizer(PINNED).get_vocab() == WORDS
    message = refusal_of(fetch, PINNED, (WEIGHTS,))
    assert message.startswith("ours (some/model) is not complete in the cache and HF_HUB_OFFLINE is set: run `hf down")


def test_a_gated_checkpoint_that_is_not_there_offline(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    serve()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    message = refusal_of(load_config, resolve("llama3-8b"))
    revision = resolve("llama3-8b").revision
    assert f"`hf download meta-llama/Llama-3.1-8B-Instruct --revision {revision}`" in message
    assert "it is gated" in message


def test_a_hub_that_cannot_be_reached_is_noticed_at_once_and_the_cache_serves(
    serve: Serve, naps: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(commit="c" * 40)
    load_config(LATEST)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(hub, "_ANSWERS", {})
    naps.clear()
    assert load_config(LATEST).vocab_size == 64
    message = refusal_of(load_config, resolve("llama-68m"))
    assert "is not complete in the cache and http://127.0.0.1:9 cannot be reached (ConnectError: " in message
    assert naps == []


def test_a_damaged_file_of_the_cache_says_how_to_fetch_it_again(serve: Serve) -> None:
    serve()
    weights = fetch(PINNED, (WEIGHTS,)) / WEIGHTS
    weights.write_bytes(b"cut")
    assert f"delete it and run `hf download some/model --revision {COMMIT}`" in refusal_of(
        load_model, PINNED, None, CPU
    )


def test_a_missing_folder_is_not_looked_for_on_the_hub(tmp_path: Path) -> None:
    assert "there is no folder" in refusal_of(load_config, Checkpoint("demo", str(tmp_path / "nope")))
