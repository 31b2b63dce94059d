"""Which architectures are refused before a weight is read, and with which reason."""

from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import PreTrainedConfig

from specbench.models.checkpoints.description import attention, load_config, obstacle, recurrent
from specbench.models.checkpoints.loading import load_model
from specbench.models.checkpoints.names import Checkpoint
from specbench.models.network.attention import NAME
from tests.support.checkpoints import CPU, llama, refusal_of


def config_of(name: str, **changes: Any) -> PreTrainedConfig:
    return transformers.CONFIG_MAPPING[name](**changes)


@pytest.mark.parametrize(
    "name",
    ["mamba", "mamba2", "falcon_mamba", "jamba", "zamba2", "falcon_h1", "nemotron_h", "qwen3_next", "olmo_hybrid"],
)
def test_a_state_in_a_cache_of_transformers_passes_as_recurrent(name: str) -> None:
    assert obstacle(config_of(name)) is None
    assert recurrent(config_of(name))


def test_so_does_a_convolution_state_and_nothing_with_attention_alone() -> None:
    layers = ["conv", "full_attention"]
    assert recurrent(config_of("lfm2", num_hidden_layers=2, layer_types=layers))
    assert not any(recurrent(config_of(name)) for name in ("llama", "mistral", "gemma3_text", "gpt_oss"))


@pytest.mark.parametrize("name", ["rwkv", "xlstm"])
def test_a_state_of_another_form_is_refused(name: str) -> None:
    reason = obstacle(config_of(name))
    assert reason is not None
    assert f"state of {name} cannot be rolled back by position" in reason
    assert "nor copied" in reason


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (config_of("t5"), "encoder-decoder"),
        (config_of("bart"), "encoder-decoder"),
        (config_of("vit"), "not a causal language model"),
        (config_of("bert"), "is an encoder"),
        (llama(architectures=["LlamaForSequenceClassification"]), "saved as LlamaForSequenceClassification"),
        (config_of("llama4_text"), "attends in chunks"),
        (config_of("bloom"), "takes no position_ids"),
        (config_of("openai-gpt"), "takes no past_key_values"),
    ],
)
def test_what_the_engine_cannot_drive_is_refused(config: PreTrainedConfig, reason: str) -> None:
    assert reason in str(obstacle(config))


@pytest.mark.parametrize(
    "name", ["llama", "mistral", "qwen2", "qwen3", "gpt2", "gpt_neox", "opt", "gemma2", "gemma3_text", "gptj", "phi3"]
)
def test_full_and_sliding_attention_pass(name: str) -> None:
    assert obstacle(config_of(name)) is None


def test_sdpa_is_the_attention_where_the_architecture_has_it() -> None:
    assert attention(config_of("llama")) == NAME
    assert attention(config_of("gemma2")) == attention(config_of("gpt_oss")) == "eager"
    assert attention(config_of("falcon")) == "sdpa"


def test_a_checkpoint_with_a_state_of_another_form_is_refused_by_its_configuration_alone(tmp_path: Path) -> None:
    transformers.RwkvConfig(vocab_size=64, hidden_size=16, num_hidden_layers=2).save_pretrained(tmp_path)
    checkpoint = Checkpoint("tiny", str(tmp_path))
    assert "cannot be rolled back" in refusal_of(load_config, checkpoint)
    assert "cannot be rolled back" in refusal_of(load_model, checkpoint, None, CPU)
