"""A tiny Llama as a GGUF file, written by the package `gguf` as llama.cpp's converter would write it."""

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM

from tests.support.checkpoints import llama

TOKENS = [chr(n) for n in range(33, 33 + 62)] + ["!!", "<eos>"]
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "model.layers": "blk",
}  # fmt: skip


def tiny_llama() -> LlamaForCausalLM:
    """A random Llama whose rows are as long as a block of Q8_0."""
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": len(TOKENS), "max_position_embeddings": 64}
    model = LlamaForCausalLM(llama(**shape, eos_token_id=63, bos_token_id=None)).eval()
    for weight in (w for w in model.parameters() if w.ndim > 1):
        weight.data *= 15
    return model


def save_gguf(model: LlamaForCausalLM, file: Path, packed: str = "Q8_0") -> Path:
    """Write `model` to `file`, its matrices packed as a type of GGUF."""
    import gguf

    writer, config = gguf.GGUFWriter(file, "llama"), model.config
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([gguf.TokenType.NORMAL] * 63 + [gguf.TokenType.CONTROL])
    writer.add_token_merges(["! !"])
    writer.add_eos_token_id(63)
    for name, weight in model.state_dict().items():
        add(writer, name, weight.float(), config, packed)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def add(writer: Any, name: str, weight: torch.Tensor, config: Any, packed: str) -> None:
    import gguf

    if "q_proj" in name or "k_proj" in name:  # llama.cpp has the two halves of a rotary pair side by side
        heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
        halves = weight.reshape(heads, 2, -1, weight.shape[1])
        weight = halves.transpose(1, 2).reshape(weight.shape)
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    if weight.ndim < 2:
        return writer.add_tensor(name, weight.numpy())
    kind = gguf.GGMLQuantizationType[packed]
    return writer.add_tensor(name, gguf.quants.quantize(weight.numpy(), kind), raw_dtype=kind)
