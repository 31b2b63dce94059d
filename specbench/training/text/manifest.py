"""What a token cache says about itself: what its tokens were made of, and which files hold them.

Knows JSON and what tells one cache from another; must not know tokens, models or how anything is decoded.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from specbench.errors import UsageError
from specbench.files import read_whole
from specbench.replacing import replace_text
from specbench.wording import clean, clean_path, first_line

FILE = "manifest.json"
VERSION = 1
LARGEST = 64 << 20  # bytes of a manifest
REMEDY = "delete this folder to make it anew, or give another one"
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Share = Annotated[float | None, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=0)]
STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)

# What tells caches apart, the weightiest first, in the words of a message. Tokens of text are their tokenizer's alone.
OF_TEXT = {
    "kind": "kind (answers or text)",
    "tokenizer_sha256": "tokenizer",
    "vocabulary": "vocabulary",
    "chat_template_sha256": "chat template",
    "prompts_sha256": "set of texts or prompts",
    "length": "length of windows",
}
OF_ANSWERS = {
    "kind": "kind (answers or text)",
    "target": "target",
    "revision": "revision of the target",
    "weights": "version of the target's weights",
    **OF_TEXT,
    "temperature": "temperature",
    "top_k": "top-k",
    "top_p": "top-p",
    "min_p": "min-p",
    "eta": "eta",
    "ignore_eos": "end of answers (--ignore-eos)",
    "max_new_tokens": "limit of new tokens",
    "samples": "number of samples per prompt",
    "seed": "seed",
}


class Origin(BaseModel):
    """Everything that decides which tokens a cache holds; for readers also `data`, its sources by name, and `dtype`.

    target, revision, weights: as a backend describes them, for the target whose answers these are. chat_template_sha256
    is empty where prompts are plain text. together: answers that are decoded in one call and on disk after it, whatever
    the batch; what goes on with a cache keeps it. length: tokens of a window of text, 0 of answers.
    """

    model_config = STRICT

    kind: Literal["answers", "text"]
    target: str
    tokenizer_sha256: Digest
    vocabulary: Annotated[int, Field(ge=1, le=1 << 31)]
    prompts_sha256: Digest
    revision: str | None = None
    weights: str | None = None
    dtype: str = ""
    data: tuple[str, ...] = ()
    chat_template_sha256: Digest | Literal[""] = ""
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    top_k: Annotated[int | None, Field(ge=1)] = None
    top_p: Share = None
    min_p: Share = None
    eta: Share = None
    ignore_eos: bool = False
    max_new_tokens: Count = 0
    samples: Annotated[int, Field(ge=1)] = 1
    together: Annotated[int, Field(ge=1)] = 128
    seed: int = 0
    length: Count = 0

    @property
    def telling(self) -> Mapping[str, str]:
        """The fields by which this cache is told from others, with their names in a message."""
        return OF_ANSWERS if self.kind == "answers" else OF_TEXT

    @property
    def key(self) -> str:
        """Twelve hex digits, equal exactly for origins that give the same tokens: a name for a folder."""
        told = "\0".join(f"{name}={getattr(self, name)!r}" for name in self.telling)
        return hashlib.sha256(told.encode(errors="surrogatepass")).hexdigest()[:12]


class Shard(BaseModel):
    """A parquet file of a cache: its rows, their tokens, and how many parts of the source are done with it."""

    model_config = STRICT

    file: Annotated[str, Field(pattern=r"^\d{6,9}\.parquet$")]
    sha256: Digest
    rows: Annotated[int, Field(ge=1)]
    tokens: Annotated[int, Field(ge=1)]
    parts: Count


class Manifest(BaseModel):
    """A token cache: its origin, its files, and whether everything has been written. left_out: rows by reason."""

    model_config = STRICT

    origin: Origin
    version: int = VERSION
    shards: tuple[Shard, ...] = ()
    complete: bool = False
    left_out: dict[str, Count] = Field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

    @property
    def tokens(self) -> int:
        """All of them: prompts are counted with their answers."""
        return sum(shard.tokens for shard in self.shards)

    @property
    def parts(self) -> int:
        """How many parts of the source are on disk."""
        return self.shards[-1].parts if self.shards else 0

    @property
    def sha256(self) -> str:
        """What the content of all files together is known by."""
        return hashlib.sha256("".join(shard.sha256 for shard in self.shards).encode()).hexdigest()


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest of a cache; OSError where it cannot be written."""
    replace_text(folder / FILE, manifest.model_dump_json(indent=1) + "\n")


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a cache. UsageError, in one line, for none and for one that makes no sense."""
    shown = clean_path(folder / FILE)
    try:
        manifest = Manifest.model_validate_json(read_whole(folder / FILE, LARGEST))
    except FileNotFoundError:
        raise UsageError(f"{clean_path(folder)} is no token cache: it has no {FILE}") from None
    except OSError as error:
        raise UsageError(f"cannot read {shown}: {error.strerror or first_line(error)}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "JSON"
        raise UsageError(f"{shown} is damaged ({clean(where)}: {clean(first['msg'], 200)}); {REMEDY}") from error
    if manifest.version != VERSION:
        raise UsageError(f"{shown} was written by another version of specbench; {REMEDY}")
    return manifest


def refuse_other(folder: Path, held: Origin, wanted: Origin) -> None:
    """UsageError for a cache of another origin: what differs first, there and here."""
    for name, words in wanted.telling.items():
        theirs, ours = getattr(held, name), getattr(wanted, name)
        if theirs != ours:
            raise UsageError(
                f"the token cache {clean_path(folder)} was made with another {words}: {shown_value(theirs)} there, "
                f"{shown_value(ours)} here; {REMEDY}"
            )


def shown_value(value: object) -> str:
    """A value of an origin in a message; of a digest the first digits tell enough."""
    if value is None or value == "":
        return "none"
    text = str(value)
    return text[:12] if len(text) == 64 and set(text) <= set("0123456789abcdef") else clean(text, 200)
