"""What `specbench verify` found, as data and as JSON: every check with its statistic, its threshold and its outcome.

Knows checks and the file; must not know how anything was checked or is shown.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from specbench.errors import UsageError
from specbench.files import read_whole
from specbench.wording import clean_path

FILE, PAGE = "certificate.json", "certificate.md"
SCHEMA = "specbench certificate 1"
LARGEST = 16 << 20  # bytes

# numeric: greedy output differs where the best tokens are closer than the noise between two ways of computing them.
# lossy: the method says that it is not lossless, so nothing is demanded of it. error: the check itself broke.
Outcome = Literal["ok", "numeric", "lossy", "not checked", "error", "FAILED"]
# The names of checks: of the installation, of the pair, and of every method with it.
PROOF, CACHED, CONTROL = "proof", "proof with a cache", "control: a false q"
FLOOR, ACCEPTED, ALPHA = "noise floor", "draft = target: accepted", "draft = target: α"
GREEDY, RESCORED = "greedy = generate", "greedy re-scored"
SURPRISE, LEANING = "z of the surprise", "z of the leaning"
# Columns of results.csv that name the target; those of the draft, which not every method has.
OF_TARGET = ("target_source", "target_commit", "target_weights", "dtype_resolved")
OF_DRAFT = ("draft_source", "draft_commit", "draft_weights", "draft_dtype_resolved")


@dataclass(frozen=True)
class Check:
    """One check of one method, or of the pair (method "").

    found and limit: the statistic and the threshold that it is held against, None where there is no number; `detail`
    says in a few words what was looked at, or why nothing could be.
    """

    name: str
    outcome: Outcome
    method: str = ""
    found: float | None = None
    limit: float | None = None
    detail: str = ""


@dataclass(frozen=True)
class Certificate:
    """All checks, and what they are of: the pair as it resolved (with the hashes of its weights), settings, machine."""

    started: str
    command: str
    checks: Sequence[Check]
    pair: Mapping[str, Any]
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    warnings: Sequence[str] = ()

    @property
    def failed(self) -> list[Check]:
        """What shows that something is not lossless."""
        return [check for check in self.checks if check.outcome == "FAILED"]

    @property
    def broken(self) -> list[Check]:
        """What could not be checked because something unexpected happened."""
        return [check for check in self.checks if check.outcome == "error"]

    def is_of(self, row: Mapping[str, Any]) -> bool:
        """Whether a row of a run is of the same pair: the same sources, commits and dtypes."""
        names = (*OF_TARGET, *(OF_DRAFT if row.get("draft_source") else ()))
        return bool(self.pair) and all((self.pair.get(name) or "") == (row.get(name) or "") for name in names)


def to_json(found: Certificate) -> str:
    """The certificate as JSON in ASCII; a number that is none (NaN, infinite) becomes a word."""
    return json.dumps({"schema": SCHEMA, **worded(asdict(found))}, indent=1, allow_nan=False) + "\n"


def worded(value: Any) -> Any:
    """A value as JSON knows it."""
    if isinstance(value, Mapping):
        return {key: worded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [worded(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def read_certificate(path: Path) -> Certificate:
    """The certificate in a file; UsageError if it holds anything else."""
    try:
        content: Any = json.loads(read_whole(path, LARGEST))
        if not isinstance(content, dict) or content.pop("schema", None) != SCHEMA:
            raise ValueError
        return TypeAdapter(Certificate).validate_python(content)
    except OSError as error:
        raise UsageError(f"cannot read {clean_path(path)}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        reason = "wrong fields" if isinstance(error, ValidationError) else "not JSON of this version"
        raise UsageError(f"{clean_path(path)} is not a certificate ({reason}): specbench verify writes one") from error
