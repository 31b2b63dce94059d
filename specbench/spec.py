"""RunSpec: everything that can change a number of one cell, and nothing else. Pure; every layer may read it."""

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

BASELINE = "baseline"
SCHEMA_VERSION = 3  # of the columns of results.csv and samples.csv, and of the lines of the journal


class RunSpec(BaseModel):
    """One cell: a pair, a method, a K, a data set and how it is decoded. Hashable, picklable, round-trips through JSON.

    Names of models, data sets and methods are kept as they were given; what they resolved to stands in the record.
    `k` is the lookahead of a constant schedule and the ceiling of the others; `confidence` is read by its schedule
    alone. `acceptance` makes acceptance synthetic: one rate for every position, or one per position. `batch` rows are
    decoded together. `until_ci` ends the cell once the speedup's interval is that narrow (relative half width).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: str = "demo"
    draft: str | None = None
    target_revision: str | None = None
    draft_revision: str | None = None
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
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]
