"""Extensions by entry points: parts of methods, method files, data sets and engines.

[project.entry-points."specbench.parts"]       a class: Drafter, Verifier, Model …, by its name in method files
[project.entry-points."specbench.methods"]     the path of a method file, by the name for --method
[project.entry-points."specbench.datasets"]    a function from a text to rows, by the name for --dataset
[project.entry-points."specbench.backends"]    a function from cells to an engine, by the name for --backend

A method file may also name a class of a Python file, without a package.
"""

import hashlib
import sys
import traceback
from collections.abc import Collection
from functools import cache, lru_cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from specbench.errors import UsageError
from specbench.wording import first_line, near

PARTS, METHODS = "specbench.parts", "specbench.methods"
DATASETS, BACKENDS = "specbench.datasets", "specbench.backends"


def names(group: str, ours: Collection[str]) -> list[str]:
    """Sorted names that other packages add to a group. UsageError for a name taken by specbench or by two."""
    found = installed(group)
    for number, one in enumerate(found):
        if one.name in ours or one.name in {other.name for other in found[:number]}:
            raise UsageError(f"{package(one)}: its {group} {one.name} has a name that is taken: rename or uninstall it")
    return [one.name for one in found]


def load(group: str, name: str) -> Any:
    """Load an entry point. UsageError, naming the package, if that fails."""
    (one,) = (one for one in installed(group) if one.name == name)
    try:
        return one.load()
    except Exception as error:  # third-party code
        raise UsageError(f"{package(one)}: cannot load {name} ({one.value}): {first_line(error)}") from error


def package(one: EntryPoint) -> str:
    """The package that added it, for error messages."""
    return f"package {one.dist.name} {one.dist.version}" if one.dist else "a package"


@cache
def installed(group: str) -> tuple[EntryPoint, ...]:
    """The entry points of a group, by name; cached for the life of the process."""
    return tuple(sorted(entry_points(group=group), key=lambda one: (one.name, package(one))))


# --- Python files -----------------------------------------------------------------------------------------------------


def class_of(file: Path, code: bytes, name: str) -> type:
    """The class of this name in a Python file with this content. UsageError if it cannot be loaded."""
    try:
        module = executed(file, code)
    except (Exception, SystemExit) as error:  # user code
        lines = [one.lineno for one in traceback.extract_tb(error.__traceback__) if one.filename == str(file)]
        where = f" in line {lines[-1]}" if lines else ""
        raise UsageError(f"{file} fails{where}: {type(error).__name__}: {first_line(error)}") from error
    if not isinstance(found := vars(module).get(name), type):
        own = [key for key, one in vars(module).items() if getattr(one, "__module__", "") == module.__name__]
        raise UsageError(f"{file} has no class {name}{near(name, own)}; it defines {', '.join(own) or 'nothing'}")
    return found


@lru_cache(maxsize=64)
def executed(file: Path, code: bytes) -> ModuleType:
    """Execute a file as a module, from the given content and not from cached bytecode."""
    name = f"specbench_file_{hashlib.sha256(code + str(file).encode()).hexdigest()[:16]}"
    if (spec := spec_from_file_location(name, file)) is None:
        raise ImportError("it is no Python file")
    sys.modules[name] = module = module_from_spec(spec)  # dataclasses look it up there
    exec(compile(code, file, "exec"), vars(module))
    return module
