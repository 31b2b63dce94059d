"""The GitHub workflow that we hand out: what it may do, and that every command in it exists."""

import re
import shlex
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner

from specbench.cli import app
from specbench.shipped import CONFIGS

COMMAND = re.compile(r"\bspecbench\"? ((?:[a-z][a-z-]+) .*)")


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    workflow = yaml.safe_load((CONFIGS / "ci" / "github.yml").read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    assert workflow[True] == "pull_request", "YAML 1.1 reads the key `on` as true"
    (job,) = workflow["jobs"].values()
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


def test_every_command_of_the_workflow_parses(job: dict[str, Any]) -> None:
    called = commands(job)
    assert [arguments[0] for arguments in called] == ["run", "compare"]
    for arguments in called:
        parse(arguments)


def test_a_wrong_option_would_be_seen() -> None:
    """The control of the test above."""
    with pytest.raises(typer.TyperException):
        parse(["compare", "a", "b", "--nope"])


def test_actions_are_pinned_and_no_secret_is_read(job: dict[str, Any]) -> None:
    used = [step["uses"] for step in job["steps"] if "uses" in step]
    assert used
    assert all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", action) for action in used)
    text = (CONFIGS / "ci" / "github.yml").read_text(encoding="utf-8")
    assert "secrets" not in text.replace("No secrets", "")
    # an expression inside a script would run what a pull request is called
    assert not [step for step in job["steps"] if "${{" in step.get("run", "")]


def test_the_command_explains_itself() -> None:
    shown = CliRunner().invoke(app.app, ["compare", "--help"])
    assert shown.exit_code == 0
    assert "--base-rerun" in shown.output
