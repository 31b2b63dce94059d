"""A method of a user's own: `specbench new-method`, the class of a Python file in a method file, and what runs it."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import specbench
from specbench.decoding.method_files import content_sha256, python_files, read_method
from specbench.decoding.methods import build
from specbench.errors import UsageError
from tests.support.frontdoor import Command, Outcome
from tests.support.laws import EXACT, sequence_error
from tests.support.tinypair import prompts
from tests.support.toys import Toy, random_pair

DISHONEST = """
from dataclasses import dataclass
from specbench.decoding.drafters.chain import ModelDrafter


@dataclass(frozen=True)
class Dishonest(ModelDrafter):
    def propose(self, *rest, **more):
        draft = super().propose(*rest, **more)
        draft.q.copy_(draft.q.flip(-1))
        return draft
"""


@pytest.fixture
def mine(command: Command, tmp_path: Path) -> Path:
    """The two files as they are written, by their YAML."""
    assert command("new-method", "mine").code == 0
    return tmp_path / "mine.yaml"


def cut_off(run: Path) -> None:
    """Take the end of the last cell out of a run, as a kill does."""
    (run / "results.csv").unlink()
    file = run / "journal.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    last = max(number for number, line in enumerate(lines) if '"end"' in line)
    file.write_text("".join(lines[:last]))


def marking(file: Path) -> Path:
    """Let a Python file leave a mark where it is executed."""
    mark = file.parent / "executed"
    file.write_text(f"open({str(mark)!r}, 'w')\n" + file.read_text())
    return mark


# --- new-method -------------------------------------------------------------------------------------------------------


def test_what_is_written_is_short_says_what_comes_next_and_overwrites_nothing(command: Command, tmp_path: Path) -> None:
    done, code, file = command("new-method", "my-own_2").ok(), tmp_path / "my-own_2.py", tmp_path / "my-own_2.yaml"
    assert "specbench run --method my-own_2.yaml" in done.out
    assert "specbench verify --method my-own_2.yaml" in done.out
    assert len(code.read_text().splitlines()) <= 35
    content = read_method(str(file))
    assert (content["lossless"], content["paper"]) == (True, "unpublished")
    assert python_files(str(file)) == [code]
    file.unlink()
    before = code.read_bytes()
    assert "my-own_2.py already exists: choose another name" in command("new-method", "my-own_2").line
    assert (file.exists(), code.read_bytes()) == (False, before)


def test_it_runs_at_once_and_is_proven_exact(command: Command, run: Command, mine: Path) -> None:
    row = run("--method", "mine.yaml", "--tier", "eager", "--limit", "2", "--max-new-tokens", "16").row()
    assert (row["method"], row["lossless"], row["method_sha256"]) == (
        "mine.yaml", "identical", content_sha256([str(mine)])
    )  # fmt: skip
    assert int(row["drafted"]) > 0
    proven = command("verify", "--method", "mine.yaml")
    assert (proven.code, "mine.yaml" in proven.out) == (0, True), proven.err


def test_it_drafts_what_followed_the_last_token(mine: Path) -> None:
    target = Toy(random_pair(0, 3, 4)[0])
    assert sequence_error(build(str(mine), {"target": target}, 2), target.table, 3) <= EXACT


@pytest.mark.usefixtures("mine")
def test_a_class_that_misreports_its_drafts_is_found(command: Command, tmp_path: Path) -> None:
    (tmp_path / "lie.py").write_text(DISHONEST)
    (tmp_path / "lie.yaml").write_text(
        "{summary: a lie, lossless: true, part: {lie.py:Dishonest: {model: draft, k: k}}}"
    )
    assert command("verify", "--method", "lie.yaml").code == 5


# --- where a class stands ---------------------------------------------------------------------------------------------


def test_a_class_stands_wherever_a_part_does(mine: Path) -> None:
    own = {"mine.py:MyDrafter": {"k": 2}}
    merged = {"Merge": {"drafters": [own, {"ModelDrafter": {"model": "draft", "k": "k"}}]}}
    mine.write_text(yaml.safe_dump({"summary": "two", "lossless": True, "part": merged}))
    models = dict(zip(("target", "draft"), map(Toy, random_pair(0, 2, 4)), strict=True))
    method = build(str(mine), models, 2)
    assert type(method.drafter.drafters[0]).__name__ == "MyDrafter"
    assert python_files(str(mine)) == [mine.with_suffix(".py")]


def test_it_is_the_content_of_now_that_runs(mine: Path) -> None:
    code, target = mine.with_suffix(".py"), Toy(random_pair(0, 2, 2)[0])
    before, sha = type(build(str(mine), {"target": target}, 2).drafter), content_sha256([str(mine)])
    assert type(build(str(mine), {"target": target}, 2).drafter) is before
    code.write_text(code.read_text().replace("k: int", "k: int = 7"))
    assert type(build(str(mine), {"target": target}, 2).drafter) is not before
    assert content_sha256([str(mine)]) != sha
    assert content_sha256(["chain"]) == content_sha256(["ngram"]) == ""


@pytest.mark.usefixtures("mine")
def test_an_error_while_it_drafts_ends_its_cell_in_one_line(run: Command, tmp_path: Path) -> None:
    code = tmp_path / "mine.py"
    code.write_text(code.read_text().replace("width = ", "raise RuntimeError('not yet')\n        width = "))
    done = run("--method", "mine.yaml")
    assert done.code == 6
    assert "not yet" in done.table()[0]["error"]
    assert "Traceback" not in done.err


# --- trust, and two versions ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("mine", "undrawn")
def test_commands_that_read_execute_nothing(command: Command, run: Command, tmp_path: Path) -> None:
    assert run("--method", "mine.yaml").code == 0
    mark = marking(tmp_path / "mine.py")
    for name in ("verdict", "report", "profile"):
        command(name, "latest")
    for words in ("list", "compare latest latest", "methods mine.yaml", "config show --method mine.yaml"):
        command(*words.split())
    assert not mark.exists()
    assert run("--method", "mine.yaml").code == 0
    assert mark.exists()


def refused(done: Outcome, file: str) -> bool:
    said = f"{file} has the method mine.yaml, which runs mine.py, and a file must not decide that"
    return done.code == 2 and said in done.line and "then add --method mine.yaml" in done.line


@pytest.mark.usefixtures("mine")
def test_a_run_goes_on_with_a_class_that_is_named_again_and_has_not_changed(
    command: Command, run: Command, tmp_path: Path
) -> None:
    folder = run("--method", "mine.yaml").folder
    cut_off(folder)
    code = tmp_path / "mine.py"
    kept, mark = code.read_text(), marking(code)
    assert refused(command("run", "--resume", folder), "run.json")
    with pytest.raises(UsageError, match=r"which runs mine\.py"):
        specbench.resume(folder)
    assert not mark.exists()
    command("run", "--resume", folder, "--method", "mine.yaml").refused(
        "mine.yaml, or a Python file that it names, has changed since this run was begun"
    )
    code.write_text(kept)
    command("run", "--resume", folder, "--method", "mine.yaml").ok()
    command("run", "--resume", folder, "--method", "chain").refused("no use for --method chain")


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize("words", [["run", "--config"], ["check", "--config"], ["sweep"]], ids=" ".join)
def test_no_configuration_and_no_grid_decides_that_a_class_runs(
    command: Command, pair: Any, tmp_path: Path, words: list[str]
) -> None:
    mark = marking(tmp_path / "mine.py")
    given = {"target": str(pair.target), "draft": str(pair.draft), "k": 2, "method": "mine.yaml"}
    given["dataset"] = prompts(tmp_path / "words.jsonl", 4, 6)
    (tmp_path / "all.yaml").write_text(json.dumps({**given, "limit": 1, "max-new-tokens": 4, "warmup": 0}))
    assert refused(command(*words, "all.yaml"), "all.yaml")
    assert not mark.exists()
    done = command(*words, "all.yaml", "--method", "mine.yaml")
    assert (done.code, mark.exists()) == (0, True), done.err


def test_compare_says_that_the_method_has_changed(command: Command, run: Command, mine: Path) -> None:
    first = run("--method", "mine.yaml").folder.rename(mine.parent / "first")
    code = mine.with_suffix(".py")
    code.write_text(code.read_text() + "# another\n")
    second = run("--method", "mine.yaml").folder
    assert "method_sha256" in command("compare", first, second).out
