"""Where a draft starts from: shapes within a number of parameters, and an embedding that is the best of its rank."""

import pytest
import torch
import transformers as hf

from specbench.errors import UsageError
from specbench.training import start
from specbench.training.start import Shape
from tests.support.families import CONFIGS, RECURRENT

ROPE = {"rope_type": "default", "rope_theta": 5e5}
TARGET = hf.LlamaConfig(
    vocab_size=300, hidden_size=48, num_attention_heads=4, num_hidden_layers=1, intermediate_size=8,
    max_position_embeddings=77, rope_parameters=ROPE, bos_token_id=3, eos_token_id=[5, 6], pad_token_id=7,
)  # fmt: skip


def test_a_fresh_draft_has_its_shape_and_the_vocabulary_and_context_of_its_target() -> None:
    shape = Shape.of(2, 96)
    draft = start.fresh(shape, TARGET, seed=1)
    assert sum(weight.numel() for weight in draft.parameters()) == shape.parameters(300)
    assert draft(torch.tensor([[299, 0]])).logits.shape == (1, 2, 300)
    config = draft.config
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (3, [5, 6], 7)
    assert draft.generation_config.eos_token_id == [5, 6]
    assert (config.max_position_embeddings, config.rope_parameters["rope_theta"]) == (77, 5e5)


def test_fresh_drafts_differ_by_their_seed_alone() -> None:
    first, again, other = (start.fresh(Shape.of(1, 32), TARGET, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_what_a_fresh_layer_writes_is_scaled_by_the_depth() -> None:
    shallow, deep = (start.fresh(Shape.of(layers, 32), TARGET, 0).model.layers[0].mlp for layers in (1, 9))
    for projection, ratio in (("down_proj", 3), ("up_proj", 1)):
        stds = [mlp.get_submodule(projection).weight.std().item() for mlp in (shallow, deep)]
        assert stds[0] / stds[1] == pytest.approx(ratio, rel=0.05)


@pytest.mark.parametrize("hidden", [32, 64])
def test_the_embedding_is_the_best_of_its_rank_that_the_target_has(hidden: int) -> None:
    generator = torch.Generator().manual_seed(0)
    theirs = torch.randn(300, 48, generator=generator) * torch.logspace(0, -2, 48)
    u, s, v = torch.linalg.svd(theirs.double(), full_matrices=False)
    best = (u * (s * (torch.arange(48) < hidden))) @ v
    ours = start.fresh(Shape.of(1, hidden), TARGET, 0, embedding=theirs).model.embed_tokens.weight.double()
    ours = ours[:, :48]  # whatever the target has no direction for stays as it was drawn
    turned_back = ours @ torch.linalg.lstsq(ours, best).solution
    assert torch.linalg.norm(turned_back - best) < 1e-5 * torch.linalg.norm(best)
    # the angles and lengths are those of the approximation, up to one factor
    assert torch.allclose(ours @ ours.T * (best.norm() / ours.norm()) ** 2, best @ best.T, atol=1e-5)


@pytest.mark.parametrize(("parameters", "layers", "reduced"), [(10**5, 1, None), (10**6, 4, None), (10**6, 2, 100)])
def test_a_shape_takes_as_many_parameters_as_it_is_allowed(parameters: int, layers: int, reduced: int | None) -> None:
    shape = start.sized(parameters, layers, TARGET, reduced)
    assert shape.layers == layers
    assert 0.75 * parameters < shape.parameters(300, reduced=reduced) <= parameters
    wider = Shape.of(layers, shape.hidden + start.STEP)
    assert wider.parameters(300, reduced=reduced) > parameters
    draft = start.fresh(shape, TARGET, 0)
    assert sum(weight.numel() for weight in draft.parameters()) == shape.parameters(300)


def test_sizes_that_cannot_be_are_refused_in_a_line() -> None:
    with pytest.raises(UsageError, match="the narrowest has 44,576"):
        start.sized(1000, 2, TARGET)
    with pytest.raises(UsageError, match="the number of heads, 5, must divide the width, 64"):
        Shape.of(1, 64, heads=5)
    with pytest.raises(UsageError, match="at least 1"):
        Shape.of(0, 64)


def test_the_rope_base_is_that_of_full_attention() -> None:
    gemma = hf.Gemma3TextConfig(num_hidden_layers=2, vocab_size=10)
    assert start.rope_base(gemma) == gemma.rope_parameters["full_attention"]["rope_theta"]
    assert start.rope_base(hf.GPT2Config()) == 10000.0


@pytest.mark.parametrize("name", ["gpt2", "falcon", "gemma3", "mamba"])
def test_a_target_of_any_architecture_can_have_a_fresh_draft(name: str) -> None:
    config, shape = {**CONFIGS, **RECURRENT}[name]
    draft = start.fresh(Shape.of(1, 32), config(vocab_size=11, **shape), 0)
    assert draft(torch.tensor([[10]])).logits.shape == (1, 1, 11)
