"""LoRA adapters: merged into the base that they name, and refused in one line where that cannot be done."""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.errors import UsageError
from specbench.models.checkpoints import names
from specbench.models.checkpoints.description import load_config, load_tokenizer
from specbench.models.checkpoints.divided import How
from specbench.models.checkpoints.loading import load_model
from specbench.models.checkpoints.names import resolve
from tests.support.checkpoints import CPU, WORDS, refusal_of, save_tiny

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


def test_a_whole_model_beside_an_adapter_is_refused(tmp_path: Path) -> None:
    describe(save_tiny(tmp_path))
    assert "holds a whole model (model.safetensors) and an adapter" in refusal_of(load_config, resolve(str(tmp_path)))


def test_what_merges_adapters_is_named_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "find_spec", lambda _: None)
    found = refusal_of(load_config, resolve(str(describe(tmp_path / "adapter"))))
    assert found.endswith("an adapter needs peft: pip install 'specbench-decoding[peft]'")
