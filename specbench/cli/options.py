"""The options of the commands, and the cells that a measuring command builds from them.

Settings are declared in spec.py; an option that changes no number is declared here, once. torch is imported inside.
"""

import inspect
import math
import os
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from inspect import Parameter
from pathlib import Path
from types import EllipsisType
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from specbench.cli.help import completed
from specbench.errors import SpecbenchError, UsageError
from specbench.measure.parsing import items, listed, with_lists, with_models
from specbench.results.named_runs import found_run
from specbench.settings import Declared, Group, declared, engine_options, group
from specbench.show.text import Format
from specbench.spec import BASELINE, CHOOSING, RunSpec

MEASURE, SEARCH, OUTPUT = "Measuring", "Search", "Output"  # panels; settings name their own
QUICK = {"tier": "eager", "limit": 5, "max_new_tokens": 32, "warmup": 1}  # what --quick sets
Given = Mapping[str, Any]  # the given options of a command, by name
Command = Callable[..., None]


@dataclass(frozen=True)
class Option:
    """An option as Typer reads and documents it. `absent` is its value if not given."""

    name: str
    kind: Any
    panel: str | None
    help: str
    flags: tuple[str, ...] = ()  # its names, if not just the option's own
    low: float | None = None
    high: float | None = None
    absent: Any = None
    count: bool = False
    in_file: bool = False  # also allowed in a configuration file
    words: tuple[str, ...] = ()  # all possible values, for shell completion

    @property
    def parameter(self) -> Parameter:
        """Convert to a parameter of the command."""
        names = self.flags or (f"--{self.name.replace('_', '-')}",)
        option = typer.Option(
            *names, min=self.low, max=self.high, count=self.count, help=self.help, rich_help_panel=self.panel,
            show_default=isinstance(self.absent, str), **completed(self.name, self.words),
        )  # fmt: skip
        kind = self.kind | None if self.absent is None else self.kind
        return Parameter(self.name, Parameter.KEYWORD_ONLY, default=self.absent, annotation=Annotated[kind, option])


OWN = {
    option.name: option
    for option in (
        Option("resume", Path, MEASURE, "Continue a killed or interrupted run (its folder or name) with its own "
               "settings. With a larger --limit: add prompts to it."),
        Option("config", Path, OUTPUT, "YAML with the same keys; the command line wins.", ("--config", "-c")),
        Option("preset", str, "Method", "Settings of a published experiment, such as chen2023-xsum; all other options "
               "and --config win. The published numbers are shown next to the measured ones."),
        Option("quick", bool, MEASURE, "Only a first estimate, in seconds: 5 prompts per data set, 32 new tokens, no "
               "compiling.", absent=False),
        Option("executor", Literal["local", "process", "ray"], MEASURE, "local, process (every cell in a process of "
               "its own, so that a crash costs one cell) or ray (cells over the devices of a Ray cluster). "
               "Default: local."),
        Option("yes", bool, MEASURE, "Measure the grid even if it has more than 10,000 cells.", absent=False),
        Option("output_dir", Path, OUTPUT, "Folder in which the run's folder is created. Default: "
            "results.", ("--output-dir", "-o"),
               in_file=True),
        Option("format", str, OUTPUT, "table, csv, json, jsonl or md on stdout. Default: table.", in_file=True),
        Option("explain", bool, OUTPUT, "Also explain the numbers: costs, acceptance by position, prediction against "
               "measurement term by term, categories.", absent=False),
        Option("quiet", bool, OUTPUT, "Print only the result.", ("--quiet", "-q"), absent=False),
        Option("verbose", int, OUTPUT, "-v prints settings, versions and machine on stderr, -vv also the traceback of "
               "an error.", ("--verbose", "-v"), absent=0, count=True),
        Option("output", Path, OUTPUT, "Write a method file, for --method of other commands.", ("--output", "-o")),
        Option("overwrite", bool, OUTPUT, "Let --output replace an existing file.", absent=False),
    )
}  # fmt: skip
STYLE = replace(OWN["format"], kind=Format, help="Format of stdout.", absent="table", in_file=False)
PLAIN = replace(STYLE, panel=None)  # for commands without panels

# Common sets of options; a setting named before its group is not repeated.
PAIR = ("pair", "revisions", "precision", "device")
METHOD = ("method", "lookahead", "acceptance")
DATA = ("data", "excerpt", "chat", "limit")
SAMPLING = ("max_new_tokens", "sampling", "length")
MEASURING = ("draws", "stopping")
RESULTS = ("output_dir", "format", "quiet", "verbose")


def options(
    *words: str | Option | EllipsisType, usual: Given | None = None, lists: Collection[str] = ()
) -> Callable[[Command], Command]:
    """Give a command options: groups of settings, single settings, those above, or an Option; `lists` may be repeated.

    The command gets a mapping of the given options as its first argument; omitted ones take the `usual`
    values, which its help shows. `...` marks the position of its own parameters.
    """
    values = usual or {}

    def decorate(command: Command) -> Command:
        _, *own = inspect.signature(command, eval_str=True).parameters.values()
        names = [parameter.name for parameter in own]

        parameters = in_order(words, own, values, lists)
        absent = {parameter.name: parameter.default for parameter in parameters}

        @wraps(command)
        def called(**chosen: Any) -> None:
            found = {**absent, **chosen}
            given = {name: value for name, value in found.items() if name not in names and value is not None}
            command({**values, **given}, **{name: found[name] for name in names})

        called.__dict__["__signature__"] = inspect.Signature(parameters)
        return called

    return decorate


def in_order(
    words: tuple[str | Option | EllipsisType, ...], own: list[Parameter], usual: Given, lists: Collection[str]
) -> list[Parameter]:
    """The parameters of a command, without duplicates."""
    found: dict[str, Parameter] = {}
    for word in words if ... in words else (*words, ...):
        some = own if isinstance(word, EllipsisType) else [repeatable(one, lists) for one in meant(word, usual)]
        for parameter in some:
            found.setdefault(parameter.name, parameter.replace(kind=Parameter.KEYWORD_ONLY))
    return list(found.values())


def repeatable(one: Option, lists: Collection[str]) -> Parameter:
    """An option as a parameter; options in `lists` may be repeated."""
    return (replace(one, kind=list[str], low=None, high=None) if one.name in lists else one).parameter


def settings_in(given: Given) -> dict[str, Any]:
    """The given options that are settings of a cell."""
    return {name: value for name, value in given.items() if name in RunSpec.model_fields}


def meant(word: str | Option, usual: Given) -> list[Option]:
    """The options that a word names."""
    if isinstance(word, Option):
        return [word]
    if word in OWN:
        return [OWN[word]]
    settings = group(word, RunSpec) if word in get_args(Group) else (declared(RunSpec)[word],)
    return [of_setting(one, usual=usual.get(one.name)) for one in settings if not one.setting.within]


def setting(name: str, meaning: str = "", usual: object = None) -> Option:
    """A setting with a help text specific to this command."""
    one = declared(RunSpec)[name]
    return of_setting(replace(one, setting=replace(one.setting, help=meaning or one.setting.help)), usual)


def of_setting(one: Declared, usual: object = None) -> Option:
    """A setting as an option; values and bounds that Typer cannot check are checked with the whole spec."""
    kind = one.setting.typed or (str if get_origin(one.type) is Literal else one.type)
    bounds = one.bounds if kind in (int, float) else {}
    low, high = (
        next((bounds[word] for word in words if word in bounds), None) for words in (("ge", "gt"), ("le", "lt"))
    )
    said = f"Default: {usual}." if usual is not None else one.usual
    text = f"{one.setting.help} {said}".strip()
    return Option(one.name, kind, one.setting.panel, text, one.flags, low, high, words=words_of(one.type))


def words_of(kind: Any) -> tuple[str, ...]:
    """The allowed words of a setting; empty if it takes any value."""
    parts = get_args(kind)
    found = parts if get_origin(kind) is Literal else (word for part in parts for word in words_of(part))
    return tuple(word for word in found if isinstance(word, str))


EXECUTION = (setting("tier", usual="auto"), "execution")
URLS = ("url", "baseline_url")
WORDS = ("server_args", "spec_config", "spec_args")  # words for command lines of servers
MANY = 100  # cells; above this the count is printed before the check, which takes seconds
IN_FILES = tuple(option.name for option in OWN.values() if option.in_file)


def launch(given: Given, axes: Collection[str] | None, **defaults: Any) -> None:
    """Measure the cells that the options describe, or continue the run that they name.

    `axes` are the settings that may be lists; None means all.
    """
    try:
        settings = settings_of(given)
        if "resume" in given:
            go_on(settings, given)
            return
        defaults |= QUICK if given.get("quick") else {}
        chosen = with_lists({**defaults, **shared_out(), **settings})
        lists = [name for name, value in chosen.items() if isinstance(value, list)]
        allowed = {*(axes or ()), *preset_of(given)}
        if axes is not None and (wrong := [name for name in lists if name not in allowed]):
            where = wrong[0] if wrong[0] not in given and "config" in given else f"--{wrong[0].replace('_', '-')}"
            raise UsageError(f"{where} takes one value here, not a list: use specbench sweep with a grid file")
        from specbench.jobs.output import output_of

        output, cells = output_of(chosen, given), cells_of(chosen, given)
        from specbench.jobs import run  # loads torch

        line = "" if output.quiet else defaulted(chosen, cells)
        run.start(cells, output, given.get("preset", ""), given.get("executor", "local"), line)
    except SpecbenchError:
        if given["verbose"] > 1:
            traceback.print_exc()
        raise


def defaulted(chosen: Given, cells: Sequence[RunSpec]) -> str:
    """A line listing the defaults that affect numbers, with their sources; empty if none."""
    from specbench.models.checkpoints.names import usual_settings

    first, pairs = cells[0], len({(one.target, one.draft) for one in cells})
    usual = usual_settings(first.target, first.draft) if pairs == 1 else {}
    words = {"k": f"K = {first.k}", "max_new_tokens": f"{first.max_new_tokens} new tokens"}
    if pairs > 1 or first.method in (BASELINE, CHOOSING) or first.schedule != "constant":
        del words["k"]
    found = [text + " (this pair's)" * (name in usual) for name, text in words.items() if chosen.get(name) is None]
    if chosen.get("dataset") is None:
        found.append(" and ".join(dict.fromkeys(one.dataset for one in cells)))
        found += [f"{first.limit} prompts"] * (chosen.get("limit") is None and first.limit is not None)
    return f"defaults: {', '.join(found)}" if found else ""


def settings_of(given: Given) -> dict[str, Any]:
    """Merge preset, configuration file and given options; later ones override."""
    besides = {name: given[name] for name in IN_FILES if given.get(name) not in (None, False)}
    return with_models({**preset_of(given), **read_config(given.get("config")), **settings_in(given), **besides})


def preset_of(given: Given) -> dict[str, Any]:
    """The settings of the named preset; empty without one."""
    if "preset" not in given:
        return {}
    from specbench.presets import preset  # reads YAML, like a configuration

    return dict(preset(given["preset"]).settings)


def read_config(path: Path | None) -> dict[str, Any]:
    """The keys of a configuration file, with underscores. UsageError if it is invalid."""
    if path is None:
        return {}
    from specbench.files import read_yaml  # slow to import; not needed without a file

    try:
        content = read_yaml(path) or {}
    except OSError as error:
        raise UsageError(f"cannot read the configuration {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path} is not readable as YAML: {error}") from None
    if not isinstance(content, dict):
        raise UsageError(f"{path}: expected keys and values, the same as the options of `specbench run`")
    found = {str(key).replace("-", "_"): value for key, value in content.items()}
    if len(found) < len(content):
        raise UsageError(f"{path}: a key occurs twice, with - and with _")
    return found


def cells_of(settings: dict[str, Any], given: Given) -> list[RunSpec]:
    """Build cells from settings. UsageError if only a file allows running code or sending the key."""
    from specbench.measure import grid

    most = math.inf if given.get("yes") else grid.MOST_CELLS
    if MANY < (number := grid.count(settings)) <= most and not given["quiet"]:
        typer.echo(f"{number:,} cells", err=True)
    found = grid.cells(settings, IN_FILES, most)
    grid.refuse_unknown(found)
    from specbench.jobs.resume import Typed, refuse_untyped  # loads torch

    refuse_untyped(found, Typed(**typed_in(given)), str(given.get("config") or f"preset {given.get('preset')}"))
    return found


def typed_in(given: Given) -> dict[str, Any]:
    """What the command line itself allows, as fields of `Typed`."""
    urls = tuple(given[name] for name in URLS if name in given)
    try:
        options = engine_options(given.get("engine_option"))
    except ValueError as error:
        raise UsageError(f"--engine-option: {error}") from error
    methods = (*items(given.get("method", [])), *(one.rpartition(":")[0] for one in items(given.get("choices", []))))
    trusted, words = (
        bool(given.get("trust_remote_code")),
        [one for name in WORDS for one in listed(given.get(name, []))],
    )
    return {"trust_remote_code": trusted, "urls": urls, "engine_options": options, "methods": methods,
            "words": tuple(words)}  # fmt: skip


def shared_out() -> dict[str, int]:
    """The setting that torchrun implies."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return {}
    from specbench.models.execution.machine import started

    return {"tensor_parallel": started()} if started() > 1 else {}


def go_on(settings: dict[str, Any], given: Given) -> None:
    """Continue a run with its own settings; a larger limit adds prompts.

    Permission to run its code, method files and words of servers, and to send its servers the key, must be given again.
    """
    from specbench.jobs.output import output_of
    from specbench.jobs.resume import Typed, resume

    output, limit = output_of(settings, given), settings.pop("limit", None)
    if others := settings.keys() - {"trust_remote_code", "engine_option", "method", *URLS, *WORDS}:
        name = min(others).replace("_", "-")
        raise UsageError(f"--resume takes all settings from the run that it continues: leave out --{name}")
    resume(found_run(given["resume"]), output, given.get("executor", "local"), limit, Typed(**typed_in(given)))
