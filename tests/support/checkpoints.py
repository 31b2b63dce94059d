"""Tiny checkpoints on disk, with random weights, for the tests of loading."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from specbench.errors import UnusableModelError

disable_progress_bar()  # of the files that are written here: commands have lines of their own
CPU = torch.device("cpu")
WEIGHTS = "model.safetensors"
WORDS = {"a": 0, "b": 1, "c": 2}


def llama(**changes: Any) -> LlamaConfig:
    shape = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    return LlamaConfig(**{**shape, "num_attention_heads": 2, "num_key_value_heads": 1, **changes})


def save_tiny(folder: Path) -> Path:
    """A Llama of two layers and a tokenizer of three words, saved into `folder`."""
    torch.manual_seed(0)
    LlamaForCausalLM(llama()).save_pretrained(folder)
    words = Tokenizer(models.WordLevel(WORDS, unk_token="a"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="a").save_pretrained(folder)
    return folder


def refusal_of(step: Callable[..., object], *arguments: object) -> str:
    """The one line with which `step` refuses a checkpoint."""
    with pytest.raises(UnusableModelError) as refusal:
        step(*arguments)
    message = str(refusal.value)
    assert "\n" not in message
    assert len(message) < 500
    return message
