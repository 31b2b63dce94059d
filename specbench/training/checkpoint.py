"""Checkpoints of a training run: written whole or not at all, the newest kept, read back or refused in one line.

Knows folders; must not know what is in a checkpoint but how far the run was.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from specbench.errors import UsageError
from specbench.files import ANY, check_regular, read_whole
from specbench.replacing import own_folder
from specbench.wording import first_line

STEP = re.compile(r"step-(\d{9})")
STATE = "progress.json"
T = TypeVar("T")


def newest(folder: Path) -> Path | None:
    """The newest whole checkpoint in a folder."""
    found = sorted(path for path in folder.glob("step-*") if STEP.fullmatch(path.name) and (path / STATE).is_file())
    return found[-1] if found else None


def write(folder: Path, step: int, progress: Mapping[str, Any], save: Callable[[Path], None]) -> None:
    """A checkpoint of a step, then the older ones are removed. UsageError where it cannot be written: they stay."""
    unfinished, final = folder / "unfinished", folder / f"step-{step:09d}"
    try:
        own_folder(folder)
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        save(unfinished)
        with (unfinished / STATE).open("w", encoding="utf-8") as file:
            json.dump(progress, file)
            file.flush()
            os.fsync(file.fileno())
        shutil.rmtree(final, ignore_errors=True)
        unfinished.rename(final)
    except Exception as error:  # torch, safetensors and the system each say in their own way that a disk is full
        shutil.rmtree(unfinished, ignore_errors=True)
        kept = newest(folder)
        where = f"; the last one, {kept}, is whole: make room and run the command again" if kept else ""
        raise UsageError(f"cannot write a checkpoint to {folder}: {first_line(error)}{where}") from error
    for old in folder.glob("step-*"):
        if old != final:
            shutil.rmtree(old, ignore_errors=True)


def read(path: Path, take: Callable[[dict[str, Any], Path], T]) -> T:
    """What `take` makes of how far the run of a checkpoint was, and of its folder. UsageError where it cannot."""
    try:
        for file in path.rglob("*"):
            if not file.is_dir():
                check_regular(file, ANY)
        return take(json.loads(read_whole(path / STATE)), path)
    except Exception as error:  # of files that were cut or forged: json, pickle, safetensors and torch each have theirs
        raise UsageError(
            f"cannot go on from {path}: {first_line(error)}; remove it to begin again, or give another --output"
        ) from error
