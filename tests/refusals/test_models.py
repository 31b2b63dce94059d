"""Every row of the tables about engines, grids, checkpoints and heads: what is refused, its error, and its line.

commands-engines.yaml   - {command: "run --k -1", exit: 2, line: "--k"}; `run` measures a tiny pair on words.jsonl;
                          PAIR names it for other commands, NINES is a long number; files: {name: text} are there
calls-*.yaml            - {call: "specbench.module:function", args: [..], error: UsageError, line: "a pattern"};
                          spec: {..} or specs: [{..}, ..] are settings of runs, an argument after or before the others;
                          cases: [..] are rows that share the other keys
checkpoints.yaml        - {config: {key: value}, load: config, line: ".."}: a tiny checkpoint whose config.json (or, by
                          `tokenizer`, tokenizer_config.json) is changed, or its files: {name: text}; null removes one;
                          installed: false where no extra is
heads.yaml              - {head: eagle1, line: ".."}: a trained head as `write_head` makes it with `how`, for a tiny
                          target, but with a tensor dropped, with zeros: {name: shape} or ids: {name: values}, or for
                          another `target`
"""

import builtins
import importlib
import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from specbench import errors
from specbench.models.checkpoints import names
from specbench.models.checkpoints.description import load_config, load_tokenizer
from specbench.models.checkpoints.loading import load_model
from specbench.models.checkpoints.names import Checkpoint
from specbench.models.heads.build import built
from specbench.models.heads.files import read_head
from specbench.spec import RunSpec
from tests.support.checkpoints import CPU, refusal_of, save_tiny
from tests.support.frontdoor import Command
from tests.support.heads import write_head
from tests.support.tiny import network
from tests.support.tinypair import Pair

HERE = Path(__file__).parent


def rows(pattern: str) -> list[dict[str, Any]]:
    texts = [file.read_text(encoding="utf-8") for file in sorted(HERE.glob(pattern))]
    found = [row for text in texts for row in yaml.safe_load(text) or []]
    return [{**row, **case} for row in found for case in row.get("cases", [{}])]


@pytest.mark.whole
@pytest.mark.parametrize("row", rows("commands-engines.yaml"), ids=lambda row: ascii(row["command"])[:60])
def test_a_command(row: dict[str, Any], run: Command, command: Command, pair: Pair, tmp_path: Path) -> None:
    for name, text in row.get("files", {}).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    known = {"PAIR": shlex.join(map(str, pair.options)), "NINES": "9" * 5000}
    name, *words = shlex.split(re.sub("PAIR|NINES", lambda found: known[found[0]], row["command"]))
    found = run(*words, "-q") if name == "run" else command(name, *words)
    assert (found.code, found.out) == (row["exit"], ""), found.err
    assert row["line"] in found.line
    assert found.line.isprintable()
    assert not (found.cwd / "results").exists()


@pytest.mark.whole
@pytest.mark.parametrize(
    "row", rows("calls-*.yaml"), ids=lambda row: row["call"].partition(":")[2] + ":" + row["line"][:40]
)
def test_a_call(row: dict[str, Any]) -> None:
    module, name = row["call"].split(":")
    function: Any = importlib.import_module(module)
    for part in name.split("."):
        function = getattr(function, part)
    kind = getattr(errors, row["error"], None) or getattr(builtins, row["error"])
    before = [list(map(RunSpec.model_validate, row["specs"]))] if "specs" in row else []
    after = [RunSpec.model_validate(row["spec"])] if "spec" in row else []
    with pytest.raises(kind, match=row["line"]) as refusal:
        function(*before, *row.get("args", []), *after, **row.get("kwargs", {}))
    assert "\n" not in str(refusal.value)


LOADERS: dict[str, Callable[[Checkpoint], object]] = {
    "config": load_config,
    "tokenizer": load_tokenizer,
    "weights": lambda checkpoint: load_model(checkpoint, None, CPU),
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("checkpoints") / "tiny")


@pytest.mark.whole
@pytest.mark.parametrize("row", rows("checkpoints.yaml"), ids=lambda row: ascii(row["line"])[:60])
def test_a_checkpoint(row: dict[str, Any], tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not row.get("installed", True):
        monkeypatch.setattr(names, "find_spec", lambda _: None)
    folder = Path(shutil.copytree(tiny, tmp_path / "tiny"))
    for key, name in (("config", "config.json"), ("tokenizer", "tokenizer_config.json")):
        if key in row:
            (folder / name).write_text(json.dumps({**json.loads((folder / name).read_text()), **row[key]}))
    for name, text in row.get("files", {}).items():
        (folder / name).unlink(missing_ok=True)
        if text is not None:
            (folder / name).write_text(text, encoding="utf-8", errors="surrogateescape")
    line = refusal_of(LOADERS[row["load"]], Checkpoint("tiny", str(folder)))
    assert line.startswith("tiny: ")
    assert row["line"].replace("FOLDER", str(folder)) in line


@pytest.mark.whole
@pytest.mark.parametrize("row", rows("heads.yaml"), ids=lambda row: row["line"][:60])
def test_a_head(row: dict[str, Any], tmp_path: Path) -> None:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors.pop(row.get("drop"), None)
        tensors.update({name: torch.zeros(shape) for name, shape in row.get("zeros", {}).items()})
        tensors.update({name: torch.tensor(ids) for name, ids in row.get("ids", {}).items()})

    def load() -> object:
        head = read_head(tmp_path, "head")
        return head and built(head, target)

    target = network("llama", 7)
    trained_for = type(target.config)(**{**target.config.to_dict(), **row.get("target", {})})
    write_head(tmp_path, row["head"], trained_for, change=change, **row.get("how", {}))
    line = refusal_of(load)
    assert line.startswith("head: ")
    assert row["line"] in line
