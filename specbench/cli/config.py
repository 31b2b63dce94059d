"""`specbench config`: what a run would be made of, and where each part of it was said. Measures nothing."""

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from specbench.cli.help import Command
from specbench.cli.launch import EXECUTION, IN_FILES, preset_of, read_config, settings_of
from specbench.cli.options import DATA, MEASURING, METHOD, PAIR, PLAIN, SAMPLING, Given, options, settings_in
from specbench.jobs.asked import USUAL, with_lists

config = typer.Typer(help="Look at settings.", invoke_without_command=True)


@config.callback()
def alone(context: typer.Context) -> None:
    """Without a command: every setting."""
    if context.invoked_subcommand is None:
        show()


@config.command(name="show", cls=Command)
@options(*PAIR, "preset", *METHOD, *EXECUTION, *DATA, *SAMPLING, *MEASURING, "config", PLAIN)
def show(given: Given) -> None:
    """Print every setting of `specbench run` with these options: its value, and where that comes from.

    Examples:

    specbench config show

    specbench config show --preset chen2023-xsum --k 2
    """
    from specbench.measure import grid
    from specbench.show.records import print_records

    settings = {name: value for name, value in settings_of(given).items() if name not in IN_FILES}
    cells = grid.cells(with_lists({**USUAL, **settings}), IN_FILES)
    rows = rows_of([cell.model_dump(mode="json") for cell in cells], origins(given))
    print_records(rows, {f"{len(cells)} cells" if len(cells) > 1 else "one cell": rows}, given["format"])


def origins(given: Given) -> dict[str, str]:
    """Where the settings that were said come from, by name: what is said later wins."""
    file = given.get("config")
    return {
        **dict.fromkeys(preset_of(given), f"preset {given.get('preset')}"),
        **dict.fromkeys(read_config(file), str(file)),
        **dict.fromkeys(settings_in(given), "command line"),
    }


def rows_of(cells: Sequence[Mapping[str, Any]], said: Mapping[str, str]) -> list[dict[str, Any]]:
    """One line for every setting: all values that the cells have."""
    return [{"setting": name, "value": values_in(cells, name), "from": said.get(name, "default")} for name in cells[0]]


def values_in(cells: Sequence[Mapping[str, Any]], name: str) -> str:
    """The values of a setting, each once; a dash for nothing."""
    return ", ".join(dict.fromkeys("–" if cell[name] is None else str(cell[name]) for cell in cells))
