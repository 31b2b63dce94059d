"""Names of checkpoints, and which draft goes with which target.

A name is an alias of configs/pairs.yaml, a folder or a hub id, each also grown to a shape (`demo@llama-7b`). Knows
where a checkpoint is to be found; must not load one (no torch, no transformers, no network).
"""

import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from specbench.errors import UnusableModelError, UsageError
from specbench.models.scale import shapes
from specbench.models.scale.shapes import Shape
from specbench.shipped import ASSETS, CONFIGS

FILE = CONFIGS / "pairs.yaml"
GROWN = "@"  # stands between a checkpoint and the shape that it is grown to
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*", re.ASCII)
Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]


@dataclass(frozen=True)
class Checkpoint:
    """Where a model comes from: `source` is a hub id or a local folder, `name` is what the user called it.

    `shape`: what it is grown to when it is loaded (a scale model); None for a model as it is.
    """

    name: str
    source: str
    revision: str | None = None
    gated: bool = False
    shape: Shape | None = None


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Model(_Entry):
    repo: str | None = None
    path: str | None = None  # relative to specbench/assets
    revision: Commit | None = None
    gated: bool = False
    note: str = ""

    @model_validator(mode="after")
    def _has_one_source(self) -> "_Model":
        if (self.repo is None) == (self.path is None):
            raise ValueError("needs either repo or path")
        return self


class _Pair(_Entry):
    draft: str
    also: tuple[str, ...] = ()
    k: int | None = Field(default=None, ge=1)


class _Table(_Entry):
    models: dict[str, _Model]
    pairs: dict[str, _Pair]

    @model_validator(mode="after")
    def _pairs_are_known(self) -> "_Table":
        named = {*self.pairs, *(name for pair in self.pairs.values() for name in (pair.draft, *pair.also))}
        if unknown := sorted(named - set(self.models)):
            raise ValueError(f"pairs: no such alias under models: {', '.join(unknown)}")
        return self


def read_table(file: Path) -> _Table:
    """The aliases and pairs in `file`, checked."""
    try:
        return _Table.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UsageError(f"{file}: {place + ': ' if place else ''}{first['msg']}") from error
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(f"{file}: {' '.join(str(error).split())}") from error


@cache
def _shipped() -> _Table:
    return read_table(FILE)


def aliases() -> list[str]:
    return list(_shipped().models)


def described(alias: str) -> dict[str, str]:
    """What the table says about an alias, for a list of all of them."""
    model, pair = _shipped().models[alias], _shipped().pairs.get(alias)
    notes = ["gated"] * model.gated + [model.note] * bool(model.note)
    return {"source": model.repo or "shipped", "draft": pair.draft if pair else "", "note": "; ".join(notes)}


def pairs() -> list[tuple[str, str]]:
    """All pairs (target alias, draft alias); the first of a target is its default."""
    return [(target, draft) for target, pair in _shipped().pairs.items() for draft in (pair.draft, *pair.also)]


def resolve(name: str, revision: str | None = None) -> Checkpoint:
    """The checkpoint that `name` stands for; `revision` takes the place of the pinned one."""
    if model := _shipped().models.get(name):
        if model.repo:
            return Checkpoint(name, model.repo, revision or model.revision, model.gated)
        return _folder(name, ASSETS / str(model.path), revision)
    if name and Path(name).is_dir():
        return _folder(name, Path(name), revision)
    if GROWN in name:
        return _grown(name, revision)
    if HUB_ID.fullmatch(name):
        return Checkpoint(name, name, revision)
    near = ", ".join(get_close_matches(name.lower(), aliases(), n=3, cutoff=0.0))
    raise UnusableModelError(
        f"unknown model {name!r}: did you mean {near}? A hub id (owner/name) or an existing folder works too; "
        f"all aliases stand in {FILE}"
    )


def _folder(name: str, folder: Path, revision: str | None) -> Checkpoint:
    if revision is not None:
        raise UsageError(f"{name} is a folder and has no revision {revision!r}: leave the revision out")
    return Checkpoint(name, str(folder))


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
    if GROWN in target and not Path(target).is_dir():
        small, _, like = target.rpartition(GROWN)
        draft, shape = default_draft(small), shapes.find(like).draft
        return f"{draft}{GROWN}{shape}" if draft and shape else draft
    pair = _shipped().pairs.get(_alias(target))
    return pair.draft if pair else None


def default_k(target: str, draft: str) -> int | None:
    """The lookahead that pairs.yaml gives for this very pair."""
    pair = _shipped().pairs.get(_alias(target))
    return pair.k if pair and pair.draft == _alias(draft) else None


def _alias(name: str) -> str:
    models = _shipped().models
    return name if name in models else next((alias for alias, model in models.items() if model.repo == name), name)
