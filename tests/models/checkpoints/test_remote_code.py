"""Code that comes with a checkpoint runs where that was asked for, and nowhere else."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from specbench.models.checkpoints import names, weights
from specbench.models.checkpoints.description import load_config, load_tokenizer
from specbench.models.checkpoints.loading import load_model
from specbench.models.checkpoints.names import Checkpoint
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
    monkeypatch.setattr(names, "fetch", lambda *_: folder)
    refused = refusal_of(load_config, Checkpoint("own", "some/own", revision, trusted=True))
    assert "runs code of some/own only at a pinned commit: give its 40 hex digits with --target-revision" in refused
    assert not (folder.parent / "ran").exists()
    assert load_config(Checkpoint("own", "some/own", "0" * 40, trusted=True)).model_type == "own_llama"


TOKENIZER = """
from pathlib import Path
from transformers import PreTrainedTokenizerFast

Path({marker!r}).touch()


class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""


def described(place: Path, name: str, classes: object) -> Path:
    """A checkpoint of which one description names classes."""
    file = place / name
    before = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**before, "auto_map": classes}))
    return place


@pytest.fixture
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint of known classes, and code for a tokenizer, which none of its descriptions names yet."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    place = save_tiny(tmp_path / "plain")
    (place / "tok.py").write_text(TOKENIZER.format(marker=str(tmp_path / "ran")))
    return place


DESCRIPTIONS = ("tokenizer_config.json", "processor_config.json", "preprocessor_config.json", "generation_config.json",
                "config.4.0.0.json")  # fmt: skip


@pytest.mark.parametrize("name", DESCRIPTIONS)
@pytest.mark.parametrize("load", [load_config, load_tokenizer])
def test_code_that_any_description_names_runs_at_a_pinned_commit_only(
    plain: Path, monkeypatch: pytest.MonkeyPatch, name: str, load: Callable[..., object]
) -> None:
    described(plain, name, {"AutoTokenizer": [None, "tok.OwnTokenizer"]})
    monkeypatch.setattr(names, "fetch", lambda *_: plain)
    refused = refusal_of(load, Checkpoint("own", "some/own", trusted=True))
    assert "runs code of some/own only at a pinned commit: give its 40 hex digits" in refused
    assert not (plain.parent / "ran").exists()


@pytest.mark.parametrize(("revision", "runs"), [(None, False), ("0" * 40, True)])
def test_a_tokenizer_of_a_repository_runs_at_a_pinned_commit(
    plain: Path, monkeypatch: pytest.MonkeyPatch, revision: str | None, runs: bool
) -> None:
    described(plain, "tokenizer_config.json", ["tok.OwnTokenizer", None])  # as it was written once
    monkeypatch.setattr(names, "fetch", lambda *_: plain)
    for trusted in (False, runs):
        load_tokenizer(Checkpoint("own", "some/own", revision, trusted=trusted))
        assert (plain.parent / "ran").exists() == trusted


@pytest.mark.parametrize("revision", [None, "0" * 40])
@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_code_of_another_repository_runs_never(
    plain: Path, monkeypatch: pytest.MonkeyPatch, name: str, revision: str | None
) -> None:
    described(plain, name, {"AutoTokenizer": [None, "evil/repo--tok.OwnTokenizer"]})
    monkeypatch.setattr(names, "fetch", lambda *_: plain)
    for source in ("some/own", str(plain)):
        refused = refusal_of(load_tokenizer, Checkpoint("own", source, revision, trusted=True))
        assert "its code is in another repository (evil/repo--tok.OwnTokenizer), at no pinned commit" in refused


def test_a_way_to_generate_that_comes_with_a_repository_is_code(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (plain / "custom_generate").mkdir()
    (plain / "custom_generate" / "generate.py").touch()
    monkeypatch.setattr(names, "fetch", lambda *_: plain)
    assert "only at a pinned commit" in refusal_of(load_config, Checkpoint("own", "some/own", trusted=True))
    assert load_config(Checkpoint("own", "some/own")).model_type == "llama"


@pytest.mark.parametrize(("revision", "trusted"), [(None, False), ("main", False), ("1" * 40, True)])
def test_an_adapter_that_can_change_names_no_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, revision: str | None, trusted: bool
) -> None:
    monkeypatch.setattr(weights, "require", lambda *_: None)
    base = {"base_model_name_or_path": "evil/base", "revision": "0" * 40}
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", **base}))
    found = weights.find_adapter(Checkpoint("own", "some/adapter", revision, trusted=True), tmp_path)
    assert found is not None
    assert (found.base.source, found.base.revision, found.base.trusted) == ("evil/base", "0" * 40, trusted)


def test_code_from_elsewhere_is_refused(folder: Path) -> None:
    configured(folder, {name: f"other/repo--{one}" for name, one in CLASSES.items()})
    refused = refusal_of(load_config, Checkpoint("own", str(folder), trusted=True))
    assert "its code is in another repository (other/repo--own.OwnConfig), at no pinned commit" in refused
