"""An installed wheel has everything that a checkout has: methods, pairs, prompts, the shipped pair."""

import importlib.util
import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from specbench.data.sources import SHIPPED
from specbench.decoding.method_files import methods
from specbench.files import ASSETS, CONFIGS
from specbench.models.checkpoints import names

ROOT = Path(__file__).parent.parent
PROJECT = ("specbench", "configs", "pyproject.toml", "README.md", "LICENSE")
ASK = """
import json, sys
sys.path.insert(0, sys.argv[1])
import specbench
from specbench.data.sources import SHIPPED, read_rows
from specbench.decoding.methods import build
from specbench.decoding.method_files import methods
from specbench.models.checkpoints import names
from specbench.files import ASSETS, CONFIGS
print(json.dumps({
    "package": specbench.__file__, "configs": str(CONFIGS), "assets": str(ASSETS), "methods": sorted(methods()),
    "aliases": names.aliases(), "rows": {name: len(read_rows(name)[0]) for name in SHIPPED},
}))
"""


pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The content of a wheel, built from a copy of the checkout."""
    if not all(importlib.util.find_spec(name) for name in ("pip", "hatchling")):
        pytest.skip("building a wheel needs pip and hatchling, which is in the dev extra")
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "source").mkdir()
    for name in PROJECT:
        copy(ROOT / name, folder / "source" / name)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    built = subprocess.run(
        [*pip, "--wheel-dir", folder, folder / "source"], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = folder.glob("*.whl")
    assert wheel.name.startswith("specbench_decoding-")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


def test_an_unpacked_wheel_finds_its_methods_pairs_and_prompts(unpacked: Path, tmp_path: Path) -> None:
    asked = subprocess.run(
        [sys.executable, "-I", "-c", ASK, str(unpacked)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert asked.returncode == 0, asked.stderr
    found = json.loads(asked.stdout)
    places = [Path(found[name]) for name in ("package", "configs", "assets")]
    assert all(place.is_relative_to(unpacked) for place in places), "what is asked must not be the checkout"
    assert found["methods"] == sorted(methods())
    assert found["aliases"] == names.aliases()
    assert set(found["rows"]) == set(SHIPPED)
    assert min(found["rows"].values()) >= 20


@pytest.mark.parametrize(("here", "there"), [(CONFIGS, "configs"), (ASSETS, "assets")])
def test_the_wheel_has_every_file_byte_for_byte(unpacked: Path, here: Path, there: str) -> None:
    files = [path.relative_to(here) for path in here.rglob("*") if path.is_file()]
    assert files
    for file in files:
        assert (unpacked / "specbench" / there / file).read_bytes() == (here / file).read_bytes(), file


def test_the_wheel_says_that_it_is_typed_and_which_command_it_installs(unpacked: Path) -> None:
    assert (unpacked / "specbench" / "py.typed").exists()
    (entry_points,) = unpacked.glob("*.dist-info/entry_points.txt")
    assert "specbench = specbench.cli.app:main" in entry_points.read_text()


def test_the_wheel_carries_neither_tests_nor_results(unpacked: Path) -> None:
    assert {p.name for p in unpacked.iterdir() if not p.name.endswith(".dist-info")} == {"specbench"}
