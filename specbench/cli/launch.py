"""From the options of a measuring command to its cells. torch is imported inside, after the options have been read."""

import math
import os
import traceback
from collections.abc import Collection
from pathlib import Path
from typing import Any

import typer

from specbench.cli.options import OWN, Given, setting, settings_in
from specbench.engine_options import engine_options
from specbench.errors import SpecbenchError, UsageError
from specbench.jobs.asked import with_lists
from specbench.jobs.parsing import with_models
from specbench.results.named_runs import found_run
from specbench.spec import RunSpec

EXECUTION = (setting("tier", usual="auto"), "execution")
URLS = ("url", "baseline_url")
MANY = 100  # cells; a user is to know of more before they are checked, which takes seconds
IN_FILES = tuple(option.name for option in OWN.values() if option.in_file)


def launch(given: Given, axes: Collection[str] | None, **defaults: Any) -> None:
    """Measure what the options of a command ask for, or go on with the run that they name.

    `axes` are the settings that may be lists; None stands for all of them.
    """
    try:
        settings = settings_of(given)
        if "resume" in given:
            go_on(settings, given)
        else:
            begin({**defaults, **settings}, given, axes)
    except SpecbenchError:
        if given["verbose"] > 1:
            traceback.print_exc()
        raise


def settings_of(given: Given) -> dict[str, Any]:
    """What a preset says, overridden by a configuration file, and that by the options that were given."""
    besides = {name: given[name] for name in IN_FILES if given.get(name) not in (None, False)}
    return with_models({**preset_of(given), **read_config(given.get("config")), **settings_in(given), **besides})


def preset_of(given: Given) -> dict[str, Any]:
    """The settings of the preset that is named; none without one."""
    if "preset" not in given:
        return {}
    from specbench.presets import preset  # it reads YAML, as a configuration does

    return dict(preset(given["preset"]).settings)


def read_config(path: Path | None) -> dict[str, Any]:
    """The keys of a configuration file, with underscores; raises UsageError with one line."""
    if path is None:
        return {}
    from specbench.yaml_files import read_yaml  # it takes a moment, which a command without a file need not

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
        raise UsageError(f"{path}: a key stands there twice, with - and with _")
    return found


def begin(settings: dict[str, Any], given: Given, axes: Collection[str] | None) -> None:
    """Measure into a new folder."""
    chosen = with_lists({**shared_out(), **settings})
    lists = [name for name, value in chosen.items() if isinstance(value, list)]
    allowed = {*(axes or ()), *preset_of(given)}
    if axes is not None and (wrong := [name for name in lists if name not in allowed]):
        wanted = "specbench sweep-k" if wrong[0] == "k" else "specbench sweep with a grid file"
        where = wrong[0] if wrong[0] not in given and "config" in given else f"--{wrong[0].replace('_', '-')}"
        raise UsageError(f"{where} takes one value here, not a list: use {wanted}")
    from specbench.jobs import run
    from specbench.jobs.output import output_of

    output = output_of(chosen, given)
    run.start(cells_of(chosen, given), output, given.get("preset", ""), given.get("executor", "local"))


def cells_of(settings: dict[str, Any], given: Given) -> list[RunSpec]:
    """The cells of some settings. UsageError where a file alone says that code may run, or who gets the key."""
    from specbench.jobs.trust import Typed, refuse_untyped
    from specbench.measure import grid

    most = math.inf if given.get("yes") else grid.MOST_CELLS
    if MANY < (number := grid.count(settings)) <= most and not given["quiet"]:
        typer.echo(f"{number:,} cells", err=True)
    found = grid.cells(settings, IN_FILES, most)
    refuse_untyped(found, Typed(**typed_in(given)), str(given.get("config") or f"preset {given.get('preset')}"))
    return found


def typed_in(given: Given) -> dict[str, Any]:
    """What the command line itself says of trust, as the fields of `Typed`."""
    urls = tuple(given[name] for name in URLS if name in given)
    try:
        options = engine_options(given.get("engine_option"))
    except ValueError as error:
        raise UsageError(f"--engine-option: {error}") from error
    return {"trust_remote_code": bool(given.get("trust_remote_code")), "urls": urls, "engine_options": options}


def shared_out() -> dict[str, int]:
    """The setting that torchrun implies."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return {}
    from specbench.models.execution.processes import started

    return {"tensor_parallel": started()} if started() > 1 else {}


def go_on(settings: dict[str, Any], given: Given) -> None:
    """Continue a run; its own settings hold, but for a larger limit, which adds prompts to it. That its code may run,
    and that its servers get the key, must be said anew."""
    from specbench.jobs import run
    from specbench.jobs.output import output_of
    from specbench.jobs.trust import Typed

    output, limit = output_of(settings, given), settings.pop("limit", None)
    if others := settings.keys() - {"trust_remote_code", "engine_option", *URLS}:
        name = min(others).replace("_", "-")
        raise UsageError(f"--resume takes all settings from the run that it continues: leave out --{name}")
    run.resume(found_run(given["resume"]), output, given.get("executor", "local"), limit, Typed(**typed_in(given)))
