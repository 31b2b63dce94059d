"""`--help` of every command: nothing is cut at any width, and its examples are commands that exist."""

import shlex
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import typer
from rich.cells import cell_len
from typer.core import TyperGroup

from specbench.cli.app import app
from specbench.cli.help import WIDEST, page
from specbench.errors import UsageError
from tests.support.frontdoor import Command
from tests.support.terminals import CONTROL, on_terminal, specbench

WIDTHS = (60, 80, WIDEST)


@cache
def commands() -> dict[str, tuple[Any, typer.Context]]:
    """Every command and group by its name, with what its help needs."""
    return dict(below(typer.main.get_command(app), None))


def below(command: Any, parent: typer.Context | None, name: str = "specbench") -> Iterator[tuple[str, Any]]:
    ctx = typer.Context(command, parent=parent, info_name=name, help_option_names=["-h", "--help"])
    yield ctx.command_path, (command, ctx)
    for called, one in command.commands.items() if isinstance(command, TyperGroup) else ():
        yield from below(one, ctx, called)


def shown(name: str, width: int) -> list[str]:
    command, ctx = commands()[name]
    ctx.terminal_width = width
    return [CONTROL.sub("", line) for line in page(command, ctx).splitlines()]


def examples(name: str) -> list[str]:
    """The commands below the heading, each on one line."""
    text = "\n".join(shown(name, 60)).replace(" \\\n", " ")
    _, _, rest = text.partition("\nExamples:\n")
    return [line.strip() for line in rest.split("\n\n")[0].splitlines()]


def test_the_short_page_of_a_run_is_a_selection(command: Command) -> None:
    short, whole, same = (command("run", *words).out for words in (["--help"], ["--help-all"], ["--k", "--help-all"]))
    assert sum(line.startswith("  -") for line in short.splitlines()) <= 22
    assert short.rstrip().endswith("See all: specbench run --help-all")
    assert whole == same == command("help", "run").out
    assert "--executor" in whole
    assert "--executor" not in short
    assert "--layers" in command("train", "draft", "--help").out  # of this command alone, so never left out
    assert "See all" not in command("compare", "--help").out


def test_the_first_page_names_a_dozen_commands_and_where_the_others_are(command: Command) -> None:
    first, every = command().out, command("help", "all").out
    assert "See all: specbench help all" in first
    missing = [name for name in typer.main.get_command(app).commands if f"\n  {name} " not in first]  # type: ignore[attr-defined]
    assert len(typer.main.get_command(app).commands) - len(missing) == 12  # type: ignore[attr-defined]
    assert all(f"\n  {name} " in every for name in missing if name != "help")
    for words, answer in [(["help", "trian"], "did you mean train"), (["resume"], "specbench run --resume RUN")]:
        unknown = command(*words)
        assert (unknown.code, answer in unknown.err) == (2, True)


@pytest.mark.parametrize(
    ("theirs", "ours"), [("-n", "limit"), ("--num-prompts", "limit"), ("--num-speculative-tokens", "k"),
                         ("--max-tokens", "max_new_tokens"), ("--concurrency", "batch"),
                         ("--max-concurrency", "batch"), ("--batch-size", "batch"),
                         ("--request-rate", "arrivals")]
)  # fmt: skip
def test_names_of_other_tools_are_understood(theirs: str, ours: str) -> None:
    command, ctx = commands()["specbench run"]
    assert command.make_context(ctx.info_name, [theirs, "3"]).params[ours] in (3, ["3"])
    both = [theirs, "3", f"--{ours.replace('_', '-')}", "4"]
    if ours in ("k", "batch", "arrivals"):
        assert command.make_context(ctx.info_name, both).params[ours] == ["3", "4"]
        return
    with pytest.raises(UsageError, match="twice"):
        command.make_context(ctx.info_name, both)


def letters(lines: list[str]) -> str:
    """A page without blanks and the marks of a command that goes on in the next line."""
    return "".join(word for word in " ".join(lines).split() if word != "\\")


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_cut_of_any_command(width: int) -> None:
    assert {"specbench run", "specbench models list", "specbench train head", "specbench config show"} < set(commands())
    for name in commands():
        lines = shown(name, width)
        assert [line for line in lines if cell_len(line) > width] == [], name
        assert letters(lines) == letters(shown(name, 200)), name


def test_every_option_is_named_with_its_values_and_default() -> None:
    text = "\n".join(shown("specbench run", WIDEST))
    assert "  -t, --target <str>          Target model: alias, hub id" in text
    assert "  --trust-remote-code / --no-trust-remote-code\n" in text
    assert "Default: the shipped pair." in text
    assert "  --seed <int range>          Seed for the prompt sample and for every random draw." in text
    assert "Default: 2.  [0<=x<=1000]\n" in text
    compare = "\n".join(shown("specbench compare", WIDEST))
    assert compare.startswith("Usage: specbench compare [OPTIONS] BASE [NEW...]\n")
    assert "--format <table|md|json|junit|gha>" in compare
    assert "--base-rerun" in compare
    assert "Format of stdout.  [default: table]" in compare


def test_every_command_has_examples_that_parse_and_a_wrong_one_would_be_seen() -> None:
    for name, (command, _) in commands().items():
        assert examples(name) or (isinstance(command, TyperGroup) and name != "specbench"), name
        for example in examples(name):
            assert example.startswith("specbench "), example
            parse(*shlex.split(example))
    lines = shown("specbench compare", 60)
    assert "  specbench compare results/baseline latest --fail-on \\" in lines, "it is copied as one command"
    assert '    "speedup<-5%" --junit compare.xml' in lines
    with pytest.raises(typer.TyperException):
        parse("specbench", "models", "grow", "--nope")
    with pytest.raises(AssertionError):
        parse("specbench", "models", "nope")


def parse(called: str, *arguments: str) -> None:
    """Raises what the command line would raise; runs nothing."""
    command, ctx = commands()[called]
    if isinstance(command, TyperGroup):
        assert arguments[0] in command.commands, arguments
        parse(f"{called} {arguments[0]}", *arguments[1:])
    else:
        command.make_context(ctx.info_name, list(arguments))


@pytest.mark.parametrize("group", [(), ("backend",)])
def test_a_group_without_a_command_shows_its_page(group: tuple[str, ...], command: Command) -> None:
    done = command(*group)
    assert (done.code, done.err) == (2, "")
    assert done.out.startswith(f"Usage: {' '.join(('specbench', *group))} [OPTIONS] COMMAND [ARGS]...\n")


def test_the_terminal_decides_the_width() -> None:
    text = on_terminal(60, specbench("predict", "--help"))
    assert text.startswith("Usage: specbench predict [OPTIONS]\n")
    assert max(map(cell_len, text.splitlines())) <= 60
