"""Options mean one thing in all commands, and commands hand on what they are given."""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from typer.models import OptionInfo
from typer.testing import CliRunner

from specbench.backends.native import Native
from specbench.cli import options as o
from specbench.cli.app import app
from specbench.jobs import search, trace
from specbench.models.network.sampling import Sampling
from specbench.settings import declared, group
from specbench.spec import RunSpec
from tests.support.frontdoor import Command

LAWS = {setting.name for setting in group("sampling", RunSpec)}
LAWFUL = ("run", "sweep-k", "recommend", "check", "trace", "tree", "skip-layers", "design-draft")
OF_ITS_OWN = {"verify": {"temperature"}}  # what re-scores its text knows nothing of how we truncate
GIVEN = ("--temperature", "0.5", "--top-k", "3", "--top-p", "0.9", "--min-p", "0.1", "--eta", "0.01")


def commands() -> Iterator[tuple[str, Callable[..., Any]]]:
    every: Any = typer.main.get_command(app)
    for name, command in (*every.commands.items(), *every.commands["models"].commands.items()):
        yield name, command.callback


def settings_of(command: Callable[..., Any]) -> dict[str, OptionInfo]:
    """The options of a command by name."""
    found = {}
    for name, parameter in inspect.signature(command).parameters.items():
        for note in get_args(parameter.annotation):
            if isinstance(note, OptionInfo):
                found[name] = note
    return found


def flags(name: str, option: OptionInfo) -> set[str]:
    named = {option.default, *(option.param_decls or ())} - {...}
    return {str(flag) for flag in named} or {f"--{name.replace('_', '-')}"}


def test_run_takes_every_setting_and_a_command_all_of_the_law_or_nothing() -> None:
    found = {name: set(settings_of(command)) for name, command in commands()}
    assert {name for name, one in declared(RunSpec).items() if not one.setting.within} <= found["run"]
    assert {name: LAWS & some for name, some in found.items() if LAWS & some} == (
        dict.fromkeys(LAWFUL, LAWS) | OF_ITS_OWN
    )


@pytest.mark.parametrize("word", ["tier", "schedule", "seed", "limit"])
def test_a_word_for_a_setting_means_that_setting(word: str) -> None:
    meaning = declared(RunSpec)[word].setting.help
    said = [options[word].help or "" for _, command in commands() if word in (options := settings_of(command))]
    assert said
    assert all(text.startswith(meaning[:8]) for text in said)


def test_there_is_one_name_for_a_file_a_folder_of_runs_and_for_replacing() -> None:
    every = {
        flag for _, command in commands() for name, one in settings_of(command).items() for flag in flags(name, one)
    }
    assert {"--output", "--output-dir", "--overwrite"} <= every
    assert not every & {"--out", "--out-dir", "--force", "--file", "--save"}


@pytest.mark.parametrize(
    ("name", "job", "start"),
    [("tree", search, "start_tree"), ("skip-layers", search, "start_skip_layers"), ("trace", trace, "start")],
)
def test_the_whole_law_reaches_the_job(name: str, job: Any, start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(job, start, lambda settings, *rest: seen.append(settings))
    assert CliRunner().invoke(app, [name, *GIVEN]).exit_code == 0
    (settings,) = seen
    assert {law: settings[law] for law in LAWS} == {
        "temperature": 0.5, "top_k": 3, "top_p": 0.9, "min_p": 0.1, "eta": 0.01,
    }  # fmt: skip
    law = Native.sampling(object(), RunSpec(**{law: settings[law] for law in LAWS}))  # type: ignore[arg-type]
    assert law == Sampling(0.5, 3, 0.9, 0.1, 0.01)


@pytest.mark.parametrize(("name", "start"), [("tree", "start_tree"), ("skip-layers", "start_skip_layers")])
def test_a_method_file_is_replaced_only_where_that_is_asked_for(
    name: str, start: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[object] = []
    monkeypatch.setattr(search, start, lambda settings, search, output, *rest: seen.append(output))
    file = tmp_path / "mine.yaml"
    file.write_text("mine")
    refused = CliRunner().invoke(app, [name, "--output", str(file)])
    assert "already exists: choose another --output, or add --overwrite" in str(refused.exception)
    assert (seen, file.read_text()) == ([], "mine")
    assert CliRunner().invoke(app, [name, "--output", str(file), "--overwrite"]).exit_code == 0
    assert seen == [file]


def test_usual_values_of_a_command_stand_in_its_help_and_in_its_settings_and_one_named_twice_is_one_option() -> None:
    seen: list[o.Given] = []

    @o.options("limit", "seed", "quiet", usual={"limit": 7})
    def command(given: o.Given) -> None:
        """Nothing."""
        seen.append(given)

    command()
    command(limit=3, seed=1)
    assert seen == [{"limit": 7, "quiet": False}, {"limit": 3, "seed": 1, "quiet": False}]
    assert "Default: 7." in (settings_of(command)["limit"].help or "")

    @o.options("max_new_tokens", "sampling", "length", ..., "quiet")
    def twice(given: o.Given, own: int = 1) -> None:
        """Nothing."""

    names = list(inspect.signature(twice).parameters)
    assert names == ["max_new_tokens", *(one.name for one in group("sampling", RunSpec)), "ignore_eos", "own", "quiet"]


def test_an_option_with_several_values_is_given_again(command: Command) -> None:
    given = ("--dataset", "code", "--dataset", "articles", "--model", "a=demo", "--model", "b=demo")
    assert command("config", "show", *given).code == 0
