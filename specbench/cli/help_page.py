"""What `--help` shows: what a command does, examples of it, and every option with its values and its default.

Knows Typer's commands; must not know any one of them. Nothing is cut: a name that is too long has a line of its own.
"""

import inspect
from collections.abc import Iterable, Iterator, Sequence
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from specbench.errors import UsageError
from specbench.spec import RunSpec

WIDEST = 100  # columns; longer lines of text are hard to read
NAMES = 26  # columns of names and values at most, before what is said of them
EXAMPLE = "specbench "  # how a paragraph of a docstring begins that is an example
HEADING = "Examples:"  # what stands above them there
VALUES = {"str": "TEXT", "int": "N", "int range": "N", "float": "X", "float range": "X", "path": "PATH"}


class Command(TyperCommand):
    """A command whose help is a page of this module, and whose options are given once, unless they take several."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:  # a shell that completes a line
            _, _, given = self.make_parser(ctx).parse_args(list(args))
            refuse_twice([one for one in given if isinstance(one, TyperOption)])
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        show(self, ctx)


class Commands(TyperGroup):
    """A group of commands, the same."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        show(self, ctx)


def refuse_twice(given: Sequence[TyperOption]) -> None:
    """UsageError where an option that takes one value is given again: the last value would win without a word."""
    for number, one in enumerate(given):
        if one in given[:number] and not (one.multiple or one.count or one.is_flag):
            more = "; several values are compared by `specbench sweep GRID`" * (one.name in RunSpec.model_fields)
            raise UsageError(f"{max(one.opts, key=len)} is given twice: give it once{more}")


def show(command: TyperCommand | TyperGroup, ctx: Any) -> None:
    """Print the page, as Typer prints its own: what it got back as text would be the line of an error where a group
    is called without a command."""
    typer.echo("\n".join(page(command, ctx, columns())))


def columns() -> int:
    """The width of a page: that of the terminal, up to what reads well."""
    return min(get_terminal_size().columns, WIDEST)


def page(command: TyperCommand | TyperGroup, ctx: Any, width: int) -> Iterator[str]:
    """The lines of a help page; no line is wider, if the width is 40 columns or more."""
    yield from folded(" ".join(["Usage:", ctx.command_path, *usage(command, ctx)]), width)
    parts = inspect.cleandoc(command.help or "").split("\n\n")
    for part in parts:
        if part and part != HEADING and not part.startswith(EXAMPLE):
            yield from ("", *folded(part, width))
    examples = [part for part in parts if part.startswith(EXAMPLE)]
    yield from section("Examples", (line for one in examples for line in example(one, width)))
    for name, entries in panels(command, ctx):
        yield from section(name, (line for entry in entries for line in described(*entry, width)))


def usage(command: TyperCommand | TyperGroup, ctx: Any) -> Iterator[str]:
    """What follows the name of the command."""
    if isinstance(command, TyperGroup):
        yield from command.collect_usage_pieces(ctx)
        return
    yield "[OPTIONS]"
    for one in command.get_params(ctx):
        if isinstance(one, TyperArgument):
            name = names_of(one, ctx)
            yield name if one.required or "[" in name else f"[{name}]"


def section(name: str, lines: Iterable[str]) -> Iterator[str]:
    """A heading and the lines below it; nothing where there are none."""
    found = list(lines)
    if found:
        yield from ("", typer.style(name, bold=True), *found)


def panels(command: TyperCommand | TyperGroup, ctx: Any) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The names and texts of commands, arguments and options, panel by panel."""
    found: dict[str, list[tuple[str, str]]] = {}
    if isinstance(command, TyperGroup):
        for name, inner in command.commands.items():
            summary = " ".join(inspect.cleandoc(inner.help or "").split("\n\n")[0].split())
            found.setdefault(panel_of(inner, "Commands"), []).append((name, summary))
    for one in command.get_params(ctx):
        if isinstance(one, TyperArgument | TyperOption) and not one.hidden:
            usual = "Arguments" if isinstance(one, TyperArgument) else "Options"
            found.setdefault(panel_of(one, usual), []).append((names_of(one, ctx), said_of(one)))
    yield from found.items()


def panel_of(one: Any, usual: str) -> str:
    """The panel that a command or parameter is in."""
    return one.rich_help_panel if isinstance(one.rich_help_panel, str) else usual


def names_of(one: TyperArgument | TyperOption, ctx: Any) -> str:
    """How it is written: the short name first, and what stands for its value."""
    if isinstance(one, TyperArgument):
        return one.metavar or f"{(one.name or '').upper()}{'...' * (one.nargs != 1)}"
    names = ", ".join(sorted(one.opts, key=len)) + "".join(f" / {name}" for name in one.secondary_opts)
    return f"{names} {value_of(one, ctx)}".rstrip()


def value_of(one: TyperOption, ctx: Any) -> str:
    """What stands for the value of an option: its choices, or a word for its type; nothing for a switch."""
    if one.is_flag or one.count:
        return ""
    kind = (one.display_type_rich(ctx=ctx) or "").strip("<>").removeprefix("list[").removesuffix("]")
    return one.metavar or VALUES.get(kind.lower(), kind)


def said_of(one: TyperArgument | TyperOption) -> str:
    """What is said of it, with its bounds and its default."""
    default = "" if one.default in (None, False, (), []) or not one.show_default else str(one.default)
    bounds = "" if isinstance(one, TyperOption) and one.count else bounds_of(one.min, one.max)
    parts = [one.help or "", bounds, f"Default: {default}." * bool(default), "Required." * one.required]
    return " ".join(part for part in parts if part)


def bounds_of(low: float | None, high: float | None) -> str:
    """The range of a number as a sentence; empty for all else."""
    words = [f"{word} {bound:,}" for word, bound in (("from", low), ("to", high)) if bound is not None]
    return f"{' '.join(words).capitalize()}." * bool(words)


def described(name: str, text: str, width: int) -> Iterator[str]:
    """A name and what is said of it beside it, or below it where the name is long."""
    names = min(NAMES, width // 3)
    margin = " " * (names + 2)
    first, *rest = folded(text, width - len(margin)) or [""]
    if len(name) <= names - 2:
        yield f"  {typer.style(name, bold=True)}{' ' * (names - len(name))}{first}".rstrip()
    else:
        yield from (f"  {typer.style(name, bold=True)}", f"{margin}{first}".rstrip())
    yield from (f"{margin}{line}" for line in rest)


def example(command: str, width: int) -> Iterator[str]:
    """A command to be copied: where it needs several lines, a shell reads them as one."""
    *lines, last = folded(command, width - 6)
    yield from (f"{'    ' if number else '  '}{line} \\" for number, line in enumerate(lines))
    yield f"{'    ' if lines else '  '}{last}"


def folded(text: str, width: int) -> Sequence[str]:
    """A paragraph."""
    return wrap(" ".join(text.split()), width, break_long_words=False, break_on_hyphens=False)
