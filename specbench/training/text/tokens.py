"""A token cache, read: examples by their number from memory-mapped files, some of them held out.

Knows the files of a cache and what is held out of them; must not know models, or how a cache was made. Nothing is
held in memory but a few bytes per example; `datasets` keeps its memory-mapped copy inside the folder of the cache.
"""

import glob
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specbench.errors import UsageError
from specbench.replacing import own_folder
from specbench.training.text.held_out import held_out
from specbench.training.text.manifest import REMEDY, Manifest, Origin, read_manifest, refuse_other
from specbench.training.text.shards import Example, batches, check_files, example_columns, learned, schema
from specbench.wording import clean_path, first_line

MAPPED = "mapped"  # the folder of the memory-mapped copies, one per content


class Examples(Sequence[Example]):
    """Some examples of a cache by their number, each read from disk when it is asked for."""

    def __init__(self, data: Any, rows: NDArray[np.int64], vocabulary: int) -> None:
        self._data, self._rows, self._vocabulary = data, rows, vocabulary

    def __len__(self) -> int:
        return len(self._rows)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """[n] how many tokens every example has."""
        import pyarrow.compute

        sizes = pyarrow.compute.list_value_length(self._data.data.column("ids"))
        return np.asarray(sizes)[self._rows].astype(np.int64)

    def learned(self, prompts: bool) -> NDArray[np.int64]:
        """[n] how many of them are learned: those of answers alone, or of prompts, too."""
        if prompts:
            return self.lengths - 1
        return self.lengths - np.asarray(self._data.data.column("start"))[self._rows].astype(np.int64)

    @overload
    def __getitem__(self, index: int) -> Example: ...

    @overload
    def __getitem__(self, index: slice) -> "Examples": ...

    def __getitem__(self, index: int | slice) -> "Example | Examples":
        """One example, or some of them as a sequence. UsageError for one that was damaged on disk."""
        if isinstance(index, slice):
            return Examples(self._data, self._rows[index], self._vocabulary)
        number = int(self._rows[index])
        found = Example(**self._data[number], number=number)
        if not found.sound(self._vocabulary):
            raise UsageError(f"a token cache is damaged in its folder {MAPPED}; delete that folder")
        return found


@dataclass(frozen=True)
class TokenCache:
    """What a draft learns from: `train`, and `held_out` of which it learns nothing."""

    path: Path
    manifest: Manifest
    train: Examples
    held_out: Examples
    _is_held_out: NDArray[np.bool_]

    @classmethod
    def open(cls, path: Path, expected: Origin) -> "TokenCache":
        """The cache in a folder, checked from end to end.

        UsageError, in one line, for one of another origin, one that was not finished, a damaged one, and one that has
        too little text to hold some of it out.
        """
        manifest = read_manifest(path)
        refuse_other(path, manifest.origin, expected)
        if not manifest.complete:
            raise UsageError(
                f"the token cache {clean_path(path)} was not finished: the command that began it goes on with it"
            )
        if not manifest.rows:
            raise UsageError(f"the token cache {clean_path(path)} has no text to learn from; give data with text")
        check_files(path, manifest)
        held = held_out(*example_columns(path, manifest))
        if not held.any():
            raise UsageError(
                f"the token cache {clean_path(path)} has one prompt or document alone, and one more is needed to be "
                "held out: give more data"
            )
        data, width = mapped(path, manifest), manifest.origin.vocabulary
        train, out = (Examples(data, np.flatnonzero(mask), width) for mask in (~held, held))
        return cls(path, manifest, train, out, held)

    def learned(self, prompts: bool) -> NDArray[np.int64]:
        """[n] as `Examples.learned` has it, of every example by its number: of those that are held out, too."""
        found = np.empty(len(self._is_held_out), dtype=np.int64)
        for mask, examples in ((~self._is_held_out, self.train), (self._is_held_out, self.held_out)):
            found[mask] = examples.learned(prompts)
        return found

    def counts(self) -> Tensor:
        """[V] how often every token is among those that are learned; streamed from disk."""
        found, row = np.zeros(self.manifest.origin.vocabulary, dtype=np.int64), 0
        for batch in batches(self.path, self.manifest):
            part = self._is_held_out[row : row + batch.num_rows]
            found += np.bincount(learned(batch, ~part), minlength=len(found))
            row += batch.num_rows
        return torch.from_numpy(found)


def mapped(path: Path, manifest: Manifest) -> Any:
    """The rows of a cache as a memory-mapped `datasets.Dataset`, which is made once for each content."""
    import datasets

    silence_datasets()
    # names are patterns to `datasets`
    files = [glob.escape(str((path / shard.file).absolute())) for shard in manifest.shards]
    features = datasets.Features.from_arrow_schema(schema())
    try:
        place = own_folder(path / MAPPED).absolute() / manifest.sha256[:12]
        found = datasets.Dataset.from_parquet(files, cache_dir=str(place), features=features)
    except Exception as error:  # it wraps whatever comes
        reason = error.__cause__ or error
        raise UsageError(
            f"cannot map the token cache {clean_path(path)} into memory: {first_line(reason)}; free some space if the "
            f"disk is full, else {REMEDY}"
        ) from error
    if len(found) != manifest.rows:
        raise UsageError(f"the token cache {clean_path(path)} is damaged in its folder {MAPPED}; delete that folder")
    return found


def silence_datasets() -> None:
    """No progress bars, no log lines and no usage telemetry (a request even for a local file)."""
    import datasets

    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    if datasets.config.HF_DATASETS_DISABLE_PROGRESS_BARS is None:  # else the user's environment has decided
        datasets.disable_progress_bars()
