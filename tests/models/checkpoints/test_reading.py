"""Reading weights: counted in bytes, one by one, and straight to where they belong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from specbench.models.checkpoints.loading import load_model
from specbench.models.checkpoints.names import Checkpoint
from tests.support.checkpoints import CPU, llama, save_tiny

PEAK = """
import sys, torch
from pathlib import Path
from specbench.models.checkpoints.description import load_config
from specbench.models.checkpoints.loading import load_model
from specbench.models.checkpoints.names import Checkpoint

def peak():  # not that of getrusage, which a process inherits from the one that began it
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1])

checkpoint = Checkpoint("sharded", sys.argv[1])
load_config(checkpoint)
before = peak()
load_model(checkpoint, torch.bfloat16, torch.device(sys.argv[2]))
print(1024 * (peak() - before))
"""


def saved(folder: Path, shard: str) -> Checkpoint:
    LlamaForCausalLM.from_pretrained(save_tiny(folder / "whole")).save_pretrained(
        folder / "shards", max_shard_size=shard
    )
    return Checkpoint("tiny", str(folder / "shards"))


def test_what_has_been_read_is_told_in_bytes(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []

    def hear(verb: str, done: int, total: int) -> None:
        told.append((done, total))

    model = load_model(saved(tmp_path, "8KB"), torch.float32, CPU, hear).model
    sizes = [file.stat().st_size for file in (tmp_path / "shards").glob("*.safetensors")]
    done = [count for count, _ in told]
    assert {total for _, total in told} == {sum(sizes)}
    assert done == sorted(done)
    assert len(done) == len(model.state_dict())
    assert sum(sizes) - done[-1] < 2000 * len(sizes)  # headers


def test_weights_of_shards_are_those_that_were_saved(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, "8KB")
    read = load_model(checkpoint, None, CPU).model.state_dict()
    kept = LlamaForCausalLM.from_pretrained(tmp_path / "whole").state_dict()
    assert read.keys() == kept.keys()
    assert all(torch.equal(read[name], kept[name]) for name in read)
    assert {tensor.data_ptr() % 64 for tensor in read.values()} == {0}


def test_weights_are_put_on_their_device_by_the_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("accelerate")
    monkeypatch.setattr(LlamaForCausalLM, "to", None)  # nothing is moved afterwards
    model = load_model(saved(tmp_path, "8KB"), None, torch.device("meta")).model
    assert {weight.device.type for weight in model.parameters()} == {"meta"}


def test_eos_of_a_generation_config_is_kept_and_else_that_of_the_configuration(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path, "5GB")
    own = tmp_path / "shards" / "generation_config.json"
    own.write_text(json.dumps({"eos_token_id": [5, 6]}))
    assert load_model(checkpoint, None, CPU).model.generation_config.eos_token_id == [5, 6]
    own.unlink()
    config = LlamaForCausalLM.from_pretrained(tmp_path / "shards").generation_config
    assert load_model(checkpoint, None, CPU).model.generation_config.eos_token_id == config.eos_token_id


@pytest.mark.slow
def test_a_host_holds_less_than_a_shard_while_weights_go_elsewhere(tmp_path: Path) -> None:
    """`meta` stands for a GPU: every weight is read and taken over, and no copy of it stays in this memory."""
    pytest.importorskip("accelerate")
    sizes = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 20, "vocab_size": 8000}
    LlamaForCausalLM(llama(**sizes)).to(torch.bfloat16).save_pretrained(tmp_path, max_shard_size="32MB")
    shards = [file.stat().st_size for file in tmp_path.glob("*.safetensors")]

    def peak(device: str) -> int:
        command = [sys.executable, "-c", PEAK, str(tmp_path), device]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert len(shards) > 3
    assert peak("meta") < 1.2 * max(shards)
    assert sum(shards) < peak("cpu") < sum(shards) + 2.4 * max(shards)
