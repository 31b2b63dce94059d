"""Names of checkpoints and what stands behind them, and which architectures are refused before a weight is read.

What auto means for dtypes and devices; an alias into an installed package imports nothing of it.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import PreTrainedConfig

from specbench.errors import UsageError
from specbench.files import ASSETS, read_checked
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
from specbench.models.checkpoints.names import Checkpoint, shipped
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


# --- names ------------------------------------------------------------------------------------------------------------


def test_an_alias_is_a_pinned_hub_id_unless_another_revision_is_given() -> None:
    found = names.resolve("llama-7b")
    assert (found.name, found.source) == ("llama-7b", "huggyllama/llama-7b")
    assert found.revision == "4782ad278652c7c71b72204d462d6d01eaaf7549"
    assert names.resolve("llama-7b", "v2").revision == "v2"
    assert names.resolve("pythia-6.9b").revision is None
    assert (names.resolve("llama2-7b").gated, names.resolve("pythia-70m").gated) == (True, False)


def test_what_is_no_alias_is_a_folder_or_a_hub_id(tmp_path: Path) -> None:
    assert names.resolve("demo").source == str(ASSETS / "pair" / "target")
    assert names.resolve("demo-draft").source == str(ASSETS / "pair" / "draft")
    assert names.resolve(str(tmp_path)) == names.Checkpoint(str(tmp_path), str(tmp_path))
    remote = names.Checkpoint("some-one/Model_1.5b", "some-one/Model_1.5b", "abc")
    assert names.resolve("some-one/Model_1.5b", "abc") == remote


def test_a_target_has_a_default_draft() -> None:
    assert names.default_draft("llama-7b") == "llama-68m"
    assert names.default_draft("huggyllama/llama-7b") == "llama-68m"
    assert names.default_draft("llama-68m") is None
    assert names.default_draft("some/where") is None


def test_a_pair_may_have_a_default_lookahead() -> None:
    assert names.usual_settings("demo", "demo-draft") == {"k": 2, "max_new_tokens": 48}
    assert names.usual_settings("demo", "llama-68m") == {}
    assert names.usual_settings("llama-7b", "llama-68m") == {}
    assert names.usual_settings("some/where", "demo-draft") == {}
    assert names.usual_settings("demo", None) == {}


def test_the_table_has_fourteen_pairs_besides_the_shipped_one() -> None:
    table = names.shipped()
    assert len(set(table.pairs) - {"demo"}) >= 14
    found = {(target, draft) for target, pair in table.pairs.items() for draft in (pair.draft, *pair.also)}
    assert ("llama-7b", "llama-160m") in found
    paired = {name for pair in found for name in pair}
    listed = {alias for alias, model in table.models.items() if model.repo in names.published()}
    assert set(names.aliases()) == paired | listed  # no model without a draft
    assert {table.models[alias].repo for alias in listed} == {*names.published()}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("models: {a: {repo: x/y, revision: main}}\npairs: {}", r"models\.a\.revision"),
        ("models: {a: {repo: x/y, path: z}}\npairs: {}", "either repo or path or package"),
        ("models: {a: {}}\npairs: {}", "either repo or path or package"),
        ("models: {a: {repo: x/y, gatde: true}}\npairs: {}", r"models\.a\.gatde"),
        ("models: {a: {repo: x/y}}\npairs: {a: {draft: b}}", "no such alias under models: b"),
        ("models: {a: {repo: x/y}}\npairs: {c: {draft: a}}", "no such alias under models: c"),
        ("models: {a: {repo: x/y}}\npairs: {a: {draft: a, k: 0}}", r"pairs\.a\.k"),
        ("", "valid"),
        ("models: [", "expected"),
        ("models: {a: {repo: x/y}}\npairs: {}\nmodels: {}", "'models' occurs twice"),
    ],
)
def test_a_wrong_table_is_refused_with_the_place(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "pairs.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=complaint) as refusal:
        read_checked(file, names.Table.model_validate)
    assert str(file) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_names_are_resolved_without_heavy_imports() -> None:
    code = "import sys, specbench.models.checkpoints.names as pairs; pairs.resolve('demo'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "huggingface_hub.file_download"} & set(done.stdout.split())


PACKAGED = shipped().models["smollm2-135m"].package


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages with one that must not be imported, as pip leaves it; the file is missing."""
    assert PACKAGED is not None
    info = tmp_path / f"{PACKAGED.name.replace('-', '_')}-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PACKAGED.name}\nVersion: 9.9\n")
    (info / "RECORD").write_text(f"inside/__init__.py,,\ninside/{PACKAGED.file},,\n")
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "__init__.py").write_text("raise AssertionError('imported')\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return tmp_path


def test_the_file_of_a_package_is_found(site: Path) -> None:
    assert PACKAGED is not None
    (site / "inside" / PACKAGED.file).touch()
    found = names.resolve("smollm2-135m")
    assert (found.source, found.file) == (str(site / "inside"), PACKAGED.file)
    assert found.place == f"{PACKAGED.name} 9.9/{PACKAGED.file}"


def test_a_package_without_the_file_is_refused(site: Path) -> None:
    assert "9.9 has no file SmolLM2-135M-Instruct.Q4_1.gguf: pip install" in refusal_of(names.resolve, "smollm2-135m")


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    assert "not installed: pip install 'specbench-decoding[smollm2]'" in refusal_of(names.resolve, "smollm2-135m")
