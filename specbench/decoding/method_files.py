"""Method files: their locations, contents and words. This module must not import torch: listing them stays fast."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from copy import deepcopy
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from specbench import plugins
from specbench.errors import UsageError
from specbench.files import CONFIGS, LARGEST_YAML, parsed_yaml, read_whole
from specbench.spec import CHOOSING
from specbench.wording import first_line, near

HEADER = {"summary", "paper", "lossless", "method"}
PART = "part"  # in place of `method`: a drafter, used in a chain that is judged as usual
OF_A_FILE = re.compile(r"([\w./ -]+\.py):(\w+)")  # a class of a Python file, as named in a method file
JUDGING = ("Speculate", "Cascade")  # parts that judge
LEARNS = "Distilled"  # the part that changes what it drafts with
OPTIONS = ("k", "schedule")  # placeholders for --k and --schedule
SYNONYMS = {"ngram": "prompt-lookup", "pld": "prompt-lookup", "draft-model": "chain"}  # names of engines and papers
HEADS = ("eagle", "eagle2", "eagle3", "mtp", "dflash", "dspark", "pard")


def methods() -> dict[str, Path]:
    """The method files shipped with specbench, followed by those of other packages, by name."""
    found = shipped()
    return found | {name: Path(plugins.load(plugins.METHODS, name)) for name in plugins.names(plugins.METHODS, found)}


@cache
def shipped() -> dict[str, Path]:
    """The method files shipped with specbench, by name; a run looks up methods some hundred times."""
    return {path.stem: path for path in sorted((CONFIGS / "methods").glob("*.yaml"))}


def read_method(name: str) -> dict[str, Any]:
    """The content of a method file: a shipped one by its name or an engine's name for it, any other by its path."""
    path = path_of(name)
    if re.search(r"\.py(:.*)?$", name):
        raise UsageError(
            f"--method {name}: a method is a YAML file, which names the class: part: {path.name.split(':')[0]}:CLASS "
            "(specbench new-method NAME writes both files)"
        )
    if name == CHOOSING:
        raise UsageError(f"--method {CHOOSING} chooses while a run is measured: name a method here")
    if not path.exists():
        if name.lower().replace("-", "") in HEADS:
            raise UsageError(
                f"method {name!r}: a head is given as the draft: --draft HEAD with --method chain, or with a tree such "
                "as tree-dynamic (EAGLE-2's); an MTP module inside the target: --draft TARGET"
            )
        meant, known = near(name, [*methods(), *SYNONYMS, *HEADS]), ", ".join(methods())
        raise UsageError(f"unknown method {name!r}{meant}: choose one of {known}, or give the path of a YAML file")
    try:
        content = deepcopy(parsed(read_whole(path, LARGEST_YAML).decode("utf-8")))
    except OSError as error:
        raise UsageError(f"cannot read the method {path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path}: not readable as YAML: {first_line(error)}") from None
    return whole(path, content)


def path_of(name: str) -> Path:
    """The path of a method file: a shipped one by its name or an engine's name for it, any other by its path."""
    return methods().get(SYNONYMS.get(name, name), Path(name))


def whole(path: Path, content: Any) -> dict[str, Any]:
    """A method file with all keys; missing ones get their defaults. UsageError for an invalid one."""
    found = dict(content) if isinstance(content, dict) else {}
    if unknown := [str(key) for key in found if key not in {*HEADER, PART}]:
        meant = near(unknown[0], {*HEADER, PART}) or ": the keys are summary, paper, lossless, and method or part"
        raise UsageError(f"{path}: unknown key {unknown[0][:60]!r}{meant}")
    missing = [key for key in ("summary", "lossless") if key not in found]
    missing += ["method or part"] * (not found.keys() & {"method", PART})
    if missing:
        raise UsageError(
            f"{path} lacks {' and '.join(missing)}: `specbench new-method NAME` writes a whole method file"
        )
    if PART in found:
        if "method" in found:
            raise UsageError(f"{path} has both method and part: part is a drafter in an ordinary chain; leave out one")
        drafter = found.pop(PART)
        drafter = {drafter: {"k": "k"}} if isinstance(drafter, str) else drafter
        found["method"] = {"Speculate": {"drafter": drafter, "model": "target", "verifier": "Rejection"}}
    found.setdefault("paper", "unpublished")
    for key, kind in (("summary", str), ("paper", str), ("lossless", bool)):
        if not isinstance(found[key], kind):
            wanted = "true or false" if kind is bool else "a text"
            raise UsageError(f"{path}: {key} is {wanted}, not {str(found[key])[:60]!r}")
    return found


@lru_cache(maxsize=64)
def parsed(text: str) -> Any:
    """The content of a YAML text; reading one takes longer than building a method from it."""
    return parsed_yaml(text)


# --- Python files -----------------------------------------------------------------------------------------------------
# Users' method files may name classes of Python files: part: my.py:MyDrafter. This module executes none of them.


def python_files(name: str) -> list[Path]:
    """The Python files named in a method, relative to the folder of the method file."""
    named = OF_A_FILE.findall(repr(read_method(name)["method"]))  # parts are keys or values, at any depth
    return list(dict.fromkeys(path_of(name).parent / file for file, _ in named))


def read_code(file: Path) -> bytes:
    """The content of a Python file. UsageError if it cannot be read."""
    try:
        return read_whole(file, LARGEST_YAML)
    except OSError as error:
        raise UsageError(f"cannot read {file}, which a method file names: {error.strerror}") from None


def content_sha256(names: Iterable[str]) -> str:
    """A hash of the users' methods among these: of their compositions and of the Python files
    that they name; "" for methods that are shipped or added by a package."""
    parts = []
    for name in names:
        if SYNONYMS.get(name, name) not in methods():
            parts.append(repr(read_method(name)["method"]).encode())
            parts += map(read_code, python_files(name))
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16] if parts else ""


# --- words ------------------------------------------------------------------------------------------------------------


def needs(name: str) -> set[str]:
    """The names of the models in a method file."""
    return words(name, "model") | words(name, "models")


def drafts_with(name: str) -> set[str]:
    """The names of the models that a method file drafts with; empty if it looks its drafts up."""
    (outermost,) = read_method(name)["method"].values()
    return {str(value) for _, key, value in leaves(outermost["drafter"]) if key in ("model", "models")}


def learners(name: str) -> set[str]:
    """The names of the models that change while a method drafts with them."""
    parts = {part for part, _, _ in leaves(read_method(name)["method"])}
    return drafts_with(name) if LEARNS in parts else set()


def nests(name: str) -> bool:
    """Whether the drafter of a method judges drafts itself, before the outermost model does."""
    (outermost,) = read_method(name)["method"].values()
    return any(part in JUDGING for part, *_ in leaves(outermost["drafter"]))


def words(name: str, field: str) -> set[str]:
    """The values of all fields of one name in a method file, as words."""
    return {str(value) for _, key, value in leaves(read_method(name)["method"]) if key == field}


def leaves(value: Any, part: str = "", field: str = "") -> Iterator[tuple[str, str, Any]]:
    """Every word, number and list of numbers of a composition, with its part and field."""
    if isinstance(value, dict):
        for key, inner in value.items():
            names = (str(key), "") if part == "" or field else (part, str(key))  # parts and fields alternate
            yield from leaves(inner, *names)
    elif isinstance(value, list) and not numeric(value):
        for inner in value:
            yield from leaves(inner, part, field)
    else:
        yield part, field, value


def numeric(value: Any) -> bool:
    """Whether it is a number or a list of numbers; the word k counts as one."""
    return all(map(numeric, value)) if isinstance(value, list) else isinstance(value, int | float) or value in OPTIONS


def flat(value: Any) -> Iterator[Any]:
    """The elements of nested lists; a word or number itself."""
    if isinstance(value, list):
        for inner in value:
            yield from flat(inner)
    else:
        yield value


def parameters(name: str) -> list[str]:
    """The parameters of a method besides its models: its options, and the numbers in its file."""
    found = list(leaves(read_method(name)["method"]))
    options = [str(one) for *_, value in found for one in flat(value) if one in OPTIONS]
    numbers = [
        (f"{part} k {value}" if field == "k" else f"{field} {value}").replace("'", "")  # not the k of the command line
        for part, field, value in found
        if isinstance(value, int | float | list)
    ]
    return list(dict.fromkeys([*options, *numbers]))
