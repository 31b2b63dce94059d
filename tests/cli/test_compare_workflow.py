"""The GitHub workflows that we hand out: what they may do, that every command exists, and what their steps do."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

import specbench
from specbench.cli import app
from specbench.shipped import CONFIGS
from tests.support.tinypair import prompts, save_pair

COMMAND = re.compile(r"\bspecbench\"? ((?:[a-z][a-z-]+) .*)")


WORKFLOWS = {  # by file: permissions, what begins it, and the commands of specbench that it calls
    "github.yml": ({"contents": "read"}, "pull_request", ["run", "compare"]),
    "pair.yml": (
        {"contents": "read", "actions": "read"},
        {"push": {"branches": ["main"]}, "pull_request": None},
        ["run", "compare"],
    ),
}


def text_of(name: str) -> str:
    return (CONFIGS / "ci" / name).read_text(encoding="utf-8")


def job_of(name: str) -> dict[str, Any]:
    (job,) = yaml.safe_load(text_of(name))["jobs"].values()
    return dict(job)


def commands(job: dict[str, Any]) -> list[list[str]]:
    """The arguments of every call of specbench, as a shell would split them."""
    scripts = [step["run"].replace("\\\n", " ") for step in job["steps"] if "run" in step]
    return [shlex.split(found) for script in scripts for found in COMMAND.findall(script)]


def parse(arguments: list[str]) -> None:
    """Raises what the command line would raise; runs nothing."""
    group = typer.main.get_command(app.app)
    name, *rest = arguments
    assert name in group.commands, f"no command {name}"  # type: ignore[attr-defined]
    group.commands[name].make_context(name, rest)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_every_command_of_a_workflow_parses(name: str) -> None:
    permissions, begun_by, expected = WORKFLOWS[name]
    workflow = yaml.safe_load(text_of(name))
    assert workflow["permissions"] == permissions
    assert workflow[True] == begun_by, "YAML 1.1 reads the key `on` as true"
    called = commands(job_of(name))
    assert [arguments[0] for arguments in called] == expected
    for arguments in called:
        parse(arguments)


def test_a_wrong_option_would_be_seen() -> None:
    """The control of the test above."""
    with pytest.raises(typer.TyperException):
        parse(["compare", "a", "b", "--nope"])


@pytest.mark.parametrize("name", WORKFLOWS)
def test_actions_are_pinned_and_no_secret_is_read(name: str) -> None:
    steps = job_of(name)["steps"]
    used = [step["uses"] for step in steps if "uses" in step]
    assert used
    assert all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", action) for action in used)
    assert "secrets" not in text_of(name).replace("No secrets", "")
    # an expression inside a script would run what a pull request is called
    assert not [step for step in steps if "${{" in step.get("run", "")]


def test_the_command_explains_itself() -> None:
    shown = CliRunner().invoke(app.app, ["compare", "--help"])
    assert shown.exit_code == 0
    assert "--base-rerun" in shown.output


class Runner:
    """A runner of jobs in a folder: `gh` finds the artefacts that jobs have left here, and `specbench run` finds the
    run `measured` instead of measuring it; every other command of specbench is the real one."""

    def __init__(self, folder: Path) -> None:
        self.work, self.kept, self.bin, self.measured = (folder / name for name in ("work", "kept", "bin", "measured"))
        for place in (self.work / "venv" / "bin", self.kept, self.bin):
            place.mkdir(parents=True)
        measure = f'mkdir -p "$5"; cp -r "{self.measured}/." "$5"'
        script(
            self.work / "venv" / "bin" / "specbench",
            f'if [ "$1" = run ]; then {measure}; else exec "{sys.executable}" -m specbench "$@"; fi',
        )
        newest = f'[ -d "{self.kept}/baseline" ] && echo 17 || true'
        script(self.bin / "gh", f'if [ "$2" = list ]; then {newest}; else cp -r "{self.kept}/$5" "$7"; fi')

    def job(self, event: str, gate: str) -> int:
        """The exit code of the job of pair.yml that an event begins."""
        for name in ("runs", "baseline"):
            shutil.rmtree(self.work / name, ignore_errors=True)
        code = next((code for step in job_of("pair.yml")["steps"] if (code := self.step(step, event, gate))), 0)
        if event == "push":
            shutil.copytree(self.work / "runs", self.kept / "baseline", dirs_exist_ok=True)
        return code

    def step(self, step: dict[str, Any], event: str, gate: str) -> int:
        if "run" not in step or step["name"] == "Install" or step.get("if", event).strip("'").split("'")[-1] != event:
            return 0
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        env = {**os.environ, "PATH": path, "GATE": gate, "GITHUB_STEP_SUMMARY": str(self.work / "summary.md")}
        done = subprocess.run(["bash", "-e", "-c", step["run"]], cwd=self.work, env=env, check=False, timeout=300)
        return done.returncode


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


@pytest.mark.slow
def test_the_steps_of_the_gate_for_a_pair(tmp_path: Path) -> None:
    """Its gate is on a number without a clock in it, as no test may rest on time."""
    runner, gate = Runner(tmp_path), "tokens_per_round<-2%"
    pair = save_pair(tmp_path / "pair")
    dataset = prompts(tmp_path / "words.jsonl", 4, 6, 5, 7)

    def measure() -> None:
        shutil.rmtree(runner.measured, ignore_errors=True)
        named = {"target": str(pair.target), "draft": str(pair.draft), "dataset": dataset, "tier": "eager"}
        specbench.run(**named, k=3, max_new_tokens=16, warmup=0, output_dir=runner.measured)

    shutil.move(pair.draft, tmp_path / "weak")
    shutil.copytree(pair.target, pair.draft)
    measure()
    assert runner.job("pull_request", gate) == 0  # there is nothing to compare with yet
    assert runner.job("push", gate) == 0
    assert runner.job("pull_request", gate) == 0
    assert "tokens_per_round" in (runner.work / "summary.md").read_text()
    shutil.copytree(tmp_path / "weak", pair.draft, dirs_exist_ok=True)
    measure()
    assert runner.job("pull_request", gate) == 3
