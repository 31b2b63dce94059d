"""Sizes of networks that are never built, against the same networks built."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    DeepseekV2Config,
    DeepseekV3Config,
    DynamicCache,
    FalconConfig,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MambaConfig,
    MixtralConfig,
)

from specbench.models.checkpoints.divided import How, network_sizes
from tests.support.checkpoints import CPU, llama

SMALL: dict[str, Any] = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2}
HEADS: dict[str, Any] = {**SMALL, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 32}
LATENT = {"kv_lora_rank": 12, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 6}
LATENT |= {"first_k_dense_replace": 2, "num_key_value_heads": 4}
CONFIGS = {
    "llama": llama(),
    "tied": llama(tie_word_embeddings=True),
    "gpt2": GPT2Config(vocab_size=64, n_embd=16, n_layer=2, n_head=2),
    "gemma3": Gemma3TextConfig(**HEADS, head_dim=8, sliding_window=4),
    "mixtral": MixtralConfig(**HEADS, num_local_experts=4),
    "one key for all queries": FalconConfig(**SMALL, num_attention_heads=4, multi_query=True),
    "latent keys (DeepSeek-V3)": DeepseekV3Config(**{**HEADS, **LATENT}),
    "latent keys (DeepSeek-V2)": DeepseekV2Config(**{**HEADS, **LATENT}),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_weights_and_cache_are_those_of_the_network(config: Any) -> None:
    found = network_sizes(config, torch.float32, CPU)
    network = AutoModelForCausalLM.from_config(config).float()
    weights = {id(tensor): tensor.nbytes for tensor in (*network.parameters(), *network.buffers())}
    cache = DynamicCache(config=config)
    network(torch.zeros((1, 3), dtype=torch.long), past_key_values=cache, use_cache=True)
    kept = sum(tensor.nbytes for layer in cache.layers for tensor in (layer.keys, layer.values))
    assert found.weights == sum(weights.values())
    assert found.cache(3, 1) == kept
    assert found.inner >= 32


def test_a_network_with_a_recurrent_state_has_no_cache() -> None:
    assert network_sizes(MambaConfig(**SMALL), torch.float32, CPU).cache(100, 1) == 0


def test_a_host_that_quantises_for_a_device_holds_all_weights_and_the_device_fewer_bytes() -> None:
    device = torch.device("cuda")
    whole, packed = (network_sizes(llama(), torch.bfloat16, device, How(quantize=kind)) for kind in (None, "int8"))
    assert packed.weights < packed.read
    assert packed.read == pytest.approx(whole.weights, rel=0.01)  # buffers are made where they belong
    assert whole.read < whole.weights


@pytest.mark.parametrize(
    ("device", "dtype", "keys", "scored"),
    [
        ("cuda", torch.float32, 2, True),
        ("cuda", torch.float64, 2, True),
        ("cuda", torch.float32, 4, False),
        ("cuda", torch.bfloat16, 2, False),
        ("cpu", torch.float32, 2, False),
    ],
)
def test_grouped_keys_in_float32_on_a_gpu_have_no_kernel_without_scores(
    device: str, dtype: torch.dtype, keys: int, scored: bool
) -> None:
    config = LlamaConfig(**{**HEADS, "num_key_value_heads": keys})
    found = network_sizes(config, dtype, torch.device(device))
    unscored = replace(found, scored=False).prefill(300, 320, 1)
    assert found.prefill(300, 320, 1) - unscored == scored * 4 * 300 * 320 * (2 * dtype.itemsize + 4)
