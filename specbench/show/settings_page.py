"""Every setting of a cell as a page of Markdown, for the documentation. Knows declarations; must not know commands."""

from collections.abc import Iterable
from typing import Literal, get_args, get_origin

from pydantic import BaseModel

from specbench.settings import BOUNDS, MEANING, Declared, Panel, declared
from specbench.show.markdown import table as markdown_table
from specbench.spec import RunSpec
from specbench.wording import literal

HEADER = ("option", "values", "default", "meaning", "part of")
WORDS = {str: "text", int: "whole number", float: "number", bool: "yes or no"}


def markdown(model: type[BaseModel] = RunSpec) -> str:
    """A table for each panel of `--help`, and what the words of its last column mean.

    TypeError for a field that declares no setting.
    """
    settings = list(declared(model).values())
    panels: tuple[Panel, ...] = get_args(Panel)
    parts = {panel: [one for one in settings if one.setting.panel == panel] for panel in panels}
    tables = [f"## {panel}\n\n{table(some)}" for panel, some in parts.items() if some]
    legend = "".join(f"- {part}: {text}\n" for part, text in MEANING.items())
    return "\n".join([*tables, f"## What a setting is part of\n\n{legend}"])


def table(settings: Iterable[Declared]) -> str:
    return "\n".join(markdown_table(HEADER, list(map(line, settings)), "l" * len(HEADER))) + "\n"


def line(one: Declared) -> tuple[str, ...]:
    """One setting in the columns of the header."""
    flags = ", ".join(f"`{flag}`" for flag in one.flags)
    usual = one.usual.removeprefix("Default: ").removesuffix(".")
    parts = ", ".join(part for part in MEANING if part in one.setting.of)
    return flags, values(one), literal(usual), literal(one.setting.help), parts


def values(one: Declared) -> str:
    """What an option takes, in words."""
    if get_origin(one.type) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(one.type))
    bounds = [f"{word} {one.bounds[bound]:g}" for bound, word in BOUNDS.items() if bound in one.bounds]
    return " ".join([WORDS.get(one.type, "text"), *bounds])
