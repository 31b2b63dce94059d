"""Every row of the tables in this folder: a command or a call that is refused, its exit code or error, and its line.

commands.yaml   - {command: "run --k -1", exit: 2, line: "--k"}; `run` measures a tiny pair on words.jsonl;
                  files: {name: text} are written into the working folder first
calls.yaml      - {call: "specbench.module:function", args: [..], kwargs: {..}, error: UsageError, line: "a pattern"}
"""

import builtins
import importlib
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from specbench import errors
from tests.support.frontdoor import Command

HERE = Path(__file__).parent


def rows(name: str) -> list[dict[str, Any]]:
    return yaml.safe_load((HERE / name).read_text(encoding="utf-8")) or []


@pytest.mark.parametrize("row", rows("commands.yaml"), ids=lambda row: ascii(row["command"])[:60])
def test_a_command(row: dict[str, Any], run: Command, command: Command, tmp_path: Path) -> None:
    for name, text in row.get("files", {}).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    name, *words = shlex.split(row["command"])
    found = run(*words, "-q") if name == "run" else command(name, *words)
    assert (found.code, found.out) == (row["exit"], ""), found.err
    assert row["line"] in found.line
    assert found.line.isprintable()
    assert not (found.cwd / "results").exists()


@pytest.mark.parametrize(
    "row", rows("calls.yaml"), ids=lambda row: row["call"].partition(":")[2] + ":" + row["line"][:40]
)
def test_a_call(row: dict[str, Any]) -> None:
    module, name = row["call"].split(":")
    function: Any = importlib.import_module(module)
    for part in name.split("."):
        function = getattr(function, part)
    kind = getattr(errors, row["error"], None) or getattr(builtins, row["error"])
    with pytest.raises(kind, match=row["line"]) as refusal:
        function(*row.get("args", []), **row.get("kwargs", {}))
    assert "\n" not in str(refusal.value)
