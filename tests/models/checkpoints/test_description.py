"""Which architectures are refused before a weight is read, and with which reason.

What auto means for dtypes and devices, and which names are refused.

Code that comes with a checkpoint runs where that was asked for, and nowhere else.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedConfig

from specbench.errors import UsageError
from specbench.models.checkpoints import description, names, weights
from specbench.models.checkpoints.description import (
    attention,
    load_config,
    load_tokenizer,
    obstacle,
    recurrent,
    resolve_device,
    resolve_dtype,
)
from specbench.models.checkpoints.loading import load_model
from specbench.models.checkpoints.names import Checkpoint
from specbench.models.network.attention import NAME
from tests.support.checkpoints import CPU, llama, refusal_of, save_tiny


def config_of(name: str, **changes: Any) -> PreTrainedConfig:
    return transformers.CONFIG_MAPPING[name](**changes)


@pytest.mark.parametrize(
    "name",
    ["mamba", "mamba2", "falcon_mamba", "jamba", "zamba2", "falcon_h1", "nemotron_h", "qwen3_next", "olmo_hybrid"],
)
def test_a_state_in_a_cache_of_transformers_passes_as_recurrent(name: str) -> None:
    assert obstacle(config_of(name)) is None
    assert recurrent(config_of(name))


def test_so_does_a_convolution_state_and_nothing_with_attention_alone() -> None:
    layers = ["conv", "full_attention"]
    assert recurrent(config_of("lfm2", num_hidden_layers=2, layer_types=layers))
    assert not any(recurrent(config_of(name)) for name in ("llama", "mistral", "gemma3_text", "gpt_oss"))


@pytest.mark.parametrize(
    "name", ["llama", "mistral", "qwen2", "qwen3", "gpt2", "gpt_neox", "opt", "gemma2", "gemma3_text", "gptj", "phi3"]
)
def test_full_and_sliding_attention_pass(name: str) -> None:
    assert obstacle(config_of(name)) is None


def test_sdpa_is_the_attention_where_the_architecture_has_it() -> None:
    assert attention(config_of("llama")) == NAME
    assert attention(config_of("gemma2")) == attention(config_of("gpt_oss")) == "eager"
    assert attention(config_of("falcon")) == "sdpa"


@pytest.mark.parametrize(
    ("name", "own", "device", "dtype"),
    [
        ("auto", torch.float32, "cpu", torch.float32),
        ("auto", torch.float64, "cpu", torch.float64),
        ("auto", torch.float16, "cpu", torch.float32),
        ("auto", torch.bfloat16, "cpu", torch.float32),
        ("auto", None, "cpu", torch.float32),
        ("auto", torch.float16, "cuda", torch.float16),
        ("auto", torch.bfloat16, "cuda", torch.bfloat16),
        ("bfloat16", torch.float32, "cpu", torch.bfloat16),
        ("float64", torch.float16, "cuda", torch.float64),
    ],
)
def test_dtypes(name: str, own: torch.dtype | None, device: str, dtype: torch.dtype) -> None:
    assert resolve_dtype(name, llama(dtype=own), torch.device(device)) == dtype


@pytest.mark.parametrize(("devices", "auto"), [(0, "cpu"), (1, "cuda")])
def test_the_automatic_device_is_cuda_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, devices: int, auto: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: devices > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    monkeypatch.setattr(description, "claimed", lambda device: device)
    assert resolve_device("auto").type == auto
    assert resolve_device("cpu") == CPU


@pytest.mark.parametrize(("name", "number"), [("cuda", 2), ("auto", 2), ("cuda:1", 1)])
def test_a_gpu_is_made_the_current_one_and_plans_no_attention(
    monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        assert resolve_device(name) == torch.device("cuda", number)
        assert current == [torch.device("cuda", number)]
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


@pytest.mark.parametrize(("name", "devices"), [("cuda", 0), ("cuda:1", 1)])
def test_an_absent_device_is_a_usage_error(monkeypatch: pytest.MonkeyPatch, name: str, devices: int) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    with pytest.raises(UsageError, match=f"no device {name}: torch sees {devices} CUDA devices"):
        resolve_device(name)


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
    assert "runs code of a checkpoint only with --trust-remote-code" in refused
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
