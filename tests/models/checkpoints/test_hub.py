"""Checkpoints of a hub: what is fetched, transfers that break off, and what a user reads where the hub refuses.

The clients are the real ones; the hub is a server on this machine.
"""

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import thread
from contextlib import ExitStack
from io import BytesIO
from logging.handlers import BufferingHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import constants
from huggingface_hub.utils.logging import get_logger
from safetensors.torch import load

from specbench import hub
from specbench.models.checkpoints.description import load_config, load_tokenizer
from specbench.models.checkpoints.loading import load_model
from specbench.models.checkpoints.names import Checkpoint, fetch, repository, resolve
from tests.support.checkpoints import CPU, WEIGHTS, WORDS, refusal_of, save_tiny
from tests.support.hub import COMMIT, TOKEN, Fault, HubServer, Repo, Serve, folder_files, serving, use
from tests.support.signals import as_a_shell_leaves_them

PINNED, LATEST = Checkpoint("ours", "some/model", COMMIT), Checkpoint("ours", "some/model")
OURS = "ours (some/model) "


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    files = folder_files(save_tiny(tmp_path_factory.mktemp("hub") / "tiny"))
    more = ("pytorch_model.bin", "tf_model.h5", "README.md", "onnx/model.onnx", "original/model.safetensors")
    return files | dict.fromkeys(more, b"is not to be read")


@pytest.fixture
def files(saved: dict[str, bytes]) -> dict[str, bytes]:
    """A tiny checkpoint, and what else is in repositories; may be changed."""
    return dict(saved)


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
    """A hub with some/model, whose clients have an empty cache."""
    with ExitStack() as stack:

        def call(*faults: Fault, prefix: str = "", page: int = 1000, **repo: Any) -> HubServer:
            model = Repo("some/model", files, **repo)
            server = stack.enter_context(serving(model, faults=faults, prefix=prefix, page=page))
            use(server.url, tmp_path / "cache", monkeypatch)
            return server

        yield call


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the library writes to its log."""
    monkeypatch.setattr(get_logger("huggingface_hub"), "handlers", [handler := BufferingHandler(9)])
    return handler.buffer


def names(server: HubServer, pattern: str) -> set[str]:
    return {one.path.rpartition("/")[2] for one in server.requests(pattern)}


# --- what is asked for ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [2, 1000])
def test_only_what_is_needed_is_fetched_and_only_at_the_pinned_revision(
    serve: Serve, files: dict[str, bytes], page: int
) -> None:
    server = serve(page=page, branches={"main": "f" * 40})
    loaded = load_model(PINNED, None, CPU)
    assert names(server, "/some/model/resolve/*") == {name for name in files if name.endswith(".json")} | {WEIGHTS}
    assert [one.path for one in server.requests("*some/model*") if COMMIT not in one.path] == []
    assert (loaded.commit, load_tokenizer(PINNED).get_vocab()) == (COMMIT, WORDS)
    server.log.clear()
    again = load_model(PINNED, None, CPU)  # complete in the cache, it needs no hub
    assert (server.log, again.commit) == ([], COMMIT)


def test_the_main_branch_is_recorded_as_the_commit_that_it_was(serve: Serve) -> None:
    serve(commit="c" * 40)
    assert load_model(LATEST, None, CPU).commit == "c" * 40


def test_a_hub_below_a_path_and_progress_in_bytes(serve: Serve, files: dict[str, bytes]) -> None:
    seen: list[tuple[int, int]] = []
    server = serve(prefix="/mirror/hub")
    folder = fetch(PINNED, (WEIGHTS,), lambda *bytes_so_far: seen.append(bytes_so_far))
    assert (folder / WEIGHTS).read_bytes() == files[WEIGHTS]
    assert seen[-1][0] == seen[-1][1] > len(files[WEIGHTS])
    assert server.requests("/elsewhere") == []


def test_pickled_weights_are_fetched_only_where_there_are_no_others(serve: Serve, files: dict[str, bytes]) -> None:
    pickled = BytesIO()
    torch.save(load(files.pop(WEIGHTS)), pickled)
    files["pytorch_model.bin"] = pickled.getvalue()
    server = serve()
    assert "pickled weights" in load_model(PINNED, None, CPU).warnings[0]
    assert names(server, "*.bin") == {"pytorch_model.bin"}


def test_a_gated_repository_is_read_with_its_token_which_storage_never_sees(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(gated=True, private=True, readers=(TOKEN,))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert load_model(PINNED, None, CPU).commit == COMMIT
    assert {one.token for one in server.requests("*/resolve/*")} == {TOKEN}
    assert {one.token for one in server.requests("/storage/*")} == {None}


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
    assert f"{OURS}did not arrive whole: the connection broke off" in message
    assert "run the same again; files that arrived whole are kept" in message
    server.log.clear()
    fetch(PINNED, (WEIGHTS,))
    assert names(server, "*/resolve/*") == {WEIGHTS}


def test_an_interrupt_ends_the_transfers_too(serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, arrived, watches = threading.Lock(), [0], []

    class Watch(hub.Watch):
        def __init__(self) -> None:
            super().__init__()
            watches.append(self)

    def progress(done: int, total: int) -> None:
        arrived.append(done)
        if first.acquire(blocking=False):
            os.kill(os.getpid(), signal.SIGINT)  # as from the keyboard: it reaches the main thread
        assert watches[-1].stopped.wait(30)

    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    monkeypatch.setattr(hub, "Watch", Watch)
    serve()
    with as_a_shell_leaves_them(), pytest.raises(KeyboardInterrupt):
        fetch(PINNED, (WEIGHTS,), progress)
    for worker in threading.enumerate():
        if worker.name.startswith("ThreadPoolExecutor"):
            worker.join(30)
    assert max(arrived) <= 8 * 1000, "each of eight transfers ended at its first block"
    assert list((tmp_path / "cache").rglob("*.incomplete")) == []
    assert (fetch(PINNED, (WEIGHTS,)) / WEIGHTS).exists()


def test_a_silent_hub_is_given_up(serve: Serve, naps: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.05)
    server = serve(Fault("*/tree/*", seconds=60, times=9))
    message = refusal_of(load_config, PINNED)
    assert "was silent for 0.05 seconds (HF_HUB_DOWNLOAD_TIMEOUT sets how long to wait)" in message
    assert f"run `hf download some/model --revision {COMMIT}` where there is a network" in message
    assert (len(server.requests("*/tree/*")), sum(naps)) == (6, 1 + 2 + 4 + 8 + 8)


def test_a_note_says_that_the_hub_asks_to_wait(
    serve: Serve, naps: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    limit = {"RateLimit": '"resolvers";r=0;t=55'}
    serve(Fault("*/resolve/*/config.json", status=429, headers=limit, times=2))
    load_config(PINNED)
    assert 56 in naps
    assert "note: Rate limited. Waiting 56.0s before retry" in capsys.readouterr().err


def test_a_wait_that_the_hub_asks_for_is_no_silence(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "PATIENCE", 0.3)
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    monkeypatch.setattr("time.sleep", lambda _: threading.Event().wait(1.5))
    serve(Fault("*/resolve/*/config.json", status=429, headers={"Retry-After": "1"}))
    assert load_config(PINNED).vocab_size == 64


ASK = "/api/models/some/model*"
SLOW = "sent less than 10 KiB in 0.6 seconds"
LARGE = "gives an answer of more than 1 MiB, or 120 seconds"
DRIPPING = {
    "body of the API": (Fault(ASK, drip=0.05, times=99), SLOW),
    "headers of the API": (Fault(ASK, drip=0.05, head=True, times=99), SLOW),
    "headers of a file": (Fault("*/resolve/*/config.json", drip=0.05, head=True, times=99), SLOW),
    "body of a file": (Fault("*config.json", method="GET", drip=0.05, times=99), SLOW),
    "hangs again and again": (Fault("*config.json", method="GET", after=10, seconds=0.2, times=99), SLOW),
    "no end": (Fault(ASK, endless=True, times=99), LARGE),
    "no end of a refusal": (Fault(ASK, status=404, endless=True, times=99), LARGE),
    "no end of a redirect": (Fault("*config.json", method="GET", status=307, endless=True, times=99), LARGE),
}


@pytest.mark.parametrize("case", DRIPPING)
def test_a_hub_that_drips_is_given_up(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, logged: list[Any], case: str
) -> None:
    fault, words = DRIPPING[case]
    monkeypatch.setattr(hub, "PATIENCE", 0.6)
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.5)
    monkeypatch.setattr(hub, "ANSWER", 1 << 20)
    server, began = serve(fault), time.monotonic()
    message = refusal_of(load_config, PINNED)
    assert time.monotonic() - began < 5
    kept = "try again later; files that arrived whole are kept"
    assert message == f"{OURS}cannot be fetched now: {server.url} {words}: {kept}"
    assert [one for one in thread._threads_queues if one.is_alive()] == [], "Python would wait for it at its end"
    get_logger("huggingface_hub").warning("Retrying in 8s")  # as a transfer does that still goes on
    assert not (logged and case.startswith("headers")), "only these are still waited for in the background"


def test_the_sizes_of_files_are_looked_up_without_a_word_of_the_library(serve: Serve, logged: list[Any]) -> None:
    server = serve(Fault("*/tree/*", after=0, times=99))
    assert hub.file_sizes(repository(PINNED)) == {}
    assert (len(server.requests("*/tree/*")), logged) == (6, [])


def test_who_waits_longer_for_a_sign_of_life_waits_longer_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub.patience() == hub.PATIENCE
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 300)
    assert hub.patience() == 309


def test_a_file_that_is_longer_than_announced_is_given_up() -> None:
    bar = hub.bars(hub.Watch(), None)(total=10, disable=True)
    bar.update(20)
    with pytest.raises(OSError, match="more came than the 10 bytes that were announced"):
        bar.update(1)


# --- refusals ---------------------------------------------------------------------------------------------------------

REFUSALS = yaml.safe_load((Path(__file__).parents[2] / "refusals" / "hub.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("row", REFUSALS, ids=lambda row: row["line"][:40])
def test_a_refusal_is_one_line_that_says_what_to_do(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, row: dict[str, Any]
) -> None:
    """hub.yaml: the settings of the hub, a fault of its answers, the user's token, and the line."""
    server = serve(*[Fault(**row["fault"])] if "fault" in row else [], **row.get("hub", {}))
    server.hub.tokens |= {TOKEN}
    if token := row.get("token"):
        monkeypatch.setenv("HF_TOKEN", {"valid": TOKEN}.get(token, token))
    for step in (load_config, load_tokenizer):
        sentence = row["line"].replace("URL", server.url).replace("COMMIT", COMMIT)
        assert refusal_of(step, PINNED) == OURS + sentence


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


def test_a_file_that_does_not_fit_on_the_disk_is_not_begun(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve()
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10_000))
    message = refusal_of(fetch, PINNED, (WEIGHTS,))
    assert "does not fit on the disk: 0.03 MB for one file, 0.01 MB free in " in message
    assert server.requests("/storage/*") == []


def test_a_password_in_the_address_of_the_hub_is_not_shown(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(gated=True)
    monkeypatch.setattr(constants, "ENDPOINT", server.url.replace("://", "://user:pa55word@"))
    message = refusal_of(load_config, PINNED)
    assert "is gated: accept its conditions on http://***@127.0.0.1:" in message
    assert "pa55word" not in message


# --- without a hub ----------------------------------------------------------------------------------------------------


def test_without_a_network_a_part_in_the_cache_is_not_taken_for_the_whole(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    load_config(PINNED)
    server.log.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert load_tokenizer(PINNED).get_vocab() == WORDS
    message = refusal_of(fetch, PINNED, (WEIGHTS,))
    assert message.startswith(f"{OURS}is not complete in the cache and HF_HUB_OFFLINE is set: run `hf down")
    gated = refusal_of(load_config, llama := resolve("llama3-8b"))
    assert f"`hf download meta-llama/Llama-3.1-8B-Instruct --revision {llama.revision}`" in gated
    assert gated.endswith(" (it is gated: log in with `hf auth login` first)")
    assert server.log == []


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
    weights.write_bytes(weights.read_bytes()[:-9])
    assert f"delete it and run `hf download some/model --revision {COMMIT}`" in refusal_of(
        load_model, PINNED, None, CPU
    )


def test_a_missing_folder_is_not_looked_for_on_the_hub(tmp_path: Path) -> None:
    assert "there is no folder" in refusal_of(load_config, Checkpoint("demo", str(tmp_path / "nope")))
