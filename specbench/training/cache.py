"""The token cache: examples as memory-mapped Arrow files of `datasets`, and a manifest with their origin.

A file is completely on disk before the manifest names it. Only a few bytes per example are held in memory.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from specbench.errors import UsageError
from specbench.files import ANY, clear_unfinished, open_regular, read_whole, replace_text, replacing, writing
from specbench.wording import clean, clean_path, first_line

FILE, LOCK = "manifest.json", ".lock"
VERSION = 2
LARGEST = 64 << 20  # bytes of a manifest
SIZE = 1 << 20  # tokens per file: 4 MB
TOGETHER = 1024  # rows counted at once
HELD_OUT = np.uint64(int(0.05 * 2**64))  # prompts with a key below this are held out: about 5 %
REMEDY = "delete this folder to build it again, or give another one"
STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)
Positive = Annotated[int, Field(ge=1)]

OF_TEXT = {"kind", "tokenizer_sha256", "vocabulary", "chat_template_sha256", "prompts_sha256", "length"}


class Origin(BaseModel):
    """All settings that determine the tokens of a cache. A field with a title distinguishes caches, in this order.

    For a cache of text only the fields in OF_TEXT do. target, revision, weights, dtype: as a backend
    describes them. chat_template_sha256: empty for plain text. length: tokens of a window of text.
    data: the sources by name. together: answers decoded in one call; a continued cache keeps its value.
    """

    model_config = STRICT

    kind: Literal["answers", "text"] = Field(title="kind (answers or text)")
    target: str = Field(title="target")
    revision: str | None = Field(default=None, title="revision of the target")
    weights: str | None = Field(default=None, title="version of the target's weights")
    tokenizer_sha256: str = Field(title="tokenizer")
    vocabulary: int = Field(title="vocabulary")
    chat_template_sha256: str = Field(default="", title="chat template")
    prompts_sha256: str = Field(title="set of texts or prompts")
    length: int = Field(default=0, title="length of windows")
    temperature: float = Field(default=0.0, title="temperature")
    top_k: int | None = Field(default=None, title="top-k")
    top_p: float | None = Field(default=None, title="top-p")
    min_p: float | None = Field(default=None, title="min-p")
    eta: float | None = Field(default=None, title="eta")
    ignore_eos: bool = Field(default=False, title="end of answers (--ignore-eos)")
    max_new_tokens: int = Field(default=0, title="limit of new tokens")
    samples: int = Field(default=1, title="number of samples per prompt")
    seed: int = Field(default=0, title="seed")
    dtype: str = ""
    data: tuple[str, ...] = ()
    together: Positive = 128


class Shard(BaseModel):
    """A file of a cache: its rows, their tokens, and the number of the source's parts on disk up to it."""

    model_config = STRICT

    file: Annotated[str, Field(pattern=r"^\d{6,9}\.\w+$")]
    sha256: str
    rows: Positive
    tokens: Positive
    parts: int


class Manifest(BaseModel):
    """A token cache: its origin, its files, and whether it is complete. left_out: rows by reason."""

    model_config = STRICT

    origin: Origin
    version: int = VERSION
    shards: tuple[Shard, ...] = ()
    complete: bool = False
    left_out: dict[str, int] = Field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(shard.rows for shard in self.shards)

    @property
    def parts(self) -> int:
        """The number of the source's parts on disk."""
        return self.shards[-1].parts if self.shards else 0

    @property
    def sha256(self) -> str:
        """A digest of the content of all files."""
        return hashlib.sha256("".join(shard.sha256 for shard in self.shards).encode()).hexdigest()


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a cache. UsageError, in one line, if unreadable or invalid."""
    shown = clean_path(folder / FILE)
    try:
        manifest = Manifest.model_validate_json(read_whole(folder / FILE, LARGEST))
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
    """UsageError for a cache of another origin, with the first difference."""
    for name, about in Origin.model_fields.items():
        theirs, ours = getattr(held, name), getattr(wanted, name)
        if theirs != ours and about.title and (wanted.kind == "answers" or name in OF_TEXT):
            raise UsageError(
                f"the token cache {clean_path(folder)} was made with another {about.title}: {shown_value(theirs)} "
                f"there, {shown_value(ours)} here; {REMEDY}"
            )


def shown_value(value: object) -> str:
    """A value of an origin in a message; the first digits of a digest."""
    if value is None or value == "":
        return "none"
    text = str(value)
    return text[:12] if len(text) == 64 and set(text) <= set("0123456789abcdef") else clean(text, 200)


# --- examples on disk -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Example:
    """Token ids; a draft learns ids[start:]: an answer, or for plain text everything but the first token.

    prompt: the name of its prompt or document; examples with one name are held out together.
    number: its row in its cache; None outside of a cache.
    """

    ids: Sequence[int]
    start: int
    category: str
    prompt: str
    number: int | None = field(default=None, compare=False)


def features() -> Any:
    from datasets import Features, List, Value

    whole, text = Value("int32"), Value("string")
    return Features({"ids": List(whole), "start": whole, "category": text, "prompt": text})


def sha256_of(path: Path) -> str:
    with open_regular(path, ANY) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def damaged(folder: Path, reason: str) -> UsageError:
    return UsageError(f"the token cache {clean_path(folder)} is damaged ({reason}); {REMEDY}")


def mapped(folder: Path, manifest: Manifest) -> Any:
    """All rows as a memory-mapped `datasets.Dataset`. UsageError for a missing, changed or invalid file."""
    from datasets import Dataset, concatenate_datasets

    parts = []
    for shard in manifest.shards:
        try:
            if sha256_of(folder / shard.file) != shard.sha256:
                raise damaged(folder, f"{shard.file} is not the file that was written")
            part = Dataset.from_file(str(folder / shard.file))
            part.data.validate(full=True)
        except UsageError:
            raise
        except Exception as error:  # forged metadata raise arbitrary errors
            reason = getattr(error, "strerror", None) or first_line(error)
            raise damaged(folder, f"{shard.file}: {reason}") from error
        if part.features != features() or len(part) != shard.rows:
            raise damaged(folder, f"{shard.file} has other columns or rows than a token cache")
        if not is_sound(part.data, manifest.origin.vocabulary):
            raise damaged(folder, "there are token ids that its vocabulary does not have, or examples without text")
        parts.append(part)
    return concatenate_datasets(parts)


def is_sound(table: Any, vocabulary: int) -> bool:
    """Whether every example has tokens to learn, and only ids of the vocabulary."""
    import pyarrow.compute as pc

    starts, ids = table.column("start"), pc.list_flatten(table.column("ids"))
    if ids.null_count or any(column.null_count for column in table.columns):
        return False
    lengths, ends = pc.list_value_length(table.column("ids")), pc.min_max(ids).as_py()
    long_enough = pc.all(pc.and_(pc.greater(starts, 0), pc.less(starts, lengths))).as_py()
    return bool(long_enough and 0 <= ends["min"] <= ends["max"] < vocabulary)


# --- reading ----------------------------------------------------------------------------------------------------------


def held_out(prompts: Iterable[str], categories: Iterable[str]) -> NDArray[np.bool_]:
    """[n] mask of the held-out examples: about 5 % of the prompts, at least one of every category that has several.

    The names of the prompts decide, so it is the same on every machine, and the turns of a conversation
    and the samples of a prompt are on one side. At least one prompt of every category is learned.
    """
    digests = (hashlib.sha256(name.encode(errors="surrogatepass")).digest() for name in prompts)
    keys = np.fromiter((int.from_bytes(digest[:8]) for digest in digests), dtype=np.uint64)
    known: dict[str, int] = {}
    codes = np.fromiter((known.setdefault(name, len(known)) for name in categories), dtype=np.int32)
    chosen = np.zeros(len(keys), dtype=bool)
    for category in known.values():
        some = np.unique(keys[codes == category])
        count = int((some < HELD_OUT).sum())
        chosen |= np.isin(keys, some[: min(max(count, 1), len(some) - 1)])
    return chosen


class Examples(Sequence[Example]):
    """Some rows of a cache, each read from disk on demand."""

    def __init__(self, data: Any, rows: NDArray[np.int64]) -> None:
        self.data, self.rows = data, rows

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """[n] the number of tokens of every example."""
        from pyarrow.compute import list_value_length

        return np.asarray(list_value_length(self.data.data.column("ids")))[self.rows].astype(np.int64)

    def learned(self, prompts: bool) -> NDArray[np.int64]:
        """[n] the number of learned tokens; prompts: whether those of prompts are learned, too."""
        if prompts:
            return self.lengths - 1
        return self.lengths - np.asarray(self.data.data.column("start"))[self.rows].astype(np.int64)

    def __getitem__(self, index: Any) -> Any:
        number = int(self.rows[index])
        return Example(**self.data[number], number=number)


@dataclass(frozen=True)
class TokenCache:
    """The training data of a draft: `train` and `held_out`, which together are `every`."""

    path: Path
    manifest: Manifest
    every: Examples
    train: Examples
    held_out: Examples

    @classmethod
    def open(cls, path: Path, expected: Origin) -> "TokenCache":
        """The cache in a folder, with every file and row checked. UsageError, in one line, if that fails."""
        manifest = read_manifest(path)
        refuse_other(path, manifest.origin, expected)
        if not manifest.rows:
            raise UsageError(f"the token cache {clean_path(path)} has no text to learn from; give data with text")
        data = mapped(path, manifest)
        held = held_out(*((text.as_py() for text in data.data.column(name)) for name in ("prompt", "category")))
        if not held.any():
            raise UsageError(
                f"the token cache {clean_path(path)} has one prompt or document alone, and one more is needed to be "
                "held out: give more data"
            )
        rows = np.arange(len(held)), np.flatnonzero(~held), np.flatnonzero(held)
        return cls(path, manifest, *(Examples(data, some) for some in rows))

    def counts(self) -> Tensor:
        """[V] the count of every token among the learned ones; streamed from disk."""
        wanted, counts = np.isin(self.every.rows, self.train.rows), np.zeros(self.manifest.origin.vocabulary, np.int64)
        row = 0
        for batch in self.every.data.data.table.to_batches(max_chunksize=TOGETHER):
            ids, starts = batch.column("ids"), batch.column("start").to_numpy()
            lengths = np.diff(ids.offsets.to_numpy())
            places = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
            chosen = (places >= np.repeat(starts, lengths)) & np.repeat(wanted[row : row + len(starts)], lengths)
            counts += np.bincount(ids.flatten().to_numpy()[chosen], minlength=len(counts))
            row += len(starts)
        return torch.from_numpy(counts)


# --- writing ----------------------------------------------------------------------------------------------------------

Parts = Callable[[Manifest], Iterator[Sequence[Example]]]  # parts of a source, from the first one missing on disk


def cached(
    path: Path, origin: Origin, parts: Parts, left_out: Callable[[], Mapping[str, int]] = dict, size: int = SIZE
) -> TokenCache:
    """The cache of an origin: as it is in the folder, or written now; an interrupted one is continued.

    parts: the missing parts. left_out: their unused rows, by reason. size: tokens of a file; 0 for one per
    part. A killed process loses at most a file. UsageError, in one line, for a folder with other contents,
    a cache of another origin, a damaged one, an unwritable one, and while another process writes.
    """
    if not (path / FILE).exists() or not read_manifest(path).complete:  # a finished cache is read without a lock
        with locked(path):
            manifest = begun(path, origin)
            if not manifest.complete:  # another process may have been faster
                manifest = written(path, manifest, parts(manifest), size)
                write_manifest(path, manifest.model_copy(update={"complete": True, "left_out": dict(left_out())}))
    return TokenCache.open(path, origin)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock the folder of a cache, created if missing, against writes by other processes."""
    with writing_to(path):
        lock = acquired(path, f"the token cache {clean_path(path)}")
    try:
        yield
    finally:
        lock.release()


def acquired(folder: Path, what: str) -> FileLock:
    """The lock of a folder, created if missing, cleared of what killed processes left. UsageError if in use."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise UsageError(f"{what} is being written by another process: wait for it, or end it") from None
    clear_unfinished(folder)
    return lock


def begun(path: Path, origin: Origin) -> Manifest:
    """The manifest of a folder in which a cache is begun or continued; an empty one is begun again."""
    if (path / FILE).exists() and (manifest := read_manifest(path)).shards:
        refuse_other(path, manifest.origin, origin)
        mapped(path, manifest)
        return manifest
    others = sorted(file.name for file in path.iterdir() if file.name != LOCK and file.suffix != ".tmp")
    if others and not (path / FILE).exists():
        raise UsageError(
            f"{clean_path(path)} holds other files ({clean(others[0])} …): a token cache needs its own folder"
        )
    return write_manifest(path, Manifest(origin=origin))


def written(path: Path, manifest: Manifest, parts: Iterator[Sequence[Example]], size: int) -> Manifest:
    """Write parts into files; the manifest names each as soon as it is on disk. Returns the last manifest."""
    waiting: list[Example] = []
    for number, examples in enumerate(parts, manifest.parts + 1):
        waiting += sound(examples, manifest.origin.vocabulary)
        if waiting and sum(len(one.ids) for one in waiting) >= size:
            manifest, waiting = with_shard(path, manifest, waiting, number), []
    return with_shard(path, manifest, waiting, number) if waiting else manifest


def sound(examples: Sequence[Example], vocabulary: int) -> Sequence[Example]:
    """The examples with text; UsageError for ids beyond the vocabulary."""
    for one in examples:
        if not (0 < one.start < len(one.ids) and 0 <= min(one.ids) <= max(one.ids) < vocabulary):
            raise UsageError(
                f"{one.prompt}: the tokenizer gives ids that the target's {vocabulary} embeddings do not have, or no "
                "text: give the tokenizer that belongs to the target"
            )
    return examples


def with_shard(path: Path, manifest: Manifest, examples: Sequence[Example], parts: int) -> Manifest:
    """Write a file, completely or not at all."""
    from datasets import Dataset
    from datasets.arrow_writer import ArrowWriter

    columns = {name: [getattr(one, name) for one in examples] for name in features()}
    file = path / f"{len(manifest.shards):06}.arrow"
    rows = Dataset.from_dict(columns, features()).data.table
    with writing_to(path), replacing(file) as temporary, ArrowWriter(path=str(temporary)) as writer:
        writer.write_table(rows)
        writer.finalize()
    tokens = sum(len(one.ids) for one in examples)
    shard = Shard(file=file.name, sha256=sha256_of(file), rows=len(examples), tokens=tokens, parts=parts)
    return write_manifest(path, manifest.model_copy(update={"shards": (*manifest.shards, shard)}))


def write_manifest(path: Path, manifest: Manifest) -> Manifest:
    with writing_to(path):
        replace_text(path / FILE, manifest.model_dump_json(indent=1) + "\n")
    return manifest


def writing_to(path: Path) -> AbstractContextManager[None]:
    return writing(
        f"the token cache {clean_path(path)}",
        "free some space, or give another folder; what is written stays, and the same command continues",
    )
