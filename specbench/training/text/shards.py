"""The files of a token cache: examples as rows of parquet, written whole, and read in parts and checked.

Knows parquet and what a sound example is; must not know what is held out, models or data sets.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specbench.errors import UsageError
from specbench.files import ANY, PART, open_regular
from specbench.replacing import replacing
from specbench.training.text.manifest import REMEDY, Manifest, Shard
from specbench.wording import clean_path, first_line

TOGETHER = 1024  # rows that are read at once


@dataclass(frozen=True)
class Example:
    """Token ids of which ids[start:] are what a draft learns to predict: an answer, or of plain text all but the first.

    prompt: the name of the prompt or document that it belongs to; what has one name is held out together. number: its
    place in its cache; None for what is in none.
    """

    ids: Sequence[int]
    start: int
    category: str
    prompt: str
    number: int | None = field(default=None, compare=False)

    def sound(self, vocabulary: int) -> bool:
        """Whether there is something to learn, and every id is one of the vocabulary."""
        return 0 < self.start < len(self.ids) and 0 <= min(self.ids) <= max(self.ids) < vocabulary


def schema() -> Any:
    """The columns of a shard."""
    import pyarrow as pa

    whole = pa.int32()
    columns = {"ids": pa.list_(whole), "start": whole, "category": pa.string(), "prompt": pa.string()}
    return pa.schema(list(columns.items()))


def write_shard(folder: Path, number: int, examples: Sequence[Example], parts: int) -> Shard:
    """Write a shard, at once whole or not at all; OSError where that is not possible."""
    import pyarrow as pa
    from pyarrow import parquet

    columns = {name: [getattr(one, name) for one in examples] for name in ("ids", "start", "category", "prompt")}
    file = folder / f"{number:06}.parquet"
    with replacing(file) as temporary:
        parquet.write_table(pa.Table.from_pydict(columns, schema=schema()), temporary, compression="zstd")
    tokens = sum(len(one.ids) for one in examples)
    return Shard(file=file.name, sha256=sha256_of(file), rows=len(examples), tokens=tokens, parts=parts)


def sha256_of(path: Path) -> str:
    """The digest of a file's content."""
    digest = hashlib.sha256()
    with open_regular(path, ANY) as file:
        while part := file.read(PART):
            digest.update(part)
    return digest.hexdigest()


def check_files(folder: Path, manifest: Manifest) -> None:
    """UsageError for a file that is missing, cut or changed."""
    for shard in manifest.shards:
        try:
            changed = sha256_of(folder / shard.file) != shard.sha256
        except OSError as error:
            raise damaged(folder, f"{shard.file}: {error.strerror or first_line(error)}") from error
        if changed:
            raise damaged(folder, f"{shard.file} is not the file that was written")


def damaged(folder: Path, reason: str) -> UsageError:
    return UsageError(f"the token cache {clean_path(folder)} is damaged ({reason}); {REMEDY}")


def batches(folder: Path, manifest: Manifest) -> Iterator[Any]:
    """The rows of all shards in their order, some at a time, as record batches; UsageError where they make no sense."""
    from pyarrow import ArrowException, parquet

    for shard in manifest.shards:
        try:
            with parquet.ParquetFile(folder / shard.file) as file:
                if not file.schema_arrow.equals(schema()) or file.metadata.num_rows != shard.rows:
                    raise damaged(folder, f"{shard.file} has other columns or rows than a token cache")
                yield from file.iter_batches(batch_size=TOGETHER)
        except (ArrowException, OSError) as error:
            raise damaged(folder, f"{shard.file}: {first_line(error)}") from error


def flat(batch: Any) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
    """The lengths of the rows of a batch [n], their starts [n], and all their ids one after the other."""
    ids = batch.column("ids")
    return np.diff(ids.offsets.to_numpy()).astype(np.int64), batch.column("start").to_numpy(), ids.flatten().to_numpy()


def is_sound(batch: Any, vocabulary: int) -> bool:
    """Whether every example of a batch is."""
    if any(column.null_count for column in batch.columns) or batch.column("ids").flatten().null_count:
        return False
    lengths, starts, ids = flat(batch)
    return bool((starts > 0).all() and (starts < lengths).all() and 0 <= ids.min() <= ids.max() < vocabulary)


def learned(batch: Any, wanted: NDArray[np.bool_]) -> NDArray[np.int32]:
    """The ids that are learned in the wanted rows of a batch, one after the other."""
    lengths, starts, ids = flat(batch)
    places = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return ids[(places >= np.repeat(starts, lengths)) & np.repeat(wanted, lengths)]


def example_columns(folder: Path, manifest: Manifest) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """Of every example a number for its prompt and one for its category, all checked on the way."""
    keys, codes, known = [], [], dict[str, int]()
    for batch in batches(folder, manifest):
        if not is_sound(batch, manifest.origin.vocabulary):
            raise damaged(folder, "there are token ids that its vocabulary does not have, or examples without text")
        keys.append(np.array([prompt_key(name) for name in batch.column("prompt").to_pylist()], dtype=np.uint64))
        codes.append([known.setdefault(name, len(known)) for name in batch.column("category").to_pylist()])
    return np.concatenate(keys), np.concatenate([np.array(some, dtype=np.int32) for some in codes])


def prompt_key(name: str) -> int:
    """64 bits that a prompt is known by, evenly spread."""
    return int.from_bytes(hashlib.sha256(name.encode(errors="surrogatepass")).digest()[:8])
