"""Which architectures the engine can drive: causal models whose state is a cache of keys and values by position, or one
that can be copied and put back.

Knows configurations and model classes; must not know weights. Everything here is decided before a weight is read.
"""

import inspect
import re
from typing import Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING, DynamicCache, PreTrainedConfig

from specbench.models.network import attention as grouped

# By name, because the list must hold over several releases: a layer class that is not here is refused, known or not.
ROLLED_BACK_BY_POSITION = {"DynamicLayer", "DynamicSlidingWindowLayer"}
PUT_BACK = {
    *("LinearAttentionLayer", "LinearAttentionAndFullAttentionLayer"),
    *("LinearAttentionAndSlidingWindowAttentionLayer", "DummyLayer"),
}
OTHER_HEAD = re.compile(r"For(?!CausalLM|ConditionalGeneration)[A-Z]")  # LlamaForSequenceClassification


def obstacle(config: PreTrainedConfig) -> str | None:
    """Why a checkpoint with this configuration cannot be driven; None if it can."""
    if (reason := _not_causal(config)) or recurrent(config):
        return reason
    return _not_by_position(config) or _not_our_inputs(config)


def recurrent(config: PreTrainedConfig) -> bool:
    """Whether all that a network remembers is a cache of transformers' own with recurrent states in it."""
    layers = _cache_layers(config)
    return any(name.startswith("Linear") for name in layers) and layers <= PUT_BACK | ROLLED_BACK_BY_POSITION


def _not_causal(config: PreTrainedConfig) -> str | None:
    kind = type(config)
    if config.is_encoder_decoder:
        return f"{config.model_type} is an encoder-decoder; only decoder-only models can be benchmarked"
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return f"{config.model_type} is not a causal language model"
    # Encoders can be had with a causal head, but without this flag they attend in both directions all the same.
    if kind in MODEL_FOR_MASKED_LM_MAPPING and not getattr(config, "is_decoder", True):
        return f"{config.model_type} is an encoder (is_decoder is false), not a causal language model"
    if other := [name for name in getattr(config, "architectures", None) or () if OTHER_HEAD.search(name)]:
        return f"it was saved as {other[0]}, which is not a causal language model"
    return None


def _not_our_inputs(config: PreTrainedConfig) -> str | None:
    network = network_class(config)
    missing = {"past_key_values", "position_ids"} - set(inspect.signature(network.forward).parameters)
    if missing:
        return f"{config.model_type} takes no {' and no '.join(sorted(missing))}, which token trees and rollback need"
    return None


def attention(config: PreTrainedConfig) -> str:
    """The attention to load a checkpoint with: ours, built on sdpa; sdpa itself where an architecture knows it by name
    only; eager where softcapping or sinks know no other."""
    network = network_class(config)
    if not network._supports_sdpa:
        return "eager"
    return grouped.NAME if network._can_set_attn_implementation() else "sdpa"


def experts(config: PreTrainedConfig, dtype: torch.dtype) -> str | None:
    """How the experts of a mixture are multiplied; None for transformers' own choice, which knows no float64."""
    return "batched_mm" if dtype == torch.float64 and network_class(config)._can_set_experts_implementation() else None


def _not_by_position(config: PreTrainedConfig) -> str | None:
    # Neither sign is enough alone: RWKV and xLSTM report ordinary cache layers, MiniMax and LFM2 do not report a state.
    foreign = _cache_layers(config) - ROLLED_BACK_BY_POSITION
    if foreign or network_class(config)._is_stateful:
        kept = f" ({', '.join(sorted(foreign))})" if foreign else ""
        return (
            f"the state of {config.model_type} cannot be rolled back by position{kept}, nor copied as a cache of "
            "transformers, so rejected tokens could not be taken back; models with full or sliding-window attention "
            "work, and recurrent ones with such a cache: Mamba, Mamba2, Qwen3-Next, LFM2"
        )
    text = config.get_text_config(decoder=True)
    if "chunked_attention" in (getattr(text, "layer_types", None) or ()) or getattr(text, "attention_chunk_size", None):
        return f"{config.model_type} attends in chunks; only full and sliding-window attention are supported"
    return None


def network_class(config: PreTrainedConfig) -> Any:
    """The class of transformers whose instances are networks with such a configuration."""
    return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]


def _cache_layers(config: PreTrainedConfig) -> set[str]:
    """Class names of the cache layers that transformers itself would make for this configuration."""
    try:
        return {type(layer).__name__ for layer in DynamicCache(config=config).layers}
    except Exception as error:  # a configuration that transformers cannot make a cache for is not one we can drive
        return {f"no cache layers known: {type(error).__name__}"}
