"""RunSpec: everything that can change a number of one cell, and nothing else. Pure; every layer may read it."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_serializer, field_validator, model_validator

BASELINE = "baseline"
PAIR_ROLES = ("target", "draft")  # the models that every run knows; others are given a name by whoever runs it
RESERVED = (*PAIR_ROLES, "k", "schedule")  # words of method files
NAME = r"[A-Za-z][A-Za-z0-9_-]*"  # of a model; part of the names of columns
SEVERAL = re.compile(rf",(?={NAME}=)")  # what stands between two models in one text
SCHEMA_VERSION = 4  # of the columns of results.csv and samples.csv, and of the lines of the journal


class RunSpec(BaseModel):
    """One cell: a pair, a method, a K, a data set and how it is decoded. Hashable, picklable, round-trips through JSON.

    Names of models, data sets and methods are kept as they were given; what they resolved to stands in the record.
    `k` is the lookahead of a constant schedule and the ceiling of the others; `confidence` is read by its schedule
    alone. `model` are further models by the names that method files use: (name, checkpoint), in the order of the names.
    `acceptance` makes acceptance synthetic: one rate for every position, or one per position. `batch` rows are
    decoded together. `until_ci` ends the cell once the speedup's interval is that narrow (relative half width).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: str = "demo"
    draft: str | None = None
    target_revision: str | None = None
    draft_revision: str | None = None
    model: tuple[tuple[str, str], ...] = ()
    method: str = "chain"
    k: int = Field(default=4, ge=0, le=512)
    schedule: Literal["constant", "auto", "heuristic", "confidence"] = "constant"
    confidence: float = Field(default=0.4, ge=0, le=1)
    acceptance: Annotated[tuple[Annotated[float, Field(ge=0, le=1)], ...], Field(min_length=1)] | None = None
    dataset: str = "code"
    column: str | None = None
    template: str | None = None
    limit: int | None = Field(default=None, ge=1)
    max_new_tokens: int = Field(default=128, ge=1)
    temperature: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    top_k: int | None = Field(default=None, ge=1)
    top_p: float | None = Field(default=None, gt=0, le=1)
    min_p: float | None = Field(default=None, gt=0, le=1)
    eta: float | None = Field(default=None, gt=0, le=1)
    ignore_eos: bool = False
    dtype: str = "auto"
    draft_dtype: str | None = None
    device: str = "auto"
    tier: Literal["auto", "eager", "graph", "compile"] = "eager"
    batch: int = Field(default=1, ge=1)
    seed: int = Field(default=0, ge=0)
    warmup: int = Field(default=2, ge=0)
    repeat: int = Field(default=1, ge=1)
    until_ci: float | None = Field(default=None, gt=0, lt=1)

    @field_validator("model", mode="before")
    @classmethod
    def _read_models(cls, given: Any) -> tuple[tuple[str, str], ...]:
        return named_models(given)

    @field_serializer("model", when_used="json")
    def _write_models(self, model: tuple[tuple[str, str], ...]) -> str | None:
        return written(model) or None

    @model_validator(mode="after")
    def _one_reading(self) -> "RunSpec":
        if self.until_ci is not None and self.repeat > 1:
            raise ValueError("an interval is narrowed by more prompts, not by repeating them: leave repeat at 1")
        if self.until_ci is not None and self.batch > 1:
            raise ValueError("--until-ci looks after every 20, 30, 45 … prompts decoded alone: leave --batch at 1")
        return self

    def with_(self, **changes: Any) -> "RunSpec":
        """The same cell but for `changes`, validated again."""
        return RunSpec(**{**self.model_dump(), **changes})

    @property
    def baseline(self) -> "RunSpec":
        """The cell that this one is compared with; cells with an equal baseline share its decodes."""
        return self.with_(method=BASELINE, k=0, schedule="constant", confidence=0.4, acceptance=None)

    @property
    def key(self) -> str:
        """Twelve hex digits that are equal exactly for equal specs."""
        fields = self.model_dump(mode="json")
        if not self.model:  # specs had no such field once, and what was measured then keeps its keys
            del fields["model"]
        canonical = json.dumps(fields, sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def named_models(given: Any) -> tuple[tuple[str, str], ...]:
    """Models as they are written, in the order of their names: NAME=CHECKPOINT, some of these, or a mapping.

    One text may hold several, joined by commas, as results.csv has them. ValueError, in one line, for anything else.
    """
    items = SEVERAL.split(given) if isinstance(given, str) else given.items() if isinstance(given, Mapping) else given
    if not isinstance(items, Iterable | None):
        raise ValueError("write NAME=CHECKPOINT, or a mapping of names to checkpoints")
    found = sorted(_pair(item) for item in items or ())
    names = [name for name, _ in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"the name {twice[0]} stands for two models: give each model a name of its own")
    return tuple(found)


def _pair(item: Any) -> tuple[str, str]:
    parts = item.partition("=")[::2] if isinstance(item, str) else item
    match parts:
        case str() as name, str() as checkpoint if checkpoint and re.fullmatch(NAME, name):
            pass
        case _:
            raise ValueError(
                f"{str(item)[:60]!r} is no NAME=CHECKPOINT: the name has letters, digits, - and _, the checkpoint is "
                "an alias, a hub id, a folder, or layers of another model such as target[:50%]"
            )
    if name in RESERVED:
        raise ValueError(f"the name {name} is taken: method files mean something else by it; choose another name")
    if SEVERAL.search(checkpoint):
        raise ValueError(f"{checkpoint[:60]!r} reads like several models: rename that folder, or name it by a link")
    return name, checkpoint


def written(models: Iterable[tuple[str, str]]) -> str:
    """Models as one text."""
    return ",".join(f"{name}={checkpoint}" for name, checkpoint in models)


def acceptance_of(spec: RunSpec) -> dict[str, str | None]:
    """As columns: the rates as they are written, and whether acceptance follows them or is the pair's own."""
    if spec.acceptance is None:
        return {"acceptance": None, "acceptance_mode": "real"}
    return {"acceptance": ",".join(map(str, spec.acceptance)), "acceptance_mode": "synthetic"}
