"""The table of aliases and pairs, configs/pairs.yaml, as checked data.

Knows the file; must not know what a name is resolved to (see `pairs`).
"""

from functools import cache
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from specbench.errors import UsageError
from specbench.shipped import CONFIGS

FILE = CONFIGS / "pairs.yaml"
Commit = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Packaged(_Entry):
    """A GGUF file inside a package of the package index; `extra` is the one of ours that installs it."""

    name: str
    file: str
    extra: str


class Model(_Entry):
    """Where an alias leads: a repository of the hub, a folder that ships with specbench, or a file in a package."""

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

    @property
    def source(self) -> str:
        return self.repo or (f"package:{self.package.name}" if self.package else "shipped")


class Pair(_Entry):
    """The usual draft of a target, others that fit, and a lookahead where one is known."""

    draft: str
    also: tuple[str, ...] = ()
    k: int | None = Field(default=None, ge=1)


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


def read_table(file: Path) -> Table:
    """The aliases and pairs in `file`, checked."""
    try:
        return Table.model_validate(yaml.safe_load(file.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UsageError(f"{file}: {place + ': ' if place else ''}{first['msg']}") from error
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(f"{file}: {' '.join(str(error).split())}") from error


@cache
def shipped() -> Table:
    return read_table(FILE)
