"""The shapes of the shipped pair, and how one grows out of another without losing what was learned."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specbench.training.start import silence

VOCABULARY = 4096
CONTEXT = 2048


def llama(layers: int) -> LlamaConfig:
    """The shape of the pair: width 256, 4 heads on 2 key/value heads, tied embeddings; only the depth differs."""
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=640,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )


def new_model(layers: int) -> LlamaForCausalLM:
    model = LlamaForCausalLM(llama(layers))
    for block in model.model.layers:
        silence(block, layers)
    return model


def deepen(model: LlamaForCausalLM, layers: int) -> LlamaForCausalLM:
    """The same function with `layers` layers: behind every layer come copies of it that write nothing yet."""
    deeper = LlamaForCausalLM(llama(layers))
    copies = layers // len(model.model.layers)
    state = {k: v for k, v in model.state_dict().items() if ".layers." not in k}
    for i in range(layers):
        for name, value in model.model.layers[i // copies].state_dict().items():
            fresh = i % copies > 0 and name in {"self_attn.o_proj.weight", "mlp.down_proj.weight"}
            state[f"model.layers.{i}.{name}"] = torch.zeros_like(value) if fresh else value.clone()
    deeper.load_state_dict(state)
    return deeper


def first_layer(target: LlamaForCausalLM) -> LlamaForCausalLM:
    """A one-layer draft that starts from the target's embedding, first layer and final norm."""
    draft = LlamaForCausalLM(llama(1))
    known = target.state_dict()
    draft.load_state_dict({k: known[k].clone() for k in draft.state_dict()})
    return draft
