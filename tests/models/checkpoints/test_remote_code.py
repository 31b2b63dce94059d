"""Code that comes with a checkpoint runs where that was asked for, and nowhere else."""

import json
from pathlib import Path

import pytest
import torch

from specbench.models.checkpoints import hub
from specbench.models.checkpoints.description import load_config
from specbench.models.checkpoints.loading import load_model
from specbench.models.checkpoints.pairs import Checkpoint
from tests.support.checkpoints import CPU, refusal_of, save_tiny

CODE = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM

Path({marker!r}).touch()


class OwnConfig(LlamaConfig):
    model_type = "own_llama"


class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""
CLASSES = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint whose code leaves a file `ran` beside it."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    place = save_tiny(tmp_path / "own")
    (place / "own.py").write_text(CODE.format(marker=str(tmp_path / "ran")))
    return configured(place, CLASSES)


def configured(place: Path, classes: dict[str, str]) -> Path:
    file = place / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "model_type": "own_llama", "auto_map": classes}))
    return place


def test_code_does_not_run_unless_it_is_trusted(folder: Path) -> None:
    refused = refusal_of(load_config, Checkpoint("own", str(folder)))
    assert "runs no code that comes with a checkpoint unless you say --trust-remote-code" in refused
    assert not (folder.parent / "ran").exists()


def test_trusted_code_of_a_folder_runs_and_is_checked_like_any_other(folder: Path) -> None:
    loaded = load_model(Checkpoint("own", str(folder), trusted=True), torch.float32, CPU)
    assert type(loaded.model).__name__ == "OwnForCausalLM"
    assert (folder.parent / "ran").exists()


@pytest.mark.parametrize("revision", [None, "main", "0123abc"])
def test_code_of_a_repository_runs_at_a_pinned_commit_only(
    folder: Path, monkeypatch: pytest.MonkeyPatch, revision: str | None
) -> None:
    monkeypatch.setattr(hub, "fetch", lambda *_: folder)
    refused = refusal_of(load_config, Checkpoint("own", "some/own", revision, trusted=True))
    assert "runs code of some/own only at a pinned commit: give its 40 hex digits with --target-revision" in refused
    assert not (folder.parent / "ran").exists()
    assert load_config(Checkpoint("own", "some/own", "0" * 40, trusted=True)).model_type == "own_llama"


def test_code_from_elsewhere_is_refused(folder: Path) -> None:
    configured(folder, {name: f"other/repo--{one}" for name, one in CLASSES.items()})
    refused = refusal_of(load_config, Checkpoint("own", str(folder), trusted=True))
    assert "its code lies in another repository (other/repo--own.OwnConfig), at no pinned commit" in refused
