"""What other packages add by entry points: `tests/support/example_package`, as it would be installed."""

import shutil
import sys
import tomllib
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest

from specbench import plugins
from specbench.data.sources import read_rows
from specbench.decoding.method_files import methods
from specbench.errors import UsageError
from tests.support.frontdoor import SHORT, Command

EXAMPLE = Path(__file__).parent / "support" / "example_package"
GROUPS = (plugins.PARTS, plugins.METHODS, plugins.DATASETS, plugins.BACKENDS)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages, the example among them."""
    folder = tmp_path / "site"
    shutil.copytree(EXAMPLE / "specbench_example", folder / "specbench_example")
    described = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    record(folder, described["name"], described["version"], described["entry-points"])
    monkeypatch.syspath_prepend(str(folder))
    plugins.installed.cache_clear()
    yield folder
    plugins.installed.cache_clear()
    for name in [name for name in sys.modules if name.startswith("specbench_example")]:
        del sys.modules[name]


def record(folder: Path, name: str, version: str, entries: dict[str, dict[str, str]]) -> None:
    """What an installer writes about a package."""
    place = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    place.mkdir()
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    found = ConfigParser()
    found.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
    found.read_dict(entries)
    with (place / "entry_points.txt").open("w") as file:
        found.write(file)
    plugins.installed.cache_clear()


@pytest.mark.usefixtures("site")
def test_a_method_of_another_package_runs_on_its_data(command: Command, pair: Any) -> None:
    done = command("run", "--target", pair.target, "--method", "repeat-last", "--dataset", "counting:4", *SHORT)
    assert done.code == 0, done.err
    (row,) = done.table()
    assert (row["method"], row["dataset"], row["prompts"], row["lossless"]) == (
        "repeat-last", "counting:4", "2", "identical"
    )  # fmt: skip
    assert int(row["drafted"]) > 0


@pytest.mark.usefixtures("site")
def test_it_is_proven_exact_and_listed_like_ours(command: Command) -> None:
    assert command("verify", "--method", "repeat-last").code == 0
    assert "repeat-last" in command("methods").out
    assert list(methods())[-1] == "repeat-last"


@pytest.mark.usefixtures("site")
def test_listing_methods_loads_no_code_that_drafts(command: Command) -> None:
    command("methods")
    assert "specbench_example.drafter" not in sys.modules


@pytest.mark.usefixtures("site")
def test_an_unknown_name_names_those_of_other_packages() -> None:
    with pytest.raises(UsageError, match="counting"):
        read_rows("countin")


def test_without_packages_nothing_is_added() -> None:
    assert [plugins.names(group, ()) for group in GROUPS] == [[], [], [], []]


def test_a_name_that_is_taken_is_refused(site: Path, command: Command) -> None:
    record(site, "rival", "2.0", {plugins.METHODS: {"chain": "specbench_example:METHOD"}})
    done = command("methods")
    assert done.code == 2
    assert "package rival 2.0: its specbench.methods chain has a name that is taken" in done.err


def test_two_packages_with_one_name_are_refused(site: Path) -> None:
    record(site, "rival", "2.0", {plugins.DATASETS: {"counting": "specbench_example:counting"}})
    with pytest.raises(UsageError, match="counting has a name that is taken"):
        read_rows("counting:2")


def test_a_package_that_cannot_be_loaded_is_one_line(site: Path) -> None:
    record(site, "broken", "0.1", {plugins.DATASETS: {"gone": "no_such_module:rows"}})
    with pytest.raises(UsageError, match=r"package broken 0\.1: cannot load gone .*no_such_module"):
        read_rows("gone")


@pytest.mark.usefixtures("site")
def test_a_package_that_fails_on_its_rows_is_one_line() -> None:
    with pytest.raises(UsageError, match=r"data set counting:many: its package failed: .*'many'"):
        read_rows("counting:many")


def test_an_engine_of_another_package_measures(site: Path, command: Command) -> None:
    record(site, "engine", "1.0", {plugins.BACKENDS: {"table": "tests.jobs.test_other_backend:Table"}})
    done = command("run", "--target", "any", "--backend", "table", "--dataset", "counting:4", *SHORT)
    assert done.code == 0, done.err
    (row,) = done.table()
    assert (row["engine"], row["target_source"], row["prompts"]) == ("table", "a table", "2")


def test_an_engine_that_nobody_has_is_one_line(command: Command) -> None:
    done = command("run", "--backend", "transfomers")
    assert done.code == 2
    assert "unknown --backend 'transfomers' (did you mean transformers?): choose one of native" in done.err
