"""A target in parts: what several processes hold together, and what is divided over devices, is the same network."""

import csv
import io
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

import specbench
from specbench.backends.base import Held
from specbench.backends.native import open_pair
from specbench.decoding.randomness import FromUniforms, Stream
from specbench.errors import UnusableModelError, UsageError
from specbench.models.checkpoints import divided
from specbench.models.checkpoints.divided import How
from specbench.models.checkpoints.loading import load_model
from specbench.models.checkpoints.names import Checkpoint
from specbench.models.execution import machine
from specbench.results.reading import read_run
from specbench.results.samples import Sample
from specbench.spec import RunSpec
from tests.support import split_rows
from tests.support.checkpoints import llama
from tests.support.frontdoor import Command
from tests.support.tinypair import EOS, Pair, prompts, save_tokenizer

CPU = torch.device("cpu")
EVEN = {"num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 32, "intermediate_size": 64}


ABSENT = "--tensor-parallel 2: 1 of 2 processes are there: start with torchrun --nproc-per-node 2 -m specbench run …"


@pytest.mark.parametrize(
    ("how", "count", "shape", "said"),
    [
        (How(parallel=2), 1, {}, ABSENT),
        (How(parallel=4), 4, {}, "big has num_key_value_heads = 2, which does not divide by 4: use 2"),
        (
            How(parallel=3),
            3,
            {"num_key_value_heads": 4},
            "num_attention_heads = 4, which does not divide by 3: use 2, 4",
        ),
        (
            How(parallel=2),
            2,
            {"num_key_value_heads": 1},
            "num_key_value_heads = 1, which does not divide by 2: it can ",
        ),
        (How(parallel=2), 2, {"intermediate_size": 63}, "which does not divide by 2: it can only be held whole"),
        (How(device_map="auto", parallel=2), 2, {}, "leave one out"),
        (How(quantize="int8", parallel=2), 2, {}, "cannot be split: --quantize int8 needs all"),
    ],
)
def test_a_target_that_cannot_be_split_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: How, count: int, shape: dict[str, int], said: str
) -> None:
    monkeypatch.setattr(machine, "joined", lambda: count)
    with pytest.raises((UsageError, UnusableModelError)) as refusal:
        divided.refuse_unsplit(Checkpoint("big", str(tmp_path)), llama(**{**EVEN, **shape}), how, CPU)
    assert said in str(refusal.value)


def test_an_architecture_without_a_plan_is_refused() -> None:
    with pytest.raises(UnusableModelError, match="transformers has no plan for opt, which big is"):
        divided.refuse_unplanned("big", hf.OPTConfig())


def test_every_plan_that_is_taken_is_of_ways_that_are_known() -> None:
    for config in (hf.LlamaConfig(), hf.Qwen3Config(), hf.MistralConfig()):
        divided.refuse_unplanned("big", config)


def test_every_decision_is_agreed_on() -> None:
    seen = list[torch.Tensor]()

    def agree(decision: torch.Tensor) -> torch.Tensor:
        seen.append(decision)
        return torch.ones_like(decision)

    def uniforms(shape: tuple[int, ...], stream: Stream) -> torch.Tensor:
        return torch.full(shape, 0.5, dtype=torch.float64)

    row = torch.tensor([[0.9, 0.1, 0.0]])
    for certain in (False, True):
        source = FromUniforms(uniforms, certain, agree)
        assert source.categorical(row, Stream.DRAFT).tolist() == [1]
        assert source.bernoulli(row[:, 1], Stream.ACCEPT).tolist() == [True]
    assert [one.tolist() for one in seen] == [[0], [False]] * 2


@pytest.fixture(scope="module")
def even(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A pair of random checkpoints; every size of the target divides by two."""
    folder = tmp_path_factory.mktemp("even")
    torch.manual_seed(0)
    for name, layers in (("target", 2), ("draft", 1)):
        ends = {"bos_token_id": None, "eos_token_id": EOS, "pad_token_id": None}
        network = hf.LlamaForCausalLM(llama(**EVEN, **ends, num_hidden_layers=layers, max_position_embeddings=48))
        for weight in (w for w in network.parameters() if w.ndim > 1):
            weight.data *= 8
        network.save_pretrained(folder / name)
        save_tokenizer(folder / name)
    return Pair(folder / "target", folder / "draft")


def torchrun(*arguments: object) -> str:
    """What two processes that torchrun starts print; none of them outlives this."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    running = subprocess.Popen(
        [*command, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=settings,
        start_new_session=True,
    )
    try:
        said, errors = running.communicate(timeout=200)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()
    assert running.returncode == 0, errors
    return said


@pytest.mark.slow
def test_two_processes_compute_the_rows_of_one(even: Pair, tmp_path: Path) -> None:
    torchrun("tests.support.split_rows", even.target, 2, tmp_path / "rows.pt")
    split = torch.load(tmp_path / "rows.pt")
    whole = split_rows.rows(str(even.target), None)
    assert split[0].equal(whole[0])
    for ours, theirs in zip(split[1:], whole[1:], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    assert float(whole[1].max()) < 0.999  # there was something to draw


@pytest.mark.slow
def test_two_processes_decode_the_tokens_of_one(even: Pair, tmp_path: Path) -> None:
    asked = {"dataset": prompts(tmp_path / "words.jsonl", 4, 6, 5), "dtype": "float64", "k": 3, "temperature": 1.0}
    asked |= {"max_new_tokens": 10, "warmup": 1, "target": str(even.target), "draft": str(even.draft), "tier": "eager"}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in asked.items()]
    folder = tmp_path / "split"
    said = torchrun("specbench", "run", *options, "--format", "csv", "--output-dir", folder)
    (row,) = csv.DictReader(io.StringIO(said))  # the first process alone prints and writes
    assert (row["status"], row["tensor_parallel"]) == ("ok", "2")
    assert row["target_weights"] == "safetensors, split over 2 processes"
    (run,) = folder.iterdir()
    (split,) = read_run(run).cells
    (whole,) = specbench.run(**asked, output_dir=tmp_path / "whole").cells
    assert decoded(split.samples) == decoded(whole.samples)


def decoded(samples: Sequence[Sample]) -> list[Any]:
    """The tokens of both arms, and the counts of the rounds."""
    counts = [[(one.drafted, one.tested, one.accepted) for one in sample.method.rounds] for sample in samples]
    return [[s.baseline.tokens for s in samples], [s.method.tokens for s in samples], counts]


# --- divided over devices ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Four layers of 1.3 MB each, an embedding and a head of 0.1 MB, in bfloat16."""
    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=200,
        hidden_size=256,
        intermediate_size=640,
        num_hidden_layers=4,
        num_attention_heads=4,
        tie_word_embeddings=False,
    )
    folder = tmp_path_factory.mktemp("four layers")
    hf.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return Checkpoint("four", str(folder))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_divided_network_gives_the_rows_of_a_whole_one(checkpoint: Checkpoint, dtype: torch.dtype) -> None:
    ids = torch.arange(40).unsqueeze(0)
    whole = load_model(checkpoint, dtype, CPU)
    parted = load_model(checkpoint, dtype, CPU, how=How(device_map=f"cpu={3 * dtype.itemsize}MB"))
    places = divided.shares(parted.model)
    assert places["disk"] > 0.2
    assert places["cpu"] > 0.2
    assert sum(places.values()) == pytest.approx(1)
    assert parted.model(input_ids=ids).logits.equal(whole.model(input_ids=ids).logits)
    assert parted.weights == f"safetensors, {places['cpu']:.0%} on cpu, {places['disk']:.0%} on disk"
    assert any("is divided" in line for line in parted.warnings)


def test_one_that_fits_is_whole(checkpoint: Checkpoint) -> None:
    found = load_model(checkpoint, torch.float32, CPU, how=How(device_map="auto"))
    assert (divided.shares(found.model), found.weights) == ({}, "safetensors")
    assert not any("is divided" in line for line in found.warnings)


def test_limits_are_bytes_by_the_names_of_devices() -> None:
    assert divided.limits("cpu=2GB", CPU) == {"cpu": 2 * 10**9}
    gpu = torch.device("cuda:1")
    assert divided.limits("cuda:1=1GiB, cpu=3MB", gpu) == {"cuda:1": 1 << 30, "cpu": 3 * 10**6}
    assert divided.limits("auto", CPU)["cpu"] > 0


@pytest.mark.parametrize("text", ["", "cpu", "cpu=", "cpu=much", "cuda:3=1GB", "disk=1GB", "balanced"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--device-map"):
        divided.limits(text, CPU)


SMALL = ("--device-map", "cpu=25KB")


def test_a_run_emits_the_same_and_says_that_it_is_divided(run: Command, tmp_path: Path) -> None:
    whole = run("-q")
    (tmp_path / "results").rename(tmp_path / "before")
    found = run(*SMALL)
    assert found.code == 0, found.err
    assert [one.method.tokens for one in found.samples()] == [one.method.tokens for one in whole.samples()]
    (row,) = found.table()
    assert "on disk" in row["target_weights"]
    assert (row["device_map"], row["lossless"]) == (SMALL[1], "identical")
    assert "is divided" in found.err


@pytest.mark.parametrize("shape", ["", "@llama-68m"])
def test_it_is_a_way_out_for_targets_that_can_be_divided(
    monkeypatch: pytest.MonkeyPatch, pair: Pair, shape: str
) -> None:
    monkeypatch.setattr(machine, "fit_threads", lambda: None)  # those of this process are for all tests
    spec = RunSpec(target=f"{pair.target}{shape}", draft=str(pair.draft))
    demand = open_pair([spec]).demand([Held([spec], 8)])
    assert demand is not None
    assert ("--device-map auto (slow)" in demand.others()) == (not shape)


def test_a_device_that_does_not_hold_the_embeddings_is_refused(run: Command) -> None:
    found = run("--device-map", "cpu=1KB")
    assert (found.code, "must hold at least the embeddings" in found.line) == (4, True)


def test_a_grown_target_is_refused(command: Command, pair: Pair) -> None:
    found = command("run", "--target", f"{pair.target}@llama-68m", "--draft", pair.draft, "--device-map", "auto")
    assert (found.code, "grown" in found.line) == (2, True)
