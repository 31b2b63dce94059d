"""Tiny configurations of the families of networks that the tests of exactness run over.

Each has what it does unlike others: windows in some layers, layers without positions, experts, partial rotary
positions, scaled or capped scores, sinks.
"""

from typing import Any

import transformers as hf

WINDOW = 3  # shorter than every sequence under test, so that it bites
LAYERS = {"hidden_size": 16, "num_hidden_layers": 2, "max_position_embeddings": 256}
GROUPED = {**LAYERS, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4}
PLAIN = {name: size for name, size in GROUPED.items() if name != "head_dim"}
PLAIN_ROTARY = {"rope_type": "default", "rope_theta": 10000.0}
HALF_ROTARY = {**PLAIN_ROTARY, "partial_rotary_factor": 0.5}
SLIDING = {"use_sliding_window": True, "sliding_window": WINDOW}
HYBRID = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
CAPPED = {"query_pre_attn_scalar": 4, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
SCALED = {"embedding_multiplier": 3.0, "residual_multiplier": 0.7, "attention_multiplier": 0.4, "logits_scaling": 2.0}

CONFIGS: dict[str, tuple[type, dict[str, Any]]] = {
    "llama": (hf.LlamaConfig, GROUPED),
    "gpt2": (hf.GPT2Config, {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 256}),
    "mistral": (hf.MistralConfig, {**GROUPED, "sliding_window": WINDOW}),
    "neox": (
        hf.GPTNeoXConfig,
        {**LAYERS, "intermediate_size": 24, "num_attention_heads": 2, "rope_parameters": HALF_ROTARY},
    ),
    "opt": (hf.OPTConfig, {**LAYERS, "ffn_dim": 24, "num_attention_heads": 2, "word_embed_proj_dim": 16}),
    "qwen2": (hf.Qwen2Config, {**PLAIN, **SLIDING, "max_window_layers": 1}),
    "qwen3": (hf.Qwen3Config, GROUPED),
    "qwen3-moe": (
        hf.Qwen3MoeConfig,
        {**GROUPED, "moe_intermediate_size": 8, "num_experts": 4, "num_experts_per_tok": 2},
    ),
    "mixtral": (hf.MixtralConfig, {**GROUPED, **EXPERTS, "sliding_window": WINDOW}),
    "gemma2": (hf.Gemma2Config, {**GROUPED, **CAPPED, "sliding_window": WINDOW}),
    "gemma3": (hf.Gemma3TextConfig, {**GROUPED, **HYBRID, "query_pre_attn_scalar": 4}),
    "phi3": (hf.Phi3Config, {**PLAIN, "sliding_window": WINDOW, "rope_parameters": HALF_ROTARY}),
    "smollm3": (hf.SmolLM3Config, {**PLAIN, **SLIDING, "no_rope_layers": [1, 0]}),
    "olmo2": (hf.Olmo2Config, PLAIN),
    "granite": (hf.GraniteConfig, {**PLAIN, **SCALED}),
    "falcon": (hf.FalconConfig, {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}),
    "gpt-oss": (hf.GptOssConfig, {**GROUPED, **HYBRID, **EXPERTS, "rope_parameters": PLAIN_ROTARY}),
    "glm4": (hf.Glm4Config, {**GROUPED, "rope_parameters": HALF_ROTARY}),
}
ARCHITECTURES = tuple(CONFIGS)
UNLIKE = ("llama", "gpt2", "mistral", "qwen3-moe", "gemma3")  # rotary and learned positions, windows, experts

# Networks with a recurrent state, alone or beside attention.

HYBRID_STATE = {"layer_types": ["linear_attention", "full_attention"]}
STATE_SPACE = {"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_n_groups": 1, "mamba_chunk_size": 4}
DELTA = {f"linear_{name}": size for name, size in (("num_key_heads", 2), ("num_value_heads", 4))}
DELTA |= {"linear_key_head_dim": 4, "linear_value_head_dim": 4}
SMALL = {name: size for name, size in PLAIN.items() if name != "max_position_embeddings"}
SCAN = {"hidden_size": 16, "num_hidden_layers": 2, "state_size": 4, "residual_in_fp32": False}
MANY_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
RECURRENT: dict[str, tuple[type, dict[str, Any]]] = {
    "mamba": (hf.MambaConfig, {**SCAN, "time_step_rank": 2}),
    "mamba2": (hf.Mamba2Config, {**SCAN, "num_heads": 4, "head_dim": 8, "n_groups": 1, "chunk_size": 4}),
    "lfm2": (
        hf.Lfm2Config,
        {**SMALL, "block_auto_adjust_ff_dim": False, "layer_types": ["conv", "full_attention"]},
    ),
    "qwen3-next": (
        hf.Qwen3NextConfig,
        {**GROUPED, **HYBRID_STATE, **DELTA, **MANY_EXPERTS, "moe_intermediate_size": 8}
        | {"shared_expert_intermediate_size": 8},
    ),
    "falcon-h1": (hf.FalconH1Config, {**SMALL, **STATE_SPACE, "mamba_d_ssm": 32}),
    "jamba": (
        hf.JambaConfig,
        {**SMALL, "num_experts": 4, "mamba_d_state": 4, "mamba_dt_rank": 2, "expert_layer_offset": 1}
        | {"attn_layer_period": 2, "attn_layer_offset": 1},
    ),
    "bamba": (hf.BambaConfig, {**SMALL, **STATE_SPACE, "attn_layer_indices": [1]}),
    "olmo-hybrid": (hf.OlmoHybridConfig, {**SMALL, **HYBRID_STATE, **DELTA}),
}
