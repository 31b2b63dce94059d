"""`specbench check`, and runs against a hub: what is missing or does not fit, one way out; aliases, commits, tokens."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from specbench.backends import memory
from specbench.data.sources import HUB
from specbench.measure import fit
from specbench.models.checkpoints import description, loading, names
from specbench.models.checkpoints.names import resolve
from specbench.wording import clean
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

GB = 10**9
BOTH = ("--dataset", "humaneval", "--dataset", "xsum")


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading weights is an error."""

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(loading, "load_model", fail)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with serving() as server:
        use(server.url, tmp_path / "cache", monkeypatch)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def test_the_shipped_pair_is_ready(command: Command, unloaded: None) -> None:
    found = command("check", "--k", "1-4", "--format", "jsonl")
    rows = [json.loads(line) for line in found.out.splitlines()]
    assert found.code == 0
    assert {row["state"] for row in rows if row["kind"] == "needed"} == {"here"}
    sizes = {(row["what"], row["name"]): row["bytes"] for row in rows}
    assert sizes["weights", "target"] > sizes["weights", "draft"] > 0
    assert sizes["total", "cpu"] == sum(
        row["bytes"] for row in rows if row["kind"] == "memory" and row["name"] != "cpu"
    )
    assert "memory is enough" in found.err


@pytest.mark.usefixtures("offline", "unloaded")
@pytest.mark.parametrize("words", [("check", "llama-7b"), ("run", "--target", "llama-7b")])
def test_all_that_is_missing_is_named_at_once_with_one_command(command: Command, words: tuple[str, ...]) -> None:
    found = command(*words, *BOTH)
    assert found.code == 4
    line = found.err.splitlines()[-1]
    assert "4 things are missing" in line
    assert all(f" {name}" in line for name in ("target llama-7b", "draft llama-68m", "humaneval", "data set xsum"))
    commands = line.partition("`")[2].rstrip("`").split(" && ")
    assert commands[0] == f"hf download huggyllama/llama-7b --revision {resolve('llama-7b').revision}"
    assert [one.split()[2] for one in commands] == [
        "huggyllama/llama-7b", "JackFram/llama-68m", "openai/openai_humaneval", "EdinburghNLP/xsum"
    ]  # fmt: skip
    assert [one for one in commands[2:] if "--repo-type dataset" not in one] == []


@pytest.mark.usefixtures("offline", "unloaded")
@pytest.mark.parametrize("words", [("check",), ("run",)])
def test_extras_are_among_what_is_missing(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(names, "find_spec", lambda module: None)
    (tmp_path / "model.gguf").write_bytes(b"")
    found = command(*words, "-t", str(tmp_path / "model.gguf"), "-d", "llama-68m", "--quantize", "int8")
    line = found.err.splitlines()[-1]
    assert found.code == 4
    assert "3 things are missing" in line
    assert all(name in line for name in ("draft llama-68m", "extra gguf", "extra quant"))
    assert "&& pip install 'specbench-decoding[gguf]' && pip install 'specbench-decoding[quant]'`" in line


def test_what_can_be_fetched_is_listed_with_its_size_and_not_fetched(
    command: Command, unloaded: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = shipped("llama-7b", "llama-68m")
    with serving(target, draft, official("humaneval")) as server:
        use(server.url, tmp_path / "cache", monkeypatch)
        found = command("check", "llama-7b", "llama-68m", "--dataset", "humaneval", "--format", "jsonl")
        assert server.requests("/storage/*") == []
    rows = [row for row in map(json.loads, found.out.splitlines()) if row["kind"] == "needed"]
    weights = len(target.files["model.safetensors"])
    assert (found.code, [row["state"] for row in rows]) == (0, ["to fetch"] * 3)
    assert weights < rows[0]["bytes"] < weights + GB / 1000
    assert " && ".join(row["command"] for row in rows) in found.err
    assert "prompts of 1024 tokens are assumed" in found.err


def test_a_data_set_of_the_hub_is_listed_with_the_files_of_its_split(
    command: Command, unloaded: None, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {name: bytes(100) for name in ("a/test-00000-of-00002.parquet", "a/test-00001-of-00002.parquet")}
    words = ("check", *pair.options, "--dataset", "hf:some/set", "--dataset", "hf:some/none", "--format", "jsonl")
    with serving(Repo("some/set", {"a/train-00000-of-00001.parquet": b"", **files}, kind="datasets")) as server:
        use(server.url, tmp_path / "cache", monkeypatch)
        found = command(*words)
        assert server.requests("/storage/*") == []
    *_, one, other = [row for row in map(json.loads, found.out.splitlines()) if row["kind"] == "needed"]
    assert (one["state"], one["bytes"], other["state"]) == ("to fetch", 200, "missing")
    assert one["command"] == f"hf download some/set {' '.join(files)} --repo-type dataset --revision {COMMIT}"


def test_what_a_hub_refuses_is_told_beside_what_is_missing(
    command: Command, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(alias("llama3-8b", pair.target), Repo("some/private", {}, readers=("hf_x",))) as server:
        use(server.url, tmp_path / "cache", monkeypatch)
        found = command("run", "-t", "llama3-8b", "-d", "some/gone", "--dataset", "xsum")
    assert found.code == 4
    assert "target llama3-8b (" in found.line
    assert "is gated: accept its conditions on" in found.line
    assert "draft some/gone (does not exist" in found.line
    assert "`hf download meta-llama/Llama-3.1-8B-Instruct" in found.line
    assert "data set xsum (does not exist" in found.line
    assert found.line.count("hf download ") == 3
    assert "the hub does not answer" not in found.line


@pytest.mark.usefixtures("unloaded")
def test_what_does_not_fit_is_said_below_what_is_there(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "free_memory", lambda device: 20 * GB)
    found = command("check", "--target", "demo@llama3-8b")
    assert found.code == 4
    assert " of the memory of cpu, and 20.0 GB are free" in found.err.splitlines()[-1]


def test_of_a_sweep_what_fits_is_measured_and_the_rest_says_what_it_would_take(
    run: Command, command: Command, pair: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    words = (*pair.options, "--dataset", prompts(tmp_path / "words.jsonl", 4, 6, 5), "--max-new-tokens", "8")
    alone = command("check", *words, "--batch", "1", "--format", "jsonl")
    (total,) = (row["bytes"] for row in map(json.loads, alone.out.splitlines()) if row["what"] == "total")
    free = 2 * total
    monkeypatch.setattr(fit, "free_memory", lambda device: free)
    found = run("--batch", "1,64,2")
    rows = {row["batch"]: row for row in found.table()}
    assert (found.code, {batch: row["status"] for batch, row in rows.items()}) == (
        6, {"1": "ok", "2": "ok", "64": "oom"}
    )  # fmt: skip
    assert "1 of 3 cells ended without numbers: it takes about " in found.err
    assert (
        int(rows["1"]["memory_estimate"])
        < int(rows["2"]["memory_estimate"])
        < free
        < int(rows["64"]["memory_estimate"])
    )
    assert {row["memory_free"] for row in rows.values()} == {str(free)}
    assert rows["64"]["prompts_sha256"] == rows["1"]["prompts_sha256"]
    assert (rows["64"]["speedup"], rows["64"]["peak_memory_host"]) == ("", "")
    for name in ("baseline_peak_memory_host", "peak_memory_host"):
        assert rows["1"][name] == "" or int(rows["1"][name]) > 10**8, "the process has torch in it"
    assert rows["1"]["peak_memory_device"] == ""
    checked = command("check", *words, "--batch", "1,64")
    assert (checked.code, "batch 64 would be left out: it takes about " in checked.err) == (0, True)
    resumed = command("run", "--resume", str(found.folder))
    assert (resumed.code, found.table()) == (6, list(rows.values())), "that is final"


@pytest.mark.usefixtures("unloaded")
def test_the_real_machine_is_too_small_for_a_thousand_rows(command: Command) -> None:
    found = command("run", "--target", "demo@llama3-8b", "--batch", "4096", "--max-new-tokens", "4096")
    assert found.code == 4
    assert "--batch 1 takes" in found.line or "even with --batch 1" in found.line


@pytest.mark.usefixtures("unloaded")
def test_a_gpu_is_asked_for_its_own_memory_and_quantised_weights_are_a_way_out(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = {"cuda": 12 * GB, "cpu": 64 * GB}
    monkeypatch.setattr(fit, "free_memory", lambda device: free[device.type])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(description, "claimed", lambda device: device)
    found = command("check", "demo@llama3-8b", "--device", "cuda", "--dtype", "bfloat16", "--method", "prompt-lookup")
    assert found.code == 4
    assert "--quantize int8 --tier compile takes" in found.err, "other tiers would unpack it in every pass"
    assert "--quantize int4 takes" in found.err
    assert "while reading weights" in found.out


@pytest.mark.usefixtures("unloaded")
@pytest.mark.parametrize("reason", ["no compiler", "apart"])
def test_int8_is_no_way_out_on_a_gpu_that_cannot_compile(
    command: Command, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    monkeypatch.setattr(fit, "free_memory", lambda device: 12 * GB)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(description, "claimed", lambda device: device)
    if reason == "no compiler":
        monkeypatch.setattr(memory, "missing_compiler", lambda: "there is none")
    apart = ("--draft", "demo-draft", "--draft-device", "cpu") if reason == "apart" else ("--method", "prompt-lookup")
    found = command("check", "demo@llama3-8b", "--device", "cuda", "--dtype", "bfloat16", *apart)
    assert (found.code, "--quantize int4" in found.err, "int8" in found.err) == (4, True, False), found.err


THREE = (
    "no draft is known for {0}: name one with --draft, use a method that needs none (--method prompt-lookup), or train "
    "one (specbench train draft --target {0})"
)


def test_a_target_without_a_known_draft_is_checked_alone(
    command: Command, pair: Pair, unloaded: None, tmp_path: Path
) -> None:
    found = command(
        "check", pair.target, "--dataset", prompts(tmp_path / "w.jsonl", 4, 6), "--max-new-tokens", "8"
    ).ok()
    assert "target" in found.out
    assert "draft" not in found.out
    assert "the target can be decoded" in found.err
    assert " ".join(found.err.split()).endswith(THREE.format(clean(pair.target)))


def test_a_run_without_a_known_draft_says_what_one_can_do(command: Command, pair: Pair, unloaded: None) -> None:
    found = command("run", "--target", pair.target)
    assert found.code == 2
    assert found.line == f"specbench: {THREE.format(clean(pair.target))}"


# --- runs -------------------------------------------------------------------------------------------------------------


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
