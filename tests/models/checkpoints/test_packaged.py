"""An alias that leads into an installed package: its file is found without importing anything of it."""

import sys
from pathlib import Path

import pytest

from specbench.models.checkpoints import names
from specbench.models.checkpoints.names import shipped
from tests.support.checkpoints import refusal_of

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
