"""Every row of commands.yaml: a command that is refused, its exit code and its line.

commands.yaml   - - {command: run, exit: 2}, then rows of [the words after it, a part of the line or several], and
                  the text of the group's `file` as a third. {5000 x} is so many x. A group may have more keys:
                  bare: without the usual options of the command        setup: what is made first, by its name below
                  env: {NAME: value}                                    patch: {module.function: what it returns}
                  quoted: how many x the line may have                  hidden: a text that is not repeated
                  loads: weights may be read before, notes be printed   leaves: what may lie in the folder afterwards
"""

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from specbench.models.checkpoints import loading
from tests.support import frontdoor
from tests.support.foreign import byte_level, save_pair, sentence_pieces
from tests.support.frontdoor import Command
from tests.support.tinypair import Pair, prompts, save_tokenizer

COMMANDS = yaml.safe_load(Path(__file__).with_name("commands.yaml").read_text(encoding="utf-8"))
ROWS = [pytest.param(group, *row, *[None][len(row) - 2 :]) for group, *rows in COMMANDS["groups"] for row in rows]
SETUPS: dict[str, Callable[[Pair, Path], object]] = {
    "other_tokenizer": lambda pair, folder: save_tokenizer(shutil.copytree(pair.draft, folder / "other"), "v{}"),
    "copied_target": lambda pair, folder: shutil.copytree(pair.target, folder / "copied", dirs_exist_ok=True),
    "linked_checkpoints": lambda _, folder: (folder / "mine" / "checkpoints").symlink_to(folder),
    "foreign": lambda _, folder: save_pair(folder / "foreign", byte_level([]), sentence_pieces(["▁the", "▁a", "é"])),
}


def filled(text: str, known: dict[str, str]) -> str:
    for name, value in known.items():
        text = text.replace(f"{{{name}}}", value)
    return re.sub(r"\{(\d+) ([^}]+)\}", lambda found: int(found[1]) * found[2], text)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("group", "words", "line", "content"), ROWS, ids=lambda one: None if isinstance(one, dict) else ascii(one)[:40]
)
def test_a_command(
    group: dict[str, Any], words: str, line: Any, content: str | None,
    command: Command, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    place, bare = tmp_path / group.get("file", "none"), group.get("bare")
    place.parent.mkdir(exist_ok=True)
    if "setup" in group:
        SETUPS[group["setup"]](pair, tmp_path)
    if "file" in group:
        place.write_text(filled(content or "", {}), encoding="utf-8")
    for name, value in group.get("env", {}).items():
        monkeypatch.setenv(name, value)
    for name, value in group.get("patch", {}).items():
        monkeypatch.setattr(name, lambda *_, value=value: value)
    if not group.get("loads"):
        monkeypatch.setattr(loading, "load_model", None)  # whoever calls it ends with another exit code
    if bare:
        monkeypatch.setattr(frontdoor, "REPLACED", set())
    usual = "" if bare else COMMANDS["usual"].get(group["command"], "")
    known = {"pair": shlex.join(pair.options), "target": str(pair.target), "draft": str(pair.draft)}
    known["words"] = prompts(tmp_path / "words.jsonl", 4, 6, 5)
    before = set(tmp_path.rglob("*"))
    found = command(*shlex.split(filled(f"{group['command']} {usual} {words}", known)))
    assert (found.code, found.out) == (group["exit"], ""), found.err
    last = found.err.splitlines()[-1] if group.get("loads") else found.line
    for part in [line] if isinstance(line, str) else line:
        assert filled(part, {}) in last
    assert last.startswith("specbench: ")
    assert last.isprintable()
    assert len(last) < 700
    assert last.count("x") <= group.get("quoted", 700)
    assert group.get("hidden", "\0") not in found.err
    assert "before any training" not in found.err, "what takes long comes after"
    left = tmp_path / group.get("leaves", "nothing")
    assert [path for path in before ^ set(tmp_path.rglob("*")) if left not in (path, *path.parents)] == []
