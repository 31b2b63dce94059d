"""A decode token by token as data, and as a JSON file.

Knows kinds of tokens, probabilities and the file; must not know models, tokenizers or how a trace is shown.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pydantic import TypeAdapter, ValidationError

from specbench import metrics
from specbench.errors import UsageError
from specbench.files import read_whole
from specbench.wording import clean_path

SCHEMA = "specbench trace 1"


Kind = Literal["accepted", "rejected", "unused", "correction", "bonus"]


Setting: TypeAlias = str | int | float | bool | None


EMITTED = frozenset({"accepted", "correction", "bonus"})


@dataclass(frozen=True)
class TracedToken:
    """One drafted or emitted token.

    text: what it adds to the sequence; partial: its bytes in hexadecimal where they only begin or continue a character,
    which is then the text of the token that completes it. p: its probability under the model that judges. q: its
    probability under the distribution that was drafted from at this position; None where nothing was drafted.
    """

    kind: Kind
    id: int
    text: str
    partial: str
    p: float
    q: float | None

    @property
    def emitted(self) -> bool:
        return self.kind in EMITTED


@dataclass(frozen=True)
class TracedRound:
    """One round: its tokens in the order in which they were judged, and its counts."""

    tokens: tuple[TracedToken, ...]
    counts: metrics.RoundCounts


@dataclass(frozen=True)
class TokenView:
    """One decode of one prompt. It holds no seconds: a traced decode is not a measurement."""

    prompt: str
    settings: Mapping[str, Setting]
    rounds: tuple[TracedRound, ...]

    @property
    def ids(self) -> tuple[int, ...]:
        """The emitted tokens, those that `specbench run` would have emitted."""
        return tuple(t.id for r in self.rounds for t in r.tokens if t.emitted)


def to_json(view: TokenView) -> str:
    """The view as JSON in ASCII; `parsed` gives an equal one back, lone surrogates included."""
    return json.dumps({"schema": SCHEMA, **asdict(view)}, indent=1, allow_nan=False) + "\n"


def from_json(text: str | bytes) -> TokenView:
    """The view that `to_json` wrote. ValueError if the text is anything else."""
    content: Any = json.loads(text)
    if not isinstance(content, dict) or content.pop("schema", None) != SCHEMA:
        raise ValueError(f"its schema is not {SCHEMA!r}")
    return TypeAdapter(TokenView).validate_python(content)


def read_trace(path: Path) -> TokenView:
    """The view in a file; UsageError if it holds anything else."""
    try:
        return from_json(read_whole(path))
    except OSError as error:
        raise UsageError(f"cannot read {clean_path(path)}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        reason = "wrong fields" if isinstance(error, ValidationError) else "not JSON of this version"
        raise UsageError(
            f"{clean_path(path)} is not a trace ({reason}): write one with specbench trace --output"
        ) from error
