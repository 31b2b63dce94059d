"""DFlash against transformers: its model and its generator of candidates, on the same files, round after round."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig, MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel
from transformers.generation.candidate_generator import DFlashTokenCandidateGenerator

from specbench.decoding.randomness import seeded
from specbench.models.heads.build import built
from specbench.models.heads.files import read_head
from specbench.models.heads.recognition import Head
from specbench.models.heads.together import Together
from specbench.models.network.sampling import Sampling
from tests.support.parallel_heads import Plain, features
from tests.support.tiny import CPU, context_of, in_double, network

V, BLOCK, READS = 11, 5, (0, 1)
TEXT, ACCEPTED = [3, 1, 4, 1, 5], (2, 0, 4, 1, 3)
FULL, BOTH = ["full_attention"] * 2, ["sliding_attention", "full_attention"]
SHAPE = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4}


def theirs(folder: Path, layer_types: list[str], window: int) -> Any:
    """Their model, written to a folder; norms computed in float64 as ours are."""
    config = MuseGlimmerAssistantConfig(
        **SHAPE, num_hidden_layers=len(layer_types), layer_types=layer_types, sliding_window=window, block_size=BLOCK,
        mask_token_id=V - 1, target_layer_ids=list(READS), attn_implementation="sdpa",
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MuseGlimmerAssistantModel(config).double().eval()
        for weight in model.parameters():
            noise = torch.randn_like(weight)
            weight.data = 0.8 * noise if weight.ndim > 1 else weight.data + 0.3 * noise
    model.save_pretrained(folder)
    return in_double(model)


class Candidates:
    """Their generator of candidates, whose caches go from round to round."""

    def __init__(self, model: Any, net: Any) -> None:
        config = GenerationConfig(max_length=200, do_sample=False)
        self.net = net
        self.generator = DFlashTokenCandidateGenerator(
            model, net.get_input_embeddings(), net.get_output_embeddings(), config
        )
        self.fed = 0

    @torch.no_grad()
    def rows(self, text: list[int], matches: int) -> Tensor:
        """[BLOCK − 1, V] the laws of their drafts after a text, of whose last tokens `matches` were accepted drafts."""
        ids, hidden = torch.tensor([text]), {}
        for layer in READS:  # what the last pass of the target was over begins where it had not been before
            hidden[layer + 1] = features(self.net, ids[:, :-1], [layer + 1])[:, self.fed :]
        self.fed = len(text) - 1
        kwargs = {"position_ids": torch.arange(len(text))[None], "attention_mask": torch.ones_like(ids)}
        outputs = SimpleNamespace(hidden_states=hidden)
        found = self.generator.get_candidates(ids, kwargs, outputs, is_first_iteration=False, n_last_matches=matches)
        return found[1][0].softmax(-1)


@pytest.mark.parametrize(("kinds", "window"), [(FULL, 64), (BOTH, 64), (BOTH, 3)], ids=["full", "both", "short"])
def test_rows_are_those_of_transformers_generator(kinds: list[str], window: int, tmp_path: Path) -> None:
    net = network("llama", V)
    generator = Candidates(theirs(tmp_path / "head", kinds, window), net)
    head = read_head(tmp_path / "head")
    assert isinstance(head, Head)
    assert head.kind == "dflash"
    module, context = in_double(built(head, net)), context_of([TEXT], 40, BLOCK)
    model = Together(module, Plain(net, module.taps, context), Sampling(), V, BLOCK - 1)
    model.start(context)
    text, matches = list(TEXT), 0
    for accepted in ACCEPTED:
        ids, rows = model.sample(context, BLOCK - 1, seeded([len(text)], CPU))
        assert (rows[0] - generator.rows(text, matches)).abs().max() < 1e-11
        text, matches = [*text, *ids[0, :accepted].tolist(), len(text) % V], accepted
        context.seq[0, : len(text)], context.pos[0] = torch.tensor(text), len(text) - 1
