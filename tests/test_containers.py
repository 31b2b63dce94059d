"""The Dockerfiles: that they are sound, hold what an installation needs, and run as nobody special."""

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from specbench.files import CONFIGS
from tests.test_wheel import PROJECT, ROOT

FILES = sorted((CONFIGS / "containers").glob("*.Dockerfile"))


def lines_of(file: Path) -> dict[str, list[str]]:
    """The arguments of the instructions of a Dockerfile, by their names."""
    found: dict[str, list[str]] = {}
    for line in re.sub(r"\\\n\s*", "", re.sub(r"(?m)^#.*\n", "", file.read_text())).splitlines():
        name, _, rest = line.partition(" ")
        found.setdefault(name, []).append(rest)
    return found


def test_there_is_one_for_a_cpu_and_one_for_gpus() -> None:
    assert [file.stem for file in FILES] == ["cpu", "cuda"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_copies_what_an_installation_needs(file: Path) -> None:
    copied = {name for line in lines_of(file)["COPY"] for name in line.split()[:-1]}
    assert copied == {*PROJECT, "constraints.txt"}
    assert all((ROOT / name).exists() for name in copied)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_runs_the_shipped_pair_as_a_user_without_rights(file: Path) -> None:
    lines = lines_of(file)
    assert "HEALTHCHECK" not in lines
    assert lines["USER"] == ["1000:1000"]
    assert [json.loads(line) for line in (*lines["ENTRYPOINT"], *lines["CMD"])] == [["specbench"], ["run"]]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_installs_extras_that_there_are(file: Path) -> None:
    (extras,) = re.findall(r'"\.\[([a-z,]+)\]"', file.read_text())
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras.split(",")) <= set(known)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_passes_the_linter(file: Path) -> None:
    if not (linter := shutil.which("hadolint")):
        pytest.skip("hadolint is not installed: it is in the dev extra")
    done = subprocess.run([linter, "--no-color", file], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
