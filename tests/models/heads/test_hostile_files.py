"""Nonsense in the description of a head is one line and no traceback; in that of a network it is for others to say."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from specbench.errors import SpecbenchError
from specbench.models.heads.build import built
from specbench.models.heads.files import read_head
from tests.support.cases import quick_or_slow
from tests.support.checkpoints import llama
from tests.support.heads import write_head
from tests.support.tiny import network

VALUES: tuple[Any, ...] = ("x", -1, 0, 10**12, 1.5, True, [], [1], {}, {"x": 1}, [None], "\n")
FEW = ("x", -1, 10**12, [None])  # of a network, which is read as far as it takes to know that it is no head
KEYS = (
    *("speculators_model_type", "speculators_config", "transformer_layer_config", "architectures", "dflash_config"),
    *("eagle_config", "text_config", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("vocab_size", "draft_vocab_size", "target_hidden_size", "rope_theta", "rope_scaling", "rope_parameters"),
    *("layer_types", "sliding_window", "hidden_act", "rms_norm_eps", "model_type"),
    *("eagle_aux_hidden_state_layer_ids", "norm_before_residual", "tie_word_embeddings", "medusa_num_heads"),
    *("num_nextn_predict_layers", "max_position_embeddings", "pard_token"),
)


@pytest.mark.parametrize(("kind", "names", "step"), quick_or_slow([
    ("eagle1", "midlayer", 1), ("eagle3", "midlayer", 1),
    ("eagle1", "speculators", 1), ("eagle3", "speculators", 1), ("eagle1", "speculators", 3),
    ("eagle3", "speculators", 3)], lambda kind, names, step: step > 1))  # fmt: skip
def test_every_key_may_be_anything(tmp_path: Path, kind: str, names: str, step: int) -> None:
    """step: of how many values a key takes one; every value comes with some key."""
    target = network("llama", 11)
    write_head(tmp_path, kind, target.config, names=names, **({"aux": (0, 1, 2)} if kind == "eagle3" else {}))
    file = tmp_path / "config.json"
    whole = json.loads(file.read_text())
    for number, key in enumerate(KEYS):
        for value in VALUES[number % step :: step]:
            layer = whole.get("transformer_layer_config", {})
            inside = {"transformer_layer_config": {**layer, key: value}} if key in layer else {}
            file.write_text(json.dumps({**whole, key: value, **inside}))
            attempt(tmp_path, target)


def attempt(folder: Path, target: Any) -> None:
    """Anything but a line of our own is an error of the test."""
    try:
        head = read_head(folder, "head")
        built(head, target) if head is not None else None
    except SpecbenchError as refusal:
        line = str(refusal)
    else:
        return
    assert line.startswith("head")
    assert "\n" not in line
    assert len(line) < 600


def test_a_network_with_nonsense_in_its_description_is_no_head(tmp_path: Path) -> None:
    LlamaForCausalLM(llama()).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    whole = json.loads(file.read_text())
    heads = ("speculators_model_type", "dflash_config", "architectures", "medusa_num_heads", "model_type", "pard_token")
    for key in set(KEYS) - set(heads):
        for value in FEW:
            file.write_text(json.dumps({**whole, key: value}))
            assert read_head(tmp_path) is None, (key, value)


@pytest.mark.parametrize("name", ["fc.weight", "d2t", "lm_head.weight", "norm.weight", "midlayer.hidden_norm.weight"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (3, 3), (2, 2, 2)])
def test_every_tensor_may_have_any_shape(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    target = network("llama", 11)

    def other(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name] = torch.zeros(shape)

    attempt(write_head(tmp_path, "eagle3", target.config, aux=(0, 1, 2), vocab=5, change=other), target)
