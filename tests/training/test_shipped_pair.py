"""How the shipped pair was made: growing keeps the function, text is split by name, a killed run goes on as it was."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig

from tests.benchmarks.shipped_pair import __main__ as pair
from tests.benchmarks.shipped_pair import corpus, shapes

IDS = np.random.default_rng(0).integers(0, shapes.VOCABULARY, 4000).astype(np.uint16)
STAGES = (
    pair.Stage(layers=1, steps=2, rows=2, length=8),
    pair.Stage(layers=2, steps=2, rows=2, length=8, draft=True),
    pair.Stage(layers=2, steps=1, rows=2, length=8, target=False, draft=True),
)


@torch.no_grad()
def test_a_deepened_model_is_the_same_function() -> None:
    torch.manual_seed(0)
    shallow = shapes.new_model(2).eval()
    text = torch.randint(shapes.VOCABULARY, (2, 9))
    assert torch.equal(shallow(text).logits, shapes.deepen(shallow, 6).eval()(text).logits)


def test_a_draft_starts_from_the_first_layer_and_shares_no_memory() -> None:
    target = shapes.new_model(2)
    draft = shapes.first_layer(target)
    theirs = target.model.layers[0].mlp.up_proj.weight
    ours = draft.model.layers[0].mlp.up_proj.weight
    assert torch.equal(ours, theirs)
    assert ours.data_ptr() != theirs.data_ptr()


def test_the_rate_falls_only_in_the_last_stage_of_a_model() -> None:
    stage = pair.Stage(layers=1, steps=1000, rows=1, length=1)
    assert [pair.schedule(stage, step, last=False) for step in (59, 500, 999)] == [1.0, 1.0, 1.0]
    assert pair.schedule(stage, 500, last=True) == 0.5


def test_documents_are_held_out_by_their_name() -> None:
    share = np.mean([corpus.Document("library", f"{n}.py", "").held_out for n in range(4000)])
    assert 0.01 < share < 0.04
    assert corpus.Document("library", "a.py", "x").held_out == corpus.Document("docs", "a.py", "y").held_out


def test_windows_are_text_in_order_and_the_same_for_the_same_seed() -> None:
    first, again = (corpus.windows(IDS, 3, 5, (0, 1)) for _ in range(2))
    assert np.array_equal(first, again)
    text = IDS.tolist()
    assert all(any(text[i : i + 6] == row.tolist() for i in range(len(text))) for row in first)


def test_documentation_is_read_as_prose() -> None:
    assert (
        corpus._clean("docs", "see :func:`~os.path.join` and :ref:`the tour <tour>`\n")
        == "see os.path.join and the tour\n"
    )
    assert corpus._clean("library", ":func:`x`") == ":func:`x`"


NARROW = {"hidden_size": 32, "intermediate_size": 64, "head_dim": 8}


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the compiler, which takes a minute and is not on every machine, and with narrow layers."""
    wide = shapes.llama
    for module in (shapes, pair):
        monkeypatch.setattr(module, "llama", lambda layers: LlamaConfig.from_dict(wide(layers).to_dict() | NARROW))
    monkeypatch.setattr(torch, "compile", lambda function: function)
    monkeypatch.setattr(pair, "distillation_loss", pair.distillation_loss._torchdynamo_orig_callable)
    monkeypatch.setattr(pair, "EVERY", 1)


@pytest.mark.slow
@pytest.mark.usefixtures("_quick")
def test_a_killed_training_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    whole = pair.Training(tmp_path / "whole", IDS, IDS, STAGES)
    records = list(whole.run())
    run = pair.Training(tmp_path / "killed", IDS, IDS, STAGES).run()
    for _ in range(3):
        next(run)  # dies after a checkpoint in the middle of the second stage
    resumed = pair.Training(tmp_path / "killed", IDS, IDS, STAGES)
    assert len(list(resumed.run())) == len(records) - 3
    assert resumed.figures() == whole.figures() == {"steps": 4, "tokens": 64, "distilled": 3}
    for ours, theirs in ((resumed.target, whole.target), (resumed.draft, whole.draft)):
        assert ours is not None
        assert theirs is not None
        states = ours.model.state_dict(), theirs.model.state_dict()
        assert all(torch.equal(states[0][key], states[1][key]) for key in states[1])
