"""The pages that are made from the program when the others are built: there is one for every part of it."""

import runpy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from specbench.decoding.method_files import methods
from specbench.settings import declared
from specbench.spec import RunSpec
from tests.docs.blocks import ROOT

PACKAGE = ROOT / "specbench"


@cache
def generate() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "generate.py"))


@cache
def made(name: str) -> str:
    """One page, by the name of the function that makes it."""
    function: Callable[[], str] = generate()[name]
    return function()


def test_every_setting_has_a_line() -> None:
    every = declared(RunSpec).items()
    options = {name: name if one.setting.within else f"--{name.replace('_', '-')}" for name, one in every}
    assert [name for name, option in options.items() if option not in made("settings")] == []


def test_every_method_file_is_shown_as_it_is() -> None:
    assert [name for name, file in methods().items() if file.read_text(encoding="utf-8") not in made("methods")] == []


def test_every_module_stands_in_the_map() -> None:
    files = [file for file in PACKAGE.rglob("*.py") if file.name != "__init__.py"]
    assert [file.name for file in files if f"`{file.name}`" not in made("file_map")] == []
    assert [file for file in files if f"## {file.parent.relative_to(ROOT).as_posix()}\n" not in made("file_map")] == []


def test_every_command_has_a_section() -> None:
    from specbench.cli.app import app

    names = [command.name for command in app.registered_commands]
    assert [name for name in names if f"## `specbench {name}`" not in made("commands")] == []


@pytest.mark.slow
def test_every_page_is_written_once_and_left_alone_as_long_as_nothing_changes(tmp_path: Path) -> None:
    write: Callable[[Path], None] = generate()["write_pages"]
    write(tmp_path)
    written = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.md")}
    write(tmp_path)
    assert {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.md")} == written
    assert {file.name for file in written} >= {"commands.md", "settings.md", "columns.md", "methods.md", "map.md"}
