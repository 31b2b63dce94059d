"""The text of `--help` and `--help-all`, and shell completion with the names that specbench knows and its runs.

The page is plain text by panels: Typer's own page, drawn with rich, loads twice as many modules and cuts long
names at 80 columns. Completion loads nothing heavy, because a shell waits for it.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from textwrap import wrap
from typing import Any, get_args

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from specbench.errors import UsageError
from specbench.wording import near

WIDEST = 100  # columns; longer lines are hard to read
NAMES = 26  # maximum columns of names and values, before their text
EXAMPLE = "specbench "  # start of a docstring paragraph that is an example
HYPHEN = "\u2011"  # no line is broken here; shown as a plain hyphen
HEADING = "Examples:"  # the heading above examples
LONG = 30  # options; a command with more shows only its own and the common ones, unless all are requested
COMMON = (
    "target", "draft", "dtype", "device", "dataset", "limit", "preset", "method", "k", "tier", "backend", "url",
    "max_new_tokens", "temperature", "batch", "until_ci", "quick", "resume", "explain", "output_dir", "format", "help",
)  # fmt: skip
RARE = ("executor", "yes", "config", "quiet", "verbose")  # besides the settings
LATER = ("Look closer", "Find and train drafts", "Set up")  # panels that `specbench --help` leaves out
# Option names of vLLM and its benchmarks, and command names of other tools.
SYNONYMS = {
    "limit": ["-n", "--num-prompts"], "k": ["--num-speculative-tokens"], "max_new_tokens": ["--max-tokens"],
    "batch": ["--concurrency", "--max-concurrency", "--batch-size"], "arrivals": ["--request-rate"],
}  # fmt: skip
OURS = {"version": "--version", "resume": "run --resume RUN", "bench": "run", "benchmark": "run", "gate": "compare"}


class Command(TyperCommand):
    """A command that refuses repeated options, except options with several values."""

    def make_parser(self, ctx: Any) -> Any:
        parser = super().make_parser(ctx)
        for one in self.params:
            if isinstance(one, TyperOption) and one.name in SYNONYMS:
                action = "append" if one.multiple else "store"
                parser.add_option(one, SYNONYMS[one.name], dest=one.name, action=action)
        return parser

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:  # true while a shell completes a line
            if "--help-all" in args:
                typer.echo(page(self, ctx))
                ctx.exit()
            _, _, given = self.make_parser(ctx).parse_args(list(args))
            refuse_twice([one for one in given if isinstance(one, TyperOption)])
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        typer.echo(page(self, ctx, short=True))


class Commands(TyperGroup):
    """A group of commands."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Look up the command. UsageError if unknown, suggesting ours if another tool uses that name."""
        name = args[0]
        if ctx.parent is None and name not in self.commands and not name.startswith("-"):
            ours = f": it is `specbench {OURS[name]}`" if name in OURS else near(name, self.commands)
            raise UsageError(f"no such command {name[:60]!r}{ours}; `specbench help all` lists the commands")
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        typer.echo(page(self, ctx, short=True))  # printed here: in the formatter it would join an error line


def refuse_twice(given: Sequence[TyperOption]) -> None:
    """Raise UsageError for a repeated single-value option: the last value would win silently."""
    for number, one in enumerate(given):
        if one in given[:number] and not (one.multiple or one.count or one.is_flag):
            from specbench.spec import RunSpec

            more = "; `specbench sweep GRID` compares several values" * (one.name in RunSpec.model_fields)
            raise UsageError(f"{max(one.opts, key=len)} is given twice: give it once{more}")


def page(command: TyperCommand | TyperGroup, ctx: Any, short: bool = False) -> str:
    """The help page, as wide as the terminal up to WIDEST columns; `short` omits rare options and commands."""
    ctx.max_content_width = WIDEST
    formatter = ctx.make_formatter()
    arguments = [name_of(one, ctx) for one in command.params if isinstance(one, TyperArgument)]
    rest = ["COMMAND [ARGS]..."] if isinstance(command, TyperGroup) else arguments
    formatter.write_usage(ctx.command_path, " ".join(["[OPTIONS]", *rest]))
    parts = inspect.cleandoc(command.help or "").split("\n\n")
    examples = [part for part in parts if part.startswith(EXAMPLE)]
    for part in parts:
        if part != HEADING and part not in examples:
            formatter.write_paragraph()
            formatter.write_text(part.replace("-", HYPHEN))
    if examples:
        with formatter.section("Examples"):
            for part in examples:  # several lines that a shell reads as one
                text = " ".join(part.split())
                lines = wrap(text, formatter.width - 6, break_long_words=False, break_on_hyphens=False)
                formatter.write("  " + " \\\n    ".join(lines) + "\n")
    for name, rows in panels(command, ctx, short).items():
        with formatter.section(name):
            formatter.write_dl(rows, col_max=NAMES)
    everything = "specbench help all" if ctx.parent is None else f"{ctx.command_path} --help-all"
    if short and (ctx.parent is None or len(command.params) > LONG):
        formatter.write_paragraph()
        formatter.write_text(f"This is a selection. See all: {everything}".replace("-", HYPHEN))
    return str(formatter.getvalue()).rstrip().replace(HYPHEN, "-")


def panels(command: TyperCommand | TyperGroup, ctx: Any, short: bool) -> dict[str, list[tuple[str, str]]]:
    """Names and texts of commands, arguments and options, by panel."""
    found: dict[str, list[tuple[str, str]]] = {}
    for name, inner in command.commands.items() if isinstance(command, TyperGroup) else ():
        panel = panel_of(inner, "Commands")
        if not (inner.hidden or (short and panel in LATER)):
            summary = " ".join(inspect.cleandoc(inner.help or "").split("\n\n")[0].split())
            found.setdefault(panel, []).append((name, summary.replace("-", HYPHEN)))
    rare: set[str] = set()
    if short and len(command.params) > LONG:
        from specbench.spec import RunSpec

        rare = {*RunSpec.model_fields, *RARE} - {*COMMON}
    for one in command.get_params(ctx):
        record = one.get_help_record(ctx)  # None if hidden
        in_example = f"--{str(one.name).replace('_', '-')} " in (command.help or "")
        if record and (one.name not in rare or in_example):
            usual = "Arguments" if isinstance(one, TyperArgument) else "Options"
            found.setdefault(panel_of(one, usual), []).append((name_of(one, ctx), record[1].replace("-", HYPHEN)))
    return found


def name_of(one: Any, ctx: Any) -> str:
    """Format an option with its short name and value type, or an argument in capitals, in brackets if optional."""
    names = str(one.get_help_record(ctx)[0])
    if not isinstance(one, TyperArgument):
        return re.sub(r"<list\[(.+)\]>", r"<\1>", names)
    name = one.metavar or names.split(" <")[0].upper()
    return name if one.required or "[" in name else f"[{name}]"


def panel_of(one: Any, usual: str) -> str:
    return one.rich_help_panel if isinstance(one.rich_help_panel, str) else usual


def imported(place: str) -> Any:
    """The object with a dotted name below specbench, such as presets.presets."""
    module, _, name = place.rpartition(".")
    return getattr(import_module(f"specbench.{module}"), name)


Names = Callable[[], Iterable[str]]


def method_names() -> Iterable[str]:
    from specbench.decoding.method_files import methods
    from specbench.spec import CHOOSING

    return [*methods(), CHOOSING]


def data_set_names() -> Iterable[str]:
    from specbench.data.sources import HF, HUB, LONG, READERS, SHIPPED, added

    return [*SHIPPED, *HUB, *added(), *(f"{kind}:" for kind in (HF, *READERS, *LONG))]


def backend_names() -> Iterable[str]:
    from specbench import plugins

    servers = ("openai", "vllm-serve", "sglang", "llama-server")
    return ["native", "transformers", "vllm", "llama.cpp", *servers, *plugins.names(plugins.BACKENDS, ())]


def grid_names() -> Iterable[str]:
    from specbench.files import CONFIGS

    return sorted(path.stem for path in (CONFIGS / "grids").glob("*.yaml"))


def run_names() -> Iterable[str]:
    from specbench.results.named_runs import names_of_runs

    return names_of_runs()


def format_names() -> Iterable[str]:
    from specbench.show.text import Format

    return get_args(Format)


KNOWN: dict[str, Names] = {
    **dict.fromkeys(("target", "draft"), lambda: imported("models.checkpoints.names.aliases")()),
    "method": method_names, "dataset": data_set_names, "preset": lambda: imported("presets.presets")(),
    "format": format_names, "backend": backend_names, "resume": run_names,
}  # fmt: skip


def completed(name: str, words: Iterable[str] = ()) -> dict[str, Any]:
    """Completion settings for Typer: names of the option's kind, else `words`; empty without names."""
    known = KNOWN.get(name, (lambda: words) if words else None)
    return {"autocompletion": beginning(known)} if known else {}


def beginning(names: Names) -> Callable[[str], list[str]]:
    """Return a function that lists the names that start with the typed text."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete
