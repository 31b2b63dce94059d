"""A target that is larger than its device: divided, it is the same network; its results say where it lies."""

from pathlib import Path

import pytest
import torch
import transformers as hf

from specbench.backends.base import Held
from specbench.backends.native import open_pair
from specbench.errors import UsageError
from specbench.models.checkpoints import divided
from specbench.models.checkpoints.divided import How
from specbench.models.checkpoints.loading import load_model
from specbench.models.checkpoints.names import Checkpoint
from specbench.models.execution import machine
from specbench.spec import RunSpec
from tests.support.frontdoor import Command
from tests.support.tinypair import Pair

CPU = torch.device("cpu")


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
