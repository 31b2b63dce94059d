"""The MTP modules of a target through `generate(use_mtp=True)`, beside our own loop over the same files."""

from pathlib import Path

import pytest
import torch
import transformers as hf

from specbench.backends import choose
from specbench.backends.engines import generate
from specbench.backends.engines.transformers import Way, notes_on
from specbench.errors import UsageError
from specbench.metrics import Trace
from specbench.spec import RunSpec
from tests.support.heads import layer_like, with_separate_experts, write_head
from tests.support.tinypair import EOS, save_tokenizer

PROMPTS = [[1, 2, 3, 4, 5], [7, 8, 9], [3, 4, 3, 4, 3, 4, 3]]
NEW = 24
SHAPE = {"hidden_size": 16, "intermediate_size": 24, "moe_intermediate_size": 8, "num_hidden_layers": 2}
SHAPE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 64}
SHAPE |= {"first_k_dense_replace": 1, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A GLM of two layers with a module like its last one in the third place, where transformers is told to look."""
    config = hf.Glm4MoeConfig(**SHAPE, vocab_size=EOS + 1, bos_token_id=None, eos_token_id=EOS, pad_token_id=None)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = hf.Glm4MoeForCausalLM(config).eval()
        for weight in (one for one in network.parameters() if one.ndim > 1):
            weight.data.normal_(std=0.4)
    network.save_pretrained(tmp_path)
    write_head(tmp_path, "mtp", config, layer=with_separate_experts(layer_like(network, 1)))
    save_tokenizer(tmp_path)
    monkeypatch.setattr(hf.Glm4MoeForCausalLM, "_keys_to_ignore_on_load_unexpected", [r"model\.layers\.2.*"])
    return tmp_path


def decoded(target: Path, engine: str, **more: object) -> list[Trace]:
    common = {"target": str(target), "draft": str(target), "dtype": "float32", "max_new_tokens": NEW, "k": 1}
    spec = RunSpec.model_validate({**common, "backend": engine, "ignore_eos": True, **more})
    opened = choose.backend_for([spec])
    opened.load()
    return opened.prepare(spec, max(map(len, PROMPTS)))(PROMPTS, [0, 1, 2])


def judged(trace: Trace) -> dict[int, int]:
    """How many drafted tokens were accepted, by the place where their round begins."""
    found, place = {}, 0
    for one in trace.rounds:
        if one.tested:
            found[place] = one.accepted
        place += one.emitted
    return found


def test_the_same_drafts_are_accepted_as_in_our_own_loop_and_none_is_longer_than_k(target: Path) -> None:
    ours, theirs = decoded(target, "native"), decoded(target, "transformers")
    assert [one.tokens for one in theirs] == [one.tokens for one in ours]
    common = [
        (a[at], b[at]) for a, b in zip(map(judged, ours), map(judged, theirs), strict=True) for at in a if at in b
    ]
    assert len(common) > NEW / 2
    assert all(a == b for a, b in common)
    assert {a for a, _ in common} == {0, 1}, "some are accepted and some are not"
    for trace in theirs:
        assert [one.drafted for one in trace.rounds] == [0] + [1] * (len(trace.rounds) - 1), "first comes the prompt"
        assert sum(one.emitted for one in trace.rounds) == len(trace.tokens) == NEW
        assert trace.prefill_seconds > 0
        assert trace.spans["draft"] > 0


def test_its_notes_speak_of_no_draft_in_the_first_pass() -> None:
    mtp, assisted = (" ".join(notes_on(Way(kind, 1, "draft"), "eager")) for kind in ("mtp", "assisted"))
    assert "judges the first draft at once" in assisted
    assert "ends one token before" in assisted
    assert "judges the first draft" not in mtp
    assert "ends one token before" not in mtp
    assert "a round without a draft" in mtp


def test_its_files_are_read_once_every_call_begins_anew_and_sampling_the_likeliest_token_is_greedy(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    begin = generate.MTPCandidateGenerator.__init__
    monkeypatch.setattr(generate.MTPCandidateGenerator, "__init__", lambda *a, **k: made.append(begin(*a, **k)))
    first, again = decoded(target, "transformers"), decoded(target, "transformers")
    assert len(made) == 2, "one in each of two engines, for three prompts"
    assert [one.rounds for one in first] == [one.rounds for one in again]
    drawn = decoded(target, "transformers", temperature=1.0, top_k=1)
    assert [one.tokens for one in drawn] == [one.tokens for one in first]


def test_another_k_is_refused_in_one_line(target: Path) -> None:
    with pytest.raises(UsageError, match="drafts one token with each of the 1 MTP modules of the target: use --k 1"):
        decoded(target, "transformers", k=3)
