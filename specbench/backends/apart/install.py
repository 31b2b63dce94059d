"""Virtual environments for engines, which cannot share ours: made from the package index, whole or not at all.

Knows venv and pip; must not know any engine.
"""

import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

from specbench.backends.apart.pipe import environment, reason
from specbench.errors import SpecbenchError, UsageError
from specbench.wording import clean

Say = Callable[[str], None]


def python_of(folder: Path) -> Path:
    """The Python of an environment."""
    return folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def create(folder: Path, overwrite: bool) -> None:
    """An empty environment. UsageError where there is one already, unless it is to be replaced."""
    if folder.exists() and not overwrite:
        raise UsageError(f"{folder} is there already: add --overwrite to make it anew")
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True, symlinks=sys.platform != "win32")


def install(folder: Path, what: str, arguments: Sequence[str], say: Say) -> None:
    """pip install in an environment. SpecbenchError with pip's own reason where it fails; the environment is removed,
    as half of one would be taken for a whole one."""
    say(f"installing {what} …")
    command = [str(python_of(folder)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    found = subprocess.run(command, env=environment({}), capture_output=True, text=True, check=False)
    if found.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        raise SpecbenchError(f"cannot install {clean(what)} (pip: {reason(found.stderr)})")
