"""LoRA adapters: merged into the base that they name, and refused in one line where that cannot be done.

Reading weights: counted in bytes, one by one, and straight to where they belong.
"""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from specbench.errors import UsageError
from specbench.models.checkpoints.description import load_config, load_tokenizer
from specbench.models.checkpoints.divided import How
from specbench.models.checkpoints.loading import load_model
from specbench.models.checkpoints.names import Checkpoint, resolve
from tests.support.checkpoints import CPU, WORDS, llama, refusal_of, save_tiny

needs_peft = pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="the extra peft is not installed")
TEXT = torch.tensor([[5, 9, 2, 40]])


def describe(folder: Path, **changes: object) -> Path:
    """An adapter's folder without weights, or one whose description is changed."""
    folder.mkdir(exist_ok=True)
    file = folder / "adapter_config.json"
    before = json.loads(file.read_text()) if file.exists() else {"peft_type": "LORA", "base_model_name_or_path": "x/y"}
    file.write_text(json.dumps({**before, **changes}))
    return folder


@pytest.fixture(scope="session")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """An adapter of a tiny checkpoint as a folder, and the base with it, unmerged."""
    import peft

    place = tmp_path_factory.mktemp("adapters")
    base = load_model(resolve(str(save_tiny(place / "base"))), torch.float32, CPU).model
    base.config._name_or_path = str(place / "base")
    lora = peft.LoraConfig(r=2, lora_alpha=8, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    torch.manual_seed(1)
    model = peft.get_peft_model(base, lora)
    model.save_pretrained(str(place / "adapter"))
    return describe(place / "adapter", base_model_name_or_path=str(place / "base")), model.eval()


@needs_peft
def test_an_adapter_is_merged_into_its_base(adapted: tuple[Path, Any]) -> None:
    folder, unmerged = adapted
    loaded = load_model(resolve(str(folder)), torch.float32, CPU)
    plain = load_model(resolve(str(folder.parent / "base")), torch.float32, CPU).model
    ours, theirs = loaded.model(TEXT).logits, unmerged(input_ids=TEXT).logits
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert not torch.allclose(ours, plain(TEXT).logits, atol=1e-2)
    assert type(loaded.model) is type(plain)
    assert set(loaded.model.state_dict()) == set(plain.state_dict()), "an ordinary network, without parts of peft"
    assert not any(weight.requires_grad for weight in loaded.model.parameters())
    assert loaded.weights == f"safetensors, LoRA adapter merged into {folder.parent / 'base'}"


@needs_peft
def test_what_an_adapter_lacks_its_base_has(adapted: tuple[Path, Any]) -> None:
    checkpoint = resolve(str(adapted[0]))
    assert load_config(checkpoint).hidden_size == 16
    assert load_tokenizer(checkpoint).get_vocab() == WORDS


@needs_peft
def test_an_adapter_that_cannot_be_merged_is_refused(adapted: tuple[Path, Any], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(adapted[0], tmp_path / "adapter"))

    def refusal(**changes: object) -> str:
        return refusal_of(load_model, resolve(str(describe(folder, **changes))), None, CPU)

    assert "of type PROMPT_TUNING: only LoRA is merged" in refusal(peft_type="PROMPT_TUNING")
    assert "adapter_config.json: peft_type: Input should be a valid string" in refusal(peft_type=7)
    gone = refusal(peft_type="LORA", base_model_name_or_path="/no/such/folder")
    assert "the base of this adapter, '/no/such/folder', cannot be found: correct base_model_name_or_path" in gone
    base = str(save_tiny(tmp_path / "wider"))
    (folder / "adapter_model.safetensors").unlink()
    assert "no adapter_model.safetensors in" in refusal(base_model_name_or_path=base)


@needs_peft
@needs_peft
def test_a_target_that_is_an_adapter_is_not_divided(adapted: tuple[Path, Any]) -> None:
    """Nor is that offered where memory is short, which asks the same."""
    with pytest.raises(UsageError, match="cannot be divided: its adapter is merged into all of it"):
        load_model(resolve(str(adapted[0])), torch.float32, CPU, how=How(device_map="auto"))


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
