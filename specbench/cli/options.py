"""The options of the commands: of settings as spec.py declares them, and here, once each, what changes no number.

Knows declarations and Typer; must not know any command.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from inspect import Parameter
from pathlib import Path
from types import EllipsisType
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from specbench.cli import completion
from specbench.settings import Declared, Group, declared, group
from specbench.show.records import Format
from specbench.spec import RunSpec

MEASURE, SEARCH, OUTPUT = "Measuring", "Search", "Output"  # panels; the others are those of the settings
Given = Mapping[str, Any]  # the options of a command that were given, by name
Command = Callable[..., None]


@dataclass(frozen=True)
class Option:
    """One option as Typer is to read and explain it. `absent` is its value where it is not given."""

    name: str
    kind: Any
    panel: str | None
    help: str
    flags: tuple[str, ...] = ()  # its names, where they are more than the option's own
    low: float | None = None
    high: float | None = None
    absent: Any = None
    count: bool = False
    in_file: bool = False  # whether a configuration file may have it, too
    words: tuple[str, ...] = ()  # all that it may be, for a shell to complete

    @property
    def parameter(self) -> Parameter:
        """As a parameter of the command."""
        names = self.flags or (f"--{self.name.replace('_', '-')}",)
        option = typer.Option(
            *names, min=self.low, max=self.high, count=self.count, help=self.help, rich_help_panel=self.panel,
            show_default=isinstance(self.absent, str), **completion.of(self.name, self.words),
        )  # fmt: skip
        kind = self.kind | None if self.absent is None else self.kind
        return Parameter(self.name, Parameter.KEYWORD_ONLY, default=self.absent, annotation=Annotated[kind, option])


OWN = {
    option.name: option
    for option in (
        Option("resume", Path, MEASURE, "A run that was killed or interrupted, by its folder or name: go on with it, "
               "with all its settings. With a larger --limit: add prompts to it."),
        Option("config", Path, OUTPUT, "YAML with the same keys; the command line wins.", ("--config", "-c")),
        Option("preset", str, "Method", "Settings of a published experiment, such as chen2023-xsum; all other options "
               "and --config win. The published numbers are shown beside the measured ones."),
        Option("executor", Literal["local", "process", "ray"], MEASURE, "local, process (every cell in a process of "
               "its own, so that a crash costs one cell) or ray (cells over the devices of a Ray cluster). "
               "Default: local."),
        Option("yes", bool, MEASURE, "Measure more than 10,000 cells.", absent=False),
        Option("output_dir", Path, OUTPUT, "Where the run's folder is made. Default: results.", ("--output-dir", "-o"),
               in_file=True),
        Option("format", str, OUTPUT, "table, csv, json, jsonl or md on stdout. Default: table.", in_file=True),
        Option("explain", bool, OUTPUT, "Also show what explains the numbers: costs, acceptance by position, from the "
               "prediction to the measurement term by term, categories.", absent=False),
        Option("quiet", bool, OUTPUT, "Print nothing but the result.", ("--quiet", "-q"), absent=False),
        Option("verbose", int, OUTPUT, "-v prints settings, versions and machine on stderr, -vv also the traceback of "
               "an error.", ("--verbose", "-v"), absent=0, count=True),
        Option("output", Path, OUTPUT, "Write a method file, for --method of other commands.", ("--output", "-o")),
        Option("overwrite", bool, OUTPUT, "Let --output replace what is there already.", absent=False),
    )
}  # fmt: skip
STYLE = replace(OWN["format"], kind=Format, help="How to print on stdout.", absent="table", in_file=False)
PLAIN = replace(STYLE, panel=None)  # of commands whose options need no panels

# What commands take together; a setting that is named before its group is not repeated.
PAIR = ("pair", "revisions", "precision", "device")
METHOD = ("method", "lookahead", "acceptance")
DATA = ("data", "excerpt", "chat", "limit")
SAMPLING = ("max_new_tokens", "law", "length")
MEASURING = ("draws", "stopping")
RESULTS = ("output_dir", "format", "quiet", "verbose")


def options(*words: str | Option | EllipsisType, usual: Given | None = None) -> Callable[[Command], Command]:
    """Give a command options: groups of settings, single settings, those above, or an Option.

    The command gets a mapping of them as its first argument, without those that were not given; in their place stand
    the `usual` values, which its help shows. `...` is where its own parameters come.
    """
    values = usual or {}

    def decorate(command: Command) -> Command:
        _, *own = inspect.signature(command, eval_str=True).parameters.values()
        names = [parameter.name for parameter in own]

        parameters = in_order(words, own, values)
        absent = {parameter.name: parameter.default for parameter in parameters}

        @wraps(command)
        def called(**chosen: Any) -> None:
            found = {**absent, **chosen}
            given = {name: value for name, value in found.items() if name not in names and value is not None}
            command({**values, **given}, **{name: found[name] for name in names})

        called.__dict__["__signature__"] = inspect.Signature(parameters)
        return called

    return decorate


def in_order(words: tuple[str | Option | EllipsisType, ...], own: list[Parameter], usual: Given) -> list[Parameter]:
    """The parameters of a command, each once."""
    found: dict[str, Parameter] = {}
    for word in words if ... in words else (*words, ...):
        some = own if isinstance(word, EllipsisType) else [one.parameter for one in meant(word, usual)]
        for parameter in some:
            found.setdefault(parameter.name, parameter.replace(kind=Parameter.KEYWORD_ONLY))
    return list(found.values())


def settings_in(given: Given) -> dict[str, Any]:
    """What was given of the settings of a cell."""
    return {name: value for name, value in given.items() if name in RunSpec.model_fields}


def meant(word: str | Option, usual: Given) -> list[Option]:
    """The options that one word stands for."""
    if isinstance(word, Option):
        return [word]
    if word in OWN:
        return [OWN[word]]
    settings = group(word, RunSpec) if word in get_args(Group) else (declared(RunSpec)[word],)
    return [of_setting(one, usual=usual.get(one.name)) for one in settings]


def setting(name: str, meaning: str = "", usual: object = None) -> Option:
    """A setting of which a command says something else than the others do."""
    one = declared(RunSpec)[name]
    return of_setting(replace(one, setting=replace(one.setting, help=meaning or one.setting.help)), usual)


def of_setting(one: Declared, usual: object = None) -> Option:
    """A setting as an option; words and bounds that Typer cannot check are checked with the whole spec."""
    kind = one.setting.typed or (str if get_origin(one.type) is Literal else one.type)
    bounds = one.bounds if kind in (int, float) else {}
    low, high = (
        next((bounds[word] for word in words if word in bounds), None) for words in (("ge", "gt"), ("le", "lt"))
    )
    said = f"Default: {usual}." if usual is not None else one.usual
    text = f"{one.setting.help} {said}".strip()
    return Option(one.name, kind, one.setting.panel, text, one.flags, low, high, words=words_of(one.type))


def words_of(kind: Any) -> tuple[str, ...]:
    """The words of which a setting takes one; none of any other."""
    parts = get_args(kind)
    found = parts if get_origin(kind) is Literal else (word for part in parts for word in words_of(part))
    return tuple(word for word in found if isinstance(word, str))
