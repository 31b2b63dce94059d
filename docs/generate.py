"""The pages that follow from the program: commands, settings, columns, methods, the map of the files, the API.

`sphinx-build` writes them before it reads (see conf.py). Describes nothing that the program says by itself.
"""

import ast
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, get_args, get_origin

import yaml
from pydantic import BaseModel

from specbench.settings import BOUNDS, MEANING, Declared, Panel, declared
from specbench.show.text import markdown_table
from specbench.spec import RunSpec
from specbench.wording import literal

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "specbench"
PUBLIC = ("decoding", "theory", "data", "backends", "models", "measure", "results", "judge")  # folders of the API pages
PURE = ("spec", "errors", "metrics")
SETTING = ("option", "values", "default", "meaning", "part of")
TYPES = {str: "text", int: "whole number", float: "number", bool: "yes or no"}


def write_pages(folder: Path) -> None:
    """Write all pages; those that are as they were are left alone, so that Sphinx reads them no more than once."""
    for name, text in pages():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")


def pages() -> Iterator[tuple[str, str]]:
    """The name of every page and its Markdown."""
    yield "commands.md", commands()
    yield "settings.md", settings()
    yield "columns.md", columns()
    yield "methods.md", methods()
    yield "map.md", file_map()
    yield "api/index.md", api_index()
    for folder in PUBLIC:
        yield f"api/{folder}.md", api(folder, modules(folder))
    yield "api/pure.md", api(", ".join(PURE), [f"specbench.{name}" for name in PURE])


def commands() -> str:
    """Every command with its arguments and options, as Typer writes it."""
    typer = [sys.executable, "-m", "typer", "specbench.cli.app", "utils", "docs", "--name", "specbench"]
    done = subprocess.run([*typer, "--title", "Commands"], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def settings() -> str:
    """Every setting with its default and bounds, from where it is declared."""
    intro = "What every setting means, and its key in configuration and grid files: the option, with underscores."
    return page("Settings", intro, settings_of(RunSpec))


def settings_of(model: type[BaseModel]) -> str:
    """A table for each panel of `--help`, and what the words of its last column mean."""
    found = list(declared(model).values())
    panels = {panel: [setting(one) for one in found if one.setting.panel == panel] for panel in get_args(Panel)}
    tables = [
        f"## {panel}\n\n" + "\n".join(markdown_table(SETTING, rows, "l" * len(SETTING))) + "\n"
        for panel, rows in panels.items()
        if rows
    ]
    legend = "".join(f"- {part}: {text}\n" for part, text in MEANING.items())
    return "\n".join([*tables, f"## What a setting is part of\n\n{legend}"])


def setting(one: Declared) -> tuple[str, ...]:
    """One setting in the columns of `SETTING`."""
    if get_origin(one.type) is Literal:
        values = ", ".join(f"`{value}`" for value in get_args(one.type))
    else:
        bounds = [f"{word} {one.bounds[bound]:g}" for bound, word in BOUNDS.items() if bound in one.bounds]
        values = " ".join([TYPES.get(one.type, "text"), *bounds])
    within = one.setting.within.replace("_", "-")
    flags = f"`{one.name}`, in `--{within}`" if within else ", ".join(f"`{flag}`" for flag in one.flags)
    usual = literal(one.usual.removeprefix("Default: ").removesuffix("."))
    return (
        flags,
        values,
        usual,
        literal(one.setting.help),
        ", ".join(part for part in MEANING if part in one.setting.of),
    )


def columns() -> str:
    """The glossary that stands in every report."""
    glossary = yaml.safe_load((PACKAGE / "assets" / "report" / "glossary.yaml").read_text(encoding="utf-8"))
    rows = ((", ".join(f"`{name}`" for name in names.split(", ")), meaning) for names, meaning in glossary.items())
    intro = (
        "The numbers of `results.csv`, after the [settings](settings.md); [the numbers](../numbers.md) explains them."
    )
    return page("Columns of results.csv", intro, table(("column", "meaning"), rows))


def methods() -> str:
    """Every method file as it is."""
    found = sorted((ROOT / "configs" / "methods").glob("*.yaml"))
    parts = [f"## {file.stem}\n\n```yaml\n{file.read_text(encoding='utf-8')}```" for file in found]
    return page("Method files", "What `--method NAME` runs; [methods](../methods.md) explains them.", *parts)


def file_map() -> str:
    """Every module with the first line of its docstring, folder by folder."""
    intro = "The first line of every module; [architecture](../architecture.md) has the folders and what imports what."
    return page("Map of the files", intro, *sections(PACKAGE), *sections(ROOT / "tests"))


def sections(top: Path) -> Iterator[str]:
    for folder in [top, *sorted(path for path in top.rglob("*") if path.is_dir())]:
        files = sorted(file for file in folder.glob("*.py") if file.name != "__init__.py")
        if files:
            about = summary(folder / "__init__.py")
            rows = ((f"`{file.name}`", summary(file)) for file in files)
            yield f"## {folder.relative_to(ROOT).as_posix()}\n\n{about}\n\n{table(('file', 'what it knows'), rows)}"


def summary(file: Path) -> str:
    """The first line of a module's docstring; empty where it has none."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.split("\n\n")[0].replace("\n", " ")


def modules(folder: str) -> list[str]:
    """The modules of a folder and of the folders in it, by their dotted names."""
    files = sorted((PACKAGE / folder).rglob("*.py"))
    dotted = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files if file.name != "__init__.py"]
    return sorted(dotted, key=lambda name: (name.count("."), name))


def api_index() -> str:
    names = "\n".join(("pure", *PUBLIC))
    return page("API", "The modules by folder.", f"```{{toctree}}\n:maxdepth: 1\n\n{names}\n```")


def api(title: str, names: Iterable[str]) -> str:
    parts = [f"## {name}\n\n```{{eval-rst}}\n.. automodule:: {name}\n   :members:\n```" for name in names]
    return page(title, *parts)


def page(title: str, *parts: str) -> str:
    return "\n\n".join((f"# {title}", *parts)) + "\n"


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table; `|` in a cell is escaped."""
    lines = [header, tuple("---" for _ in header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
