"""Drafts as files: what is written loads again to the same bits, and a folder never holds half of it."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from specbench.errors import UsageError
from specbench.models.checkpoints.loading import load_model
from specbench.models.checkpoints.names import Checkpoint
from specbench.models.network.sampling import ReducedHead, reduce_head
from specbench.training import start
from tests.support.checkpoints import CPU, WEIGHTS, llama
from tests.support.families import CONFIGS

KNOWN = (0, 3, 4, 9, 63)
TEXT = torch.tensor([[1, 5, 63, 0, 2]])


def draft(tied: bool = True) -> Any:
    config = start.config_of(start.Shape.of(2, 32), llama())
    config.tie_word_embeddings = tied
    return LlamaForCausalLM(config).eval()


def in_dtype(model: Any, dtype: torch.dtype) -> Any:
    """Its weights alone: the frequencies of rotary positions stay float32, as in what is loaded."""
    for weight in model.parameters():
        weight.data = weight.data.to(dtype)
    return model


def loaded(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    found = load_model(Checkpoint("draft", str(folder)), dtype, CPU)
    assert found.warnings == ()
    return found


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tied", [True, False])
def test_a_draft_is_read_as_it_was_written(dtype: torch.dtype, tied: bool, tmp_path: Path) -> None:
    model = draft(tied)
    start.save_draft(model, tmp_path / "deep" / "er", dtype)
    again = loaded(tmp_path / "deep" / "er", dtype)
    assert again.model.config.dtype == dtype
    assert model.dtype == torch.float32
    assert torch.equal(again.model(TEXT).logits, in_dtype(model, dtype)(TEXT).logits)
    assert ("lm_head.weight" in load_file(tmp_path / "deep" / "er" / WEIGHTS)) != tied
    assert again.model.generation_config.eos_token_id == model.generation_config.eos_token_id


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tied", [True, False])
def test_a_draft_that_knows_some_tokens_is_read_as_it_was_written(
    dtype: torch.dtype, tied: bool, tmp_path: Path
) -> None:
    model = reduce_head(draft(tied), KNOWN)
    start.save_draft(model, tmp_path, dtype)
    again = loaded(tmp_path, dtype)
    logits = again.model(TEXT).logits
    assert torch.equal(logits, in_dtype(model, dtype)(TEXT).logits)
    assert (logits.isfinite().all(0).all(0).nonzero()[:, 0]).tolist() == list(KNOWN)
    assert again.weights == "safetensors, 5 of 64 tokens"
    file = load_file(tmp_path / WEIGHTS)
    assert file["lm_head.weight"].shape == (5, 32)
    assert (file["d2t"] + torch.arange(5)).tolist() == file["t2d"].nonzero()[:, 0].tolist() == list(KNOWN)
    assert file["d2t"].dtype == torch.int64


@torch.no_grad()
@pytest.mark.parametrize("name", ["gpt2", "neox", "gemma2", "mixtral"])
def test_any_architecture_may_know_some_tokens(name: str, tmp_path: Path) -> None:
    config, shape = CONFIGS[name]
    model = hf.AutoModelForCausalLM.from_config(config(vocab_size=64, pad_token_id=None, eos_token_id=2, **shape))
    whole = model.eval()(TEXT).logits[..., list(KNOWN)]
    start.save_draft(reduce_head(model, KNOWN), tmp_path)
    again = loaded(tmp_path).model
    assert isinstance(again.get_output_embeddings(), ReducedHead)
    assert torch.equal(again(TEXT).logits, model(TEXT).logits)
    assert torch.allclose(again(TEXT).logits[..., list(KNOWN)], whole, atol=1e-5)


def test_other_files_of_the_folder_stay_and_a_failure_leaves_the_last_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "README.md").write_text("mine")
    start.save_draft(draft(), tmp_path)
    before = (tmp_path / WEIGHTS).read_bytes()

    def full(*arguments: object, **named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(hf.LlamaForCausalLM, "save_pretrained", full)
    with pytest.raises(UsageError, match=r"cannot write the draft to .*No space left on device"):
        start.save_draft(reduce_head(draft(), KNOWN), tmp_path)
    assert (tmp_path / WEIGHTS).read_bytes() == before
    names = {"README.md", "config.json", "generation_config.json", WEIGHTS}
    assert {file.name for file in tmp_path.iterdir()} == names
