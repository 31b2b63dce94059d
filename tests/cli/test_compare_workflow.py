"""The GitHub workflows that we hand out: what they may do, that every command exists, and what their steps do."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

import specbench
from specbench.files import CONFIGS
from specbench.measure import sensors
from tests.cli.test_compare_failures import counted_work
from tests.cli.test_help import parse
from tests.support.tinypair import prompts, save_pair

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
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


@pytest.mark.parametrize("name", WORKFLOWS)
def test_every_command_of_a_workflow_parses(name: str) -> None:
    permissions, begun_by, expected = WORKFLOWS[name]
    workflow = yaml.safe_load(text_of(name))
    assert workflow["permissions"] == permissions
    assert workflow[True] == begun_by, "YAML 1.1 reads the key `on` as true"
    called = commands(job_of(name))
    assert [arguments[0] for arguments in called] == expected
    for arguments in called:
        parse("specbench", *arguments)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_actions_are_pinned_and_no_secret_is_read(name: str) -> None:
    steps = job_of(name)["steps"]
    used = [step["uses"] for step in steps if "uses" in step]
    assert used
    pinned = re.findall(r"uses: (actions/[a-z-]+@[0-9a-f]{40}) # v\d+\.\d+\.\d+$", text_of(name), re.MULTILINE)
    assert pinned == used, "by a commit, with its version"
    assert "secrets" not in text_of(name).replace("No secrets", "")
    # an expression inside a script would run what a pull request is called
    assert not [step for step in steps if "${{" in step.get("run", "")]


class Runner:
    """A runner of jobs in a folder, where what is not of specbench is a stand-in that notes how it was called.

    `gh` finds the artefacts that jobs have left here; `specbench` is what `program` says, in bash: `$out` is the folder
    of --output-dir, "$0" the program in its virtual environment.
    """

    def __init__(self, folder: Path, name: str, program: str) -> None:
        self.steps, self.env = job_of(name)["steps"], job_of(name)["env"]
        self.work, self.kept, self.bin, self.log = (folder / part for part in ("work", "kept", "bin", "calls"))
        for place in (self.work, self.kept, self.bin):
            place.mkdir(parents=True)
        note = f'printf "%q " "$(basename "$0")" "$@" >> "{self.log}"; echo >> "{self.log}"\n'
        place = 'for one in "$@"; do [ "$last" = --output-dir ] && out="$one"; last="$one"; done\n'
        script(self.bin / "pip", note)
        script(self.bin / "specbench", note + place + program)
        script(self.bin / "python", f'mkdir -p "$3/bin"; cp "{self.bin}/pip" "{self.bin}/specbench" "$3/bin"')
        newest = f'[ -d "{self.kept}/baseline" ] && echo 17 || true'
        script(self.bin / "gh", f'if [ "$2" = list ]; then {newest}; else cp -r "{self.kept}/$5" "$7"; fi')

    def job(self, event: str, **env: str) -> int:
        """The exit code of the job that an event begins, which ends at the first step that fails."""
        for name in ("runs", "baseline"):
            shutil.rmtree(self.work / name, ignore_errors=True)
        code = next((code for step in self.steps if (code := self.step(step, event, env))), 0)
        if event == "push":
            shutil.copytree(self.work / "runs", self.kept / "baseline", dirs_exist_ok=True)
        return code

    def step(self, step: dict[str, Any], event: str, env: dict[str, str]) -> int:
        given = step.get("with", {})
        if "actions/checkout" in step.get("uses", "") and "path" in given and not (self.work / given["path"]).exists():
            (self.work / given["path"]).symlink_to(ROOT)
        if "actions/upload-artifact" in step.get("uses", ""):
            assert (self.work / given["path"]).is_dir(), "what is kept was made"
        if "run" not in step or step.get("if", event).strip("'").split("'")[-1] != event:
            return 0
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        summary = {"PATH": path, "GITHUB_STEP_SUMMARY": str(self.work / "summary.md")}
        done = subprocess.run(
            ["bash", "-e", "-c", step["run"]],
            cwd=self.work,
            env={**os.environ, **self.env, **env, **summary},
            check=False,
            timeout=600,
        )
        return done.returncode

    def calls(self, program: str) -> list[list[str]]:
        """The arguments of every call of a program."""
        called = [shlex.split(line) for line in self.log.read_text().splitlines()]
        return [arguments for name, *arguments in called if name == program]


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


# Measures nothing; a comparison fails where one of its runs is not there.
DRY = """
if [ "$1" = run ]; then mkdir -p "$out/20260101T000000Z_a_b_c"; exit; fi
for one in "$@"; do case "$one" in runs/*/ | baseline/*/) [ -d "$one" ] || exit 9 ;; esac; done
"""
SOURCE = "specbench-decoding @ git+https://github.com/me/specbench@" + "a" * 40


def dry(folder: Path, name: str) -> Runner:
    runner = Runner(folder, name, DRY)
    (runner.kept / "baseline" / "1" / "run").mkdir(parents=True)
    (runner.kept / "baseline" / "2" / "run").mkdir(parents=True)
    return runner


@pytest.mark.parametrize(
    ("name", "event"), [("github.yml", "pull_request"), ("pair.yml", "push"), ("pair.yml", "pull_request")]
)
def test_every_step_finds_what_the_steps_before_it_left(tmp_path: Path, name: str, event: str) -> None:
    runner = dry(tmp_path, name)
    assert runner.job(event, SPECBENCH_SOURCE=SOURCE) == 0
    called = runner.calls("specbench")
    assert {arguments[0] for arguments in called} == {"run"} | {"compare"} - {"compare" * (event == "push")}
    for arguments in called:
        parse("specbench", *arguments)
    installed = runner.calls("pip")
    assert [arguments[0] for arguments in installed] == ["install"] * len(installed)
    sides = [check_installed(runner.work, arguments[1:]) for arguments in installed]
    assert sides == ["torch", PROJECT["name"]] * (2 if name == "github.yml" else 1)


def check_installed(work: Path, arguments: list[str]) -> str:
    """The name of what a call of pip installs, which must be something that it can find."""
    options = dict(pairwise(arguments))
    if "--constraint" in options:
        assert (work / options["--constraint"]).is_file()
    taken = {word for name in ("--constraint", "--index-url") if name in options for word in (name, options[name])}
    (what,) = (word for word in arguments if word not in taken)
    if what.startswith("./"):
        return str(tomllib.loads((work / what / "pyproject.toml").read_text())["project"]["name"])
    found = Requirement(what)
    if found.name == "torch":
        (ours,) = (needed for one in PROJECT["dependencies"] if (needed := Requirement(one)).name == "torch")
        assert ours.specifier.contains(str(found.specifier).removeprefix("=="))
        assert options["--index-url"] == "https://download.pytorch.org/whl/cpu"
    else:
        assert re.fullmatch(r"git\+https://github\.com/[^/@]+/[^/@]+@[0-9a-f]{40}", found.url or ""), "not on an index"
        assert found.extras <= set(PROJECT["optional-dependencies"])
    return found.name


def test_a_step_that_looks_elsewhere_would_be_seen(tmp_path: Path) -> None:
    """The control of the test above."""
    runner = dry(tmp_path, "github.yml")
    runner.steps = [
        {**step, "run": step["run"].replace("head-2", "head-3")} if "compare" in step.get("run", "") else step
        for step in runner.steps
    ]
    assert runner.job("pull_request") == 9


def test_a_source_that_nobody_has_set_is_said_before_anything_is_installed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    runner = dry(tmp_path, "pair.yml")
    assert runner.job("pull_request") == 2
    assert "set SPECBENCH_SOURCE at the top of this workflow" in capfd.readouterr().err
    assert not runner.log.exists()


@pytest.mark.slow
def test_the_steps_of_the_gate_for_a_pair(tmp_path: Path) -> None:
    """Its gate is on a number without a clock in it, as no test may rest on time."""
    measured = tmp_path / "measured"
    copied = f'mkdir -p "$out"; cp -r "{measured}/." "$out"'
    program = f'if [ "$1" = run ]; then {copied}; else exec "{sys.executable}" -m specbench "$@"; fi'
    runner, gate = Runner(tmp_path, "pair.yml", program), "tokens_per_round<-2%"
    pair = save_pair(tmp_path / "pair")
    dataset = prompts(tmp_path / "words.jsonl", 4, 6, 5, 7)

    def measure() -> None:
        shutil.rmtree(measured, ignore_errors=True)
        named = {"target": str(pair.target), "draft": str(pair.draft), "dataset": dataset, "tier": "eager"}
        specbench.run(**named, k=3, max_new_tokens=16, warmup=0, output_dir=measured)

    def job(event: str) -> int:
        return runner.job(event, GATE=gate, SPECBENCH_SOURCE=SOURCE)

    shutil.move(pair.draft, tmp_path / "weak")
    shutil.copytree(pair.target, pair.draft)
    measure()
    assert job("pull_request") == 0  # there is nothing to compare with yet
    assert job("push") == 0
    assert job("pull_request") == 0
    assert "tokens_per_round" in (runner.work / "summary.md").read_text()
    shutil.copytree(tmp_path / "weak", pair.draft, dirs_exist_ok=True)
    measure()
    assert job("pull_request") == 3


@pytest.mark.slow
@pytest.mark.parametrize(("slower", "code"), [(1.0, 0), (1.1, 3)])
def test_the_steps_of_the_gate_for_this_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slower: float, code: int
) -> None:
    """Seconds are counted work, so that nothing depends on the machine."""
    monkeypatch.setattr(sensors, "times", lambda root: None)
    pair, dataset = save_pair(tmp_path / "pair"), prompts(tmp_path / "words.jsonl", *range(3, 27))
    named = {"target": str(pair.target), "draft": str(pair.draft), "dataset": dataset, "tier": "eager"}
    for side, cost in (("base", 1.0), ("head", slower)):
        with counted_work(monkeypatch, cost):
            specbench.run(**named, k=2, max_new_tokens=10, warmup=0, output_dir=tmp_path / side)
    copied = f'case "$0" in venv-head/*) side=head ;; *) side=base ;; esac; cp -r "{tmp_path}/$side" "$out"'
    program = f'if [ "$1" = run ]; then {copied}; else exec "{sys.executable}" -m specbench "$@"; fi'
    runner = Runner(tmp_path, "github.yml", f"mkdir -p runs; {program}")
    assert runner.job("pull_request", PYTHONPATH=str(ROOT)) == code
    assert ("REGRESSION" in (runner.work / "summary.md").read_text()) == (code == 3)
    assert (runner.work / "runs" / "specbench.xml").is_file()
    assert (runner.work / "runs" / "specbench.json").is_file()
