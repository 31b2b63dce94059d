"""What a head is said to take of memory, against what it takes when it drafts."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from specbench.backends.heads import sizes_of
from specbench.backends.roles import Found, Role
from specbench.decoding.randomness import seeded
from specbench.models.checkpoints.divided import in_dtype, network_sizes
from specbench.models.checkpoints.names import Checkpoint
from specbench.models.heads.build import built, joined
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from specbench.training.new_heads import HeadOptions, beginning, save_head
from tests.support.head_passes import head_of
from tests.support.tiny import CPU, context_of, network

V = 13
SHAPE: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24, "moe_intermediate_size": 8, "vocab_size": V}
SHAPE |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64}
SHAPE |= {"first_k_dense_replace": 2, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
LATENT = {"kv_lora_rank": 48, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 12, "v_head_dim": 12}


def deepseek() -> Any:
    """Of latent keys that are wider than its heads would have them by `head_dim`, and than its last state."""
    nobody: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    return hf.DeepseekV3ForCausalLM(hf.DeepseekV3Config(**SHAPE, **LATENT, **nobody)).eval()


@torch.no_grad()
@pytest.mark.parametrize("name", ["llama", "latent keys"])
def test_a_module_takes_what_it_is_said_to_take(name: str, tmp_path: Path) -> None:
    net = deepseek() if name == "latent keys" else network(name, V, dtype=torch.float32)
    student, layout = beginning("mtp", net, HeadOptions(None, 2, "target"))
    save_head(student, layout, tmp_path, torch.float32)
    head = head_of(tmp_path)
    hollow = in_dtype(net.config, torch.float32, "sdpa")
    found = Found(head, None, built(head, hollow), ("target", "target"))
    checkpoint = Checkpoint("target", str(tmp_path))
    target = Role(checkpoint, net.config, None, torch.float32)
    size = sizes_of(Role(checkpoint, found.hollow.config, None, torch.float32, head=found), found, target)
    judge, draft = joined(Causal(net, Sampling(0.0), V), built(head, net), 2)
    context = context_of([[1, 2, 3]], 4, 2)
    judge.start(context)
    draft.start(context)
    draft.sample(context, 2, seeded([0], CPU))
    slots = length_of(judge), length_of(draft.model)
    plain = network_sizes(net.config, torch.float32, CPU).cache(slots[0], 1)
    taken = stored_in(judge) + stored_in(draft.model) - plain
    assert taken <= size.cache(max(slots), 1) < 4 * taken
    assert size.weights == sum(tensor.nbytes for tensor in head.tensors.values())
    assert size.inner >= max(max(part.shape) for part in student.head.layer.parameters() if part.ndim > 1)


def length_of(model: Any) -> int:
    return int(model.cache.rows[0].keys.shape[2])


def stored_in(model: Any) -> int:
    """Bytes that the cache of a model has."""
    return sum(part.nbytes for layer in model.cache.rows for part in (layer.keys, layer.values))
