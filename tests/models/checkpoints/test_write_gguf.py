"""GGUF files of Llama checkpoints: read again, they have the same weights and the same token ids."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

from specbench.errors import UnusableModelError
from specbench.models.checkpoints.gguf import gguf_of
from specbench.shipped import ASSETS
from tests.support.tinypair import Pair

pytest.importorskip("gguf")

SHIPPED = ASSETS / "pair"


def made(pair: Pair, folder: Path, dtype: torch.dtype = torch.float32, **changes: object) -> Path:
    config = AutoConfig.from_pretrained(pair.target)
    for name, value in changes.items():
        setattr(config, name, value)
    tokenizer = AutoTokenizer.from_pretrained(pair.target)
    return gguf_of("tiny", [pair.target / "model.safetensors"], config, tokenizer, dtype, folder)


def test_what_is_read_again_is_the_same_network(pair: Pair, tmp_path: Path) -> None:
    file = made(pair, tmp_path)
    unpacked = {"dtype": torch.float32, "quantization_config": GgufConfig(dequantize=True)}
    found = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=file.name, **unpacked).eval()
    wanted = AutoModelForCausalLM.from_pretrained(pair.target, dtype=torch.float32).eval()
    ids = torch.tensor([[1, 5, 9, 2]])
    torch.testing.assert_close(found(ids).logits, wanted(ids).logits, atol=1e-5, rtol=1e-5)


def test_it_is_made_once_for_each_dtype(pair: Pair, tmp_path: Path) -> None:
    first = made(pair, tmp_path)
    before = first.stat().st_mtime_ns
    assert made(pair, tmp_path) == first
    assert first.stat().st_mtime_ns == before
    assert made(pair, tmp_path, torch.bfloat16).stat().st_size < first.stat().st_size
    assert len(list(tmp_path.iterdir())) == 2


def test_text_is_split_as_by_the_tokenizer_that_it_was_made_of(tmp_path: Path) -> None:
    folder = SHIPPED / "target"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    config = AutoConfig.from_pretrained(folder)
    file = gguf_of("demo", [folder / "model.safetensors"], config, tokenizer, torch.bfloat16, tmp_path)
    found = AutoTokenizer.from_pretrained(tmp_path, gguf_file=file.name)
    text = "def add(a, b):\n    return a + b\n"
    assert found(text).input_ids == tokenizer(text).input_ids


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"model_type": "mamba"}, "its architecture is mamba"),
        ({"attention_bias": True}, "its layers have biases"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "its rope is llama3"),
    ],
)
def test_what_it_does_not_write_is_refused(pair: Pair, tmp_path: Path, changes: dict[str, object], why: str) -> None:
    with pytest.raises(UnusableModelError, match=f"{why}.*convert it with llama"):
        made(pair, tmp_path, **changes)
    assert list(tmp_path.iterdir()) == []
