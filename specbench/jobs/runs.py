"""The body of `specbench list`: the runs of a folder, each with the name that commands know it by. Loads no torch."""

import re
from pathlib import Path
from typing import Any

from specbench.errors import UsageError
from specbench.judge.verdict import recommend
from specbench.results.named_runs import DESCRIPTION, TABLE, runs_in, short_name
from specbench.results.reading import rows_of
from specbench.results.writing import read_json
from specbench.show.text import Format, print_records
from specbench.wording import clean, clean_path

NONE = "specbench run makes one"


def start(parent: Path, style: Format) -> None:
    """Print the runs, the latest last."""
    found = [described(run) for run in runs_in(parent)]
    if not found:
        raise UsageError(f"no runs in {clean_path(parent)}: {NONE}")
    shown = [{name: value for name, value in row.items() if name != "folder"} for row in found]
    print_records(found, {f"runs in {clean_path(parent)}, the latest last": shown}, style)


def described(run: Path) -> dict[str, Any]:
    """A run in one line: its name, when it began, what it was asked for and what it answers."""
    description, rows = read_json(run / DESCRIPTION), rows_of(run / TABLE)
    specs = description.get("specs")
    specs = [spec for spec in specs if isinstance(spec, dict)] if isinstance(specs, list) else []
    measured = [row for row in rows if row.get("status") in ("ok", "partial")]
    return {
        "name": clean(Path(short_name(run)).name, 200),
        "answer": several(one.answer for one in recommend(measured)) or "none yet",
        "began": began(str(description.get("started", ""))),
        "pair": several(f"{spec.get('target')} ← {spec.get('draft') or 'no draft'}" for spec in specs),
        "data": several(str(spec.get("dataset", "")).rsplit("/", 1)[-1] for spec in specs),
        "methods": several(f"{spec.get('method')}" for spec in specs),
        "K": several(f"{spec.get('k')}" for spec in specs),
        "cells": f"{len(measured)} of {len(specs)}",
        "prompts": several(row.get("prompts", "") for row in measured),
        "folder": clean_path(run),
    }


def began(started: str) -> str:
    """The time in run.json, as people write it."""
    found = re.match(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)", started)
    return "{}-{}-{} {}:{}".format(*found.groups()) if found else ""


def several(words: Any) -> str:
    """What cells have in common, or the first few of what they have."""
    found = list(dict.fromkeys(clean(word, 100) for word in words))
    return ", ".join(found[:3]) + f" and {len(found) - 3} more" * (len(found) > 3)
