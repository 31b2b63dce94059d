"""What trainings in tests learn from: examples in memory, a tiny target and a tinier draft."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specbench.training.cache import Example
from specbench.training.distil import Run
from specbench.training.evaluation import Trained

VOCABULARY = 31


def train(*given: Any, **more: Any) -> Trained:
    """A training from its beginning, or its newest checkpoint, to its end."""
    return Run(*given, **more).trained()


class InMemory(list[Example]):
    """Examples as a cache gives them."""

    @property
    def lengths(self) -> np.ndarray:
        return np.array([len(example.ids) for example in self])

    def learned(self, prompts: bool) -> np.ndarray:
        return np.array([len(example.ids) - (1 if prompts else example.start) for example in self])


def cache(train: Sequence[Example], held_out: Sequence[Example], kind: str = "answers", **law: float) -> Any:
    """What the trainer reads of a token cache."""
    origin = SimpleNamespace(
        kind=kind, **{"temperature": 0.0, "top_k": None, "top_p": None, "min_p": None, "eta": None, **law}
    )
    return SimpleNamespace(train=InMemory(train), held_out=InMemory(held_out), manifest=SimpleNamespace(origin=origin))


def llama(layers: int = 1, width: int = 16, seed: int = 0, scale: float = 0.3) -> LlamaForCausalLM:
    """A random Llama whose distributions are far from uniform."""
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64, tie_word_embeddings=True,
        bos_token_id=0, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    network = LlamaForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(seed)
    for parameter in network.parameters():
        if parameter.ndim > 1:
            parameter.data = scale * torch.randn(parameter.shape, generator=generator)
    return network.requires_grad_(False)


def examples(count: int, seed: int = 0, categories: Sequence[str] = ("a", "b"), longest: int = 14) -> list[Example]:
    """Random prompts and answers of various lengths."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(count):
        size = int(random.integers(5, longest + 1))
        ids = random.integers(1, VOCABULARY, size).tolist()
        found.append(Example(ids, int(random.integers(1, 4)), categories[number % len(categories)], f"{seed}-{number}"))
    return found
