"""Commands with random options: any that a command declares, with values of any kind.

What is asked for and would rightly take long (a thousand repetitions, a compiler, a browser) is left out.
"""

import inspect
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import typer
from typer.models import ArgumentInfo, OptionInfo

from specbench.cli.app import app
from tests.support.fuzz import changes

SLOW = ("show", "repeat", "tier", "verbose", "until_ci")  # options by the names of their parameters
WRITES = ("--output", "--output-dir", "--junit", "--gha")  # never to places outside, which would be as asked for
PLACES = ("results/x", "pipe", ".", "", "in", "\udcff", "a" * 300, "run", "run/journal.jsonl/x", "x.json", "x.html")
MEASURING = ("run", "sweep-k", "trace", "tree", "skip-layers", "calibrate", "noise")
FEW = {
    "run": (), "sweep-k": (), "trace": (),
    "tree": ("--nodes", "2", "--depth", "2"), "skip-layers": ("--evaluations", "4", "--cost", "share"),
    "calibrate": ("--widths", "1-2", "--contexts", "8", "--repeat", "1"), "noise": (),
}  # fmt: skip
LIGHT = ("predict", "methods", "verdict", "report", "compare", "list", "grow")


def commands() -> dict[str, Callable[..., Any]]:
    """Every command by its name."""
    every: Any = typer.main.get_command(app)
    found = {**every.commands, **every.commands["models"].commands}
    return {name: command.callback for name, command in found.items()}


def flags_of(command: Callable[..., Any]) -> dict[str, bool]:
    """The options of a command by their first flags, and whether each takes a value."""
    found = {}
    for name, parameter in inspect.signature(command).parameters.items():
        for note in get_args(parameter.annotation):
            if isinstance(note, OptionInfo) and not isinstance(note, ArgumentInfo) and name not in SLOW:
                every = [flag for flag in (note.default, *(note.param_decls or ())) if isinstance(flag, str)]
                flag = every[0] if every else f"--{name.replace('_', '-')}"
                kind = get_args(parameter.annotation)[0]
                found[flag.split("/")[0]] = kind is not bool
    return found


def given(chance: random.Random, pair: Sequence[str], run: Path) -> tuple[str, ...]:
    """A command line; `pair` are the options of a quick measurement, `run` the folder of a finished run."""
    name = chance.choice([*MEASURING, *LIGHT, "run", "run"])
    command = commands()[name]
    takes = flags_of(command)
    base = [word for at in range(0, len(pair), 2) if pair[at] in takes for word in pair[at : at + 2]]
    words = [*(("models",) if name in ("list", "grow") else ()), name, *base, *FEW.get(name, ())]
    for _ in range(chance.randint(1, 3)):
        flag = chance.choice(list(takes))
        words += [flag, chance.choice(PLACES) if flag in WRITES else changes.text(chance)] if takes[flag] else [flag]
    if name in ("verdict", "report", "compare"):
        words += [chance.choice([str(run), str(run), changes.text(chance)]) for _ in range(chance.randint(0, 2))]
    return tuple(words + [changes.text(chance)] * (chance.random() < 0.05))
