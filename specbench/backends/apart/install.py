"""Virtual environments for engines, which cannot share ours: made from the package index, whole or not at all.

Knows venv and pip; must not know any engine.
"""

import os
import secrets
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from specbench.backends.apart.pipe import environment, reason
from specbench.backends.apart.places import NAME
from specbench.errors import UnusableModelError, UsageError
from specbench.wording import clean, clean_path, first_line

Say = Callable[[str], None]


def python_of(folder: Path) -> Path:
    """The Python of an environment."""
    return folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


@contextmanager
def building(folder: Path, overwrite: bool) -> Iterator[Path]:
    """An empty environment in a folder of its own, which becomes `folder` once it is filled without an error.

    Until then what is there stays. UsageError where it is no environment, or is not to be replaced; UnusableModelError
    where nothing can be made.
    """
    refuse(folder, overwrite)
    made = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}")
    try:
        venv.create(made, with_pip=True, symlinks=sys.platform != "win32")
        yield made
        move_scripts(made, folder)
        swap(made, folder)
    except (OSError, subprocess.CalledProcessError) as error:
        raise UnusableModelError(f"cannot install to {clean_path(folder)}: {first_line(error)}") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def refuse(folder: Path, overwrite: bool) -> None:
    """UsageError for what is there and stays."""
    if not os.path.lexists(folder):
        return
    if folder.is_symlink() or not (folder / "pyvenv.cfg").is_file():
        raise UsageError(
            f"{clean_path(folder)} is not an environment of Python (a folder with pyvenv.cfg), and nothing else is "
            f"replaced: move it away, or name another folder in {NAME}"
        )
    if not overwrite:
        raise UsageError(f"{clean_path(folder)} is there already: add --overwrite to make it anew")


def move_scripts(made: Path, folder: Path) -> None:
    """Scripts name the folder of their environment: the one where it will be."""
    old, new = (os.fsencode(path.absolute()) for path in (made, folder))
    for file in python_of(made).parent.glob("*"):
        if file.is_file() and not file.is_symlink():
            content = file.read_bytes()
            if old in content and b"\0" not in content:  # else it is a program
                file.write_bytes(content.replace(old, new))


def swap(made: Path, folder: Path) -> None:
    """Put a folder in the place of another, which is deleted; where that fails, the other one stays."""
    before = made.with_name(f"{made.name}.before")
    if replaced := folder.exists():
        folder.rename(before)
    try:
        made.rename(folder)
    except OSError:
        if replaced:
            before.rename(folder)
        raise
    shutil.rmtree(before, ignore_errors=True)


def install(folder: Path, what: str, arguments: Sequence[str], say: Say) -> None:
    """pip install in an environment. UnusableModelError with pip's own reason where it fails."""
    say(f"installing {what} …")
    command = [str(python_of(folder)), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    found = subprocess.run(command, env=environment({}), capture_output=True, text=True, check=False)
    if found.returncode:
        raise UnusableModelError(f"cannot install {clean(what)} (pip: {reason(found.stderr)})")
