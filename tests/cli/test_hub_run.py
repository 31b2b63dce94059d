"""The command against a hub: aliases, their pinned commits, real data sets, a token; with the hub and then without it.

The clients are the real ones; the hub is a server on this machine.
"""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from specbench.data.sources import HUB
from specbench.models.checkpoints import loading
from specbench.models.checkpoints.names import resolve
from tests.support.frontdoor import Command, Outcome
from tests.support.hub import (
    COMMIT,
    TOKEN,
    Fault,
    HubServer,
    Repo,
    alias,
    environment,
    official,
    serving,
    sha256,
    shipped,
    use,
)
from tests.support.signals import MAIN
from tests.support.tinypair import Pair, prompts

ROOT = str(Path(__file__).parents[2])
SMALL = ("--limit", "1", "--max-new-tokens", "4", "--warmup", "0", "--tier", "eager", "--quiet")
PAIR = ("run", "--target", "llama-7b", "--draft", "llama-68m", *SMALL)


# --- in this process --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [None, TOKEN])
def test_a_gated_alias_ends_with_4_and_one_line(
    command: Command, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    reader = Repo("some/private", {}, readers=(TOKEN,))
    with serving(alias("llama3-8b", pair.target), reader) as server:
        use(server.url, tmp_path / "cache", monkeypatch)
        if token:
            monkeypatch.setenv("HF_TOKEN", token)
        found = command("run", "--target", "llama3-8b", "--draft", pair.draft, *SMALL)
    assert found.code == 4
    assert "llama3-8b (meta-llama/Llama-3.1-8B-Instruct) is gated: accept its conditions on http://" in found.line
    assert ("the token in use" if token else "hf auth login") in found.line
    assert TOKEN not in found.out + found.err
    assert not (tmp_path / "results").exists()


def test_any_data_set_of_the_hub_is_measured_and_a_split_that_it_lacks_is_refused_before_weights_are_read(
    command: Command, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = Path(prompts(tmp_path / "words.jsonl", 4, 6, 5).removeprefix("jsonl:")).read_bytes()
    with serving(Repo("some/set", {"main/test.jsonl": text}, kind="datasets")) as server:
        use(server.url, tmp_path / "cache", monkeypatch)
        done = command("run", *pair.options, "--dataset", "hf:some/set", *SMALL)
        monkeypatch.setattr(loading, "load_model", None)
        lacking = command("run", *pair.options, "--dataset", "hf:some/set:train", *SMALL)
    assert done.code == 0, done.err
    assert [(row["dataset"], row["dataset_revision"]) for row in done.table()] == [("hf:some/set", COMMIT)]
    assert lacking.code == 2
    assert "hf:some/set:train: name one of its configurations and splits, which are: main:test" in lacking.line


# --- in processes of their own ----------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[HubServer]:
    """The shipped pair as llama-7b and llama-68m, and both data sets; the weights of the target break off once."""
    repos = shipped("llama-7b", "llama-68m")
    fault = Fault(place_of_weights(repos[0]), after=12 << 20, method="GET")
    with serving(*repos, official("humaneval"), official("xsum"), faults=[fault]) as server:
        yield server


def place_of_weights(repo: Repo) -> str:
    return f"/storage/{sha256(repo.files['model.safetensors'])}"


def started(server: HubServer, folder: Path, *arguments: str, **more: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", MAIN, *arguments],
        env={**environment(server, folder / "home"), "PYTHONPATH": ROOT, "OMP_NUM_THREADS": "1", **more},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: "subprocess.Popen[str]", folder: Path) -> Outcome:
    out, err = process.communicate(timeout=300)
    return Outcome(process.returncode, out, err, folder)


@pytest.mark.slow
def test_a_run_from_the_hub_and_the_same_without_it(server: HubServer, tmp_path: Path) -> None:
    options = (*PAIR, "--dataset", "humaneval", "--dataset", "xsum")
    online = ended(started(server, tmp_path, *options), tmp_path)
    assert (online.code, online.err) == (0, "")
    assert [row["target_commit"] for row in online.table()] == [resolve("llama-7b").revision] * 2
    assert [row["draft_commit"] for row in online.table()] == [resolve("llama-68m").revision] * 2
    assert {row["dataset"]: row["dataset_revision"] for row in online.table()} == {
        name: HUB[name].revision for name in ("humaneval", "xsum")
    }
    target = server.hub.repos["models", "huggyllama/llama-7b"]
    sent = server.requests(place_of_weights(target), "GET")
    assert [one.range for one in sent] == [None, f"bytes={10 << 20}-"], "in blocks of 10 MiB"
    assert [one.sent for one in sent] == [12 << 20, len(target.files["model.safetensors"]) - (10 << 20)]
    tokens = [sample.method.tokens for sample in online.samples()]
    server.log.clear()
    (tmp_path / "results").rename(tmp_path / "before")
    offline = ended(started(server, tmp_path, *options, HF_HUB_OFFLINE="1"), tmp_path)
    assert (offline.code, server.log) == (0, []), offline.err
    assert [sample.method.tokens for sample in offline.samples()] == tokens


@pytest.mark.slow
def test_an_interrupt_while_weights_are_fetched_ends_the_program(tmp_path: Path) -> None:
    repos = shipped("llama-7b", "llama-68m")
    weights = place_of_weights(repos[0])
    with serving(*repos, official("humaneval"), faults=[Fault(weights, after=1000, seconds=60, times=9)]) as server:
        process = started(server, tmp_path, *PAIR, HF_HUB_DOWNLOAD_TIMEOUT="6")
        while not server.requests(weights) and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        found = ended(process, tmp_path)
        assert (found.code, found.err) == (130, "specbench: interrupted\n")
        assert len(server.requests(weights)) == 1, "nobody sends: waited for once, here for 6 seconds"


@pytest.mark.slow
def test_a_disk_without_room_for_the_weights_ends_with_4(server: HubServer, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5 << 20, before[1]))  # inherited; nothing here writes so much
    try:
        process = started(server, tmp_path, *PAIR)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    found = ended(process, tmp_path)
    cache = os.path.join(str(tmp_path), "home", "hub")
    assert found.code == 4
    assert found.line.startswith(
        f"specbench: llama-7b (huggyllama/llama-7b) could not be fetched into {cache}: File too"
    )
