"""Names of checkpoints, and which draft goes with which target.

A name is an alias of configs/pairs.yaml, a folder or a hub id, each also grown to a shape (`demo@llama-7b`). Knows
where a checkpoint is to be found; must not load one (no torch, no transformers, no network).
"""

import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from shlex import quote

from specbench.errors import UnusableModelError, UsageError
from specbench.models.checkpoints import packaged
from specbench.models.checkpoints.alias_table import FILE, Packaged, shipped
from specbench.models.scale import shapes
from specbench.models.scale.shapes import Shape
from specbench.shipped import ASSETS
from specbench.wording import clean_path

GGUF = ".gguf"
PATHS = (".", "/", "~")  # how what is meant as a path begins
GROWN = "@"  # stands between a checkpoint and the shape that it is grown to
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*", re.ASCII)
HUB_FILE = re.compile(rf"(?P<repo>{HUB_ID.pattern})/(?P<file>[\w.-]+\.gguf)", re.ASCII)


@dataclass(frozen=True)
class Checkpoint:
    """Where a model comes from: `source` is a hub id or a local folder, `name` is what the user called it.

    `shape`: what it is grown to when it is loaded (a scale model); None for a model as it is. `file`: the GGUF file in
    the source that is the checkpoint; None where the source as a whole is one. `package`: the installed package, with
    its version, that the file lies in. `trusted`: code that comes with it may run (see `remote_code`).
    """

    name: str
    source: str
    revision: str | None = None
    gated: bool = False
    shape: Shape | None = None
    file: str | None = None
    package: str | None = None
    trusted: bool = False

    @property
    def place(self) -> str:
        """Where it comes from, as results record it."""
        source = self.package or self.source
        return f"{source}/{self.file}" if self.file else source


def aliases() -> list[str]:
    return list(shipped().models)


def described(alias: str) -> dict[str, str]:
    """What the table says about an alias, for a list of all of them."""
    model, pair = shipped().models[alias], shipped().pairs.get(alias)
    notes = ["gated"] * model.gated + [model.note] * bool(model.note)
    return {"source": model.source, "draft": pair.draft if pair else "", "note": "; ".join(notes)}


def resolve(name: str, revision: str | None = None) -> Checkpoint:
    """The checkpoint that `name` stands for; `revision` takes the place of the pinned one."""
    if model := shipped().models.get(name):
        if model.repo:
            return Checkpoint(name, model.repo, revision or model.revision, model.gated)
        if model.package:
            return _in_package(name, model.package, revision)
        return _on_disk(name, ASSETS / str(model.path), revision)
    if name and Path(name).is_dir():
        return _on_disk(name, Path(name), revision)
    if name.endswith(GGUF):
        return _gguf(name, revision)
    if f"{GGUF}.part" in name and Path(name).is_file():
        whole = name.rpartition(".part")[0]
        raise UnusableModelError(
            f"{clean_path(Path(name))} is one part of a GGUF file: join all parts, as by "
            f"cat {quote(whole)}.part* > {quote(Path(whole).name)}"
        )
    if GROWN in name:
        return _grown(name, revision)
    if HUB_ID.fullmatch(name):
        return Checkpoint(name, name, revision)
    if name.startswith(PATHS):
        raise UnusableModelError(f"unknown model {name!r}: there is no such folder and no such GGUF file")
    near = ", ".join(get_close_matches(name.lower(), aliases(), n=3, cutoff=0.0))
    raise UnusableModelError(
        f"unknown model {name!r}: did you mean {near}? A hub id (owner/name), an existing folder or a GGUF file "
        f"works too; all aliases stand in {FILE}"
    )


def _on_disk(name: str, folder: Path, revision: str | None, file: str | None = None) -> Checkpoint:
    if revision is not None:
        raise UsageError(f"{name} lies on this disk and has no revision {revision!r}: leave the revision out")
    return Checkpoint(name, str(folder), file=file)


def _in_package(name: str, where: Packaged, revision: str | None) -> Checkpoint:
    file = packaged.find(name, where)
    return replace(_on_disk(name, file.parent, revision, file.name), package=packaged.label(where))


def _gguf(name: str, revision: str | None) -> Checkpoint:
    file, remote = Path(name), HUB_FILE.fullmatch(name)
    if file.is_file():
        return _on_disk(name, file.parent, revision, file.name)
    if remote:
        return Checkpoint(name, remote["repo"], revision, file=remote["file"])
    raise UnusableModelError(f"there is no file {name}, and it is not owner/name/FILE.gguf of the hub either")


def _grown(name: str, revision: str | None) -> Checkpoint:
    small, _, like = name.rpartition(GROWN)
    shape = shapes.find(like)
    found = resolve(small, revision)
    if found.shape is not None:
        raise UnusableModelError(f"{name}: {small} is grown already: name one shape only")
    return replace(found, name=name, shape=shape)


def default_draft(target: str) -> str | None:
    """The draft that goes with `target`, an alias or the hub id of one; of a scale model the one of its original, grown
    to the shape that goes with the target's."""
    if GROWN in target and not Path(target).exists():
        small, _, like = target.rpartition(GROWN)
        draft, shape = default_draft(small), shapes.find(like).draft
        return f"{draft}{GROWN}{shape}" if draft and shape else draft
    pair = shipped().pairs.get(_alias(target))
    return pair.draft if pair else None


def default_k(target: str, draft: str) -> int | None:
    """The lookahead that pairs.yaml gives for this very pair."""
    pair = shipped().pairs.get(_alias(target))
    return pair.k if pair and pair.draft == _alias(draft) else None


def _alias(name: str) -> str:
    models = shipped().models
    return name if name in models else next((alias for alias, model in models.items() if model.repo == name), name)
