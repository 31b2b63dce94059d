"""Checkpoints of a hub: what is asked for, what is fetched, and transfers that break off.

The clients are the real ones; the hub is a server on this machine.
"""

import os
import signal
import threading
from io import BytesIO
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load

from specbench import hub
from specbench.models.checkpoints.description import load_config, load_tokenizer
from specbench.models.checkpoints.hub import fetch
from specbench.models.checkpoints.loading import load_model
from tests.support.checkpoints import CPU, WEIGHTS, WORDS, refusal_of
from tests.support.hub_model import LATEST, PINNED, Serve
from tests.support.hub_repos import COMMIT
from tests.support.hub_server import Fault
from tests.support.signals import as_a_shell_leaves_them

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


def test_progress_counts_bytes(serve: Serve, files: dict[str, bytes]) -> None:
    seen: list[tuple[int, int]] = []
    serve()
    fetch(PINNED, (WEIGHTS,), lambda *bytes_so_far: seen.append(bytes_so_far))
    assert seen[-1][0] == seen[-1][1] > len(files[WEIGHTS])


def test_pickled_weights_are_fetched_only_where_there_are_no_others(serve: Serve, files: dict[str, bytes]) -> None:
    pickled = BytesIO()
    torch.save(load(files.pop(WEIGHTS)), pickled)
    files["pytorch_model.bin"] = pickled.getvalue()
    server = serve()
    assert "pickled weights" in load_model(PINNED, None, CPU).warnings[0]
    assert [one.path.rpartition("/")[2] for one in server.requests("*.bin")] == ["pytorch_model.bin"]


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
    for thread in threading.enumerate():
        if thread.name.startswith("ThreadPoolExecutor"):
            thread.join(30)
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


def test_waiting_for_a_rate_limit_is_told(serve: Serve, naps: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    limit = {"RateLimit": '"resolvers";r=0;t=55'}
    serve(Fault("*/resolve/*/config.json", status=429, headers=limit, times=2))
    load_config(PINNED)
    assert 56 in naps
    assert "Rate limited. Waiting 56.0s before retry" in capsys.readouterr().err
