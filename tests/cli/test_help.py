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


def letters(lines: list[str]) -> str:
    """A page without blanks and the marks of a command that goes on in the next line."""
    return "".join(word for word in " ".join(lines).split() if word != "\\")


def test_every_command_is_there() -> None:
    assert {"specbench run", "specbench models list", "specbench train head", "specbench config show"} < set(commands())


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_cut(width: int) -> None:
    for name in commands():
        lines = shown(name, width)
        assert [line for line in lines if cell_len(line) > width] == [], name
        assert letters(lines) == letters(shown(name, 200)), name


def test_every_option_is_named_with_its_values_and_default() -> None:
    text = "\n".join(shown("specbench run", WIDEST))
    assert "  -t, --target <str>          Alias, hub id" in text
    assert "  --trust-remote-code / --no-trust-remote-code\n" in text
    assert "Default: the shipped pair." in text
    assert "  --seed <int range>          Seed for the prompt sample and for every random draw." in text
    assert "Default: 2.  [0<=x<=1000]\n" in text
    compare = "\n".join(shown("specbench compare", WIDEST))
    assert compare.startswith("Usage: specbench compare [OPTIONS] BASE [NEW...]\n")
    assert "--format <table|md|json|junit|gha>" in compare
    assert "How to print on stdout.  [default: table]" in compare


def test_every_command_has_examples_that_parse() -> None:
    for name, (command, _) in commands().items():
        assert examples(name) or (isinstance(command, TyperGroup) and name != "specbench"), name
        for example in examples(name):
            assert example.startswith("specbench "), example
            parse(*shlex.split(example))


def parse(called: str, *arguments: str) -> None:
    """Raises what the command line would raise; runs nothing."""
    command, ctx = commands()[called]
    if isinstance(command, TyperGroup):
        assert arguments[0] in command.commands, arguments
        parse(f"{called} {arguments[0]}", *arguments[1:])
    else:
        command.make_context(ctx.info_name, list(arguments))


def test_a_wrong_example_would_be_seen() -> None:
    with pytest.raises(typer.TyperException):
        parse("specbench", "models", "grow", "--nope")
    with pytest.raises(AssertionError):
        parse("specbench", "models", "nope")


def test_a_long_example_is_copied_as_one_command() -> None:
    lines = shown("specbench compare", 60)
    assert "  specbench compare results/baseline latest --fail-on \\" in lines
    assert '    "speedup<-5%" --junit compare.xml' in lines


@pytest.mark.parametrize("group", [(), ("backend",)])
def test_a_group_without_a_command_shows_its_page(group: tuple[str, ...], command: Command) -> None:
    done = command(*group)
    assert (done.code, done.err) == (2, "")
    assert done.out.startswith(f"Usage: {' '.join(('specbench', *group))} [OPTIONS] COMMAND [ARGS]...\n")


def test_the_terminal_decides_the_width() -> None:
    text = on_terminal(60, specbench("predict", "--help"))
    assert text.startswith("Usage: specbench predict [OPTIONS]\n")
    assert max(map(cell_len, text.splitlines())) <= 60
