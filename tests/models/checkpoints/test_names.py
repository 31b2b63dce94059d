"""Names of checkpoints: aliases, folders, hub ids, and the table behind them.

An alias that leads into an installed package: its file is found without importing anything of it.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from specbench.errors import UsageError
from specbench.files import ASSETS, read_checked
from specbench.models.checkpoints import names
from specbench.models.checkpoints.names import shipped
from tests.support.checkpoints import refusal_of


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
    assert set(names.aliases()) == {name for pair in found for name in pair}  # no model without a pair


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
    assert not {"torch", "transformers", "huggingface_hub"} & set(done.stdout.split())


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
