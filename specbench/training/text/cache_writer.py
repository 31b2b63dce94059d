"""A token cache while it is being written: shard by shard, each whole on disk before the manifest names it.

Knows the files of a cache and their order; must not know where examples come from.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

from filelock import FileLock, Timeout

from specbench.errors import UsageError
from specbench.replacing import clear_unfinished, writing
from specbench.training.text.manifest import FILE, Manifest, Origin, read_manifest, refuse_other, write_manifest
from specbench.training.text.shards import Example, check_files, write_shard
from specbench.training.text.tokens import TokenCache
from specbench.wording import clean, clean_path

LOCK = ".lock"
SIZE = 1 << 20  # tokens of a shard, 4 MB before they are packed


class CacheWriter:
    """Appends what the parts of a source give, and goes on after the parts that are on disk.

    A killed writer loses what it has not flushed, at most a shard. Only one process can write a cache at a time.
    """

    def __init__(self, path: Path, manifest: Manifest, lock: FileLock, size: int = SIZE) -> None:
        self.path, self.manifest = path, manifest
        self._lock, self._size = lock, size
        self._waiting: list[Example] = []
        self._tokens, self._parts = 0, manifest.parts

    @classmethod
    def open(cls, path: Path, origin: Origin, size: int = SIZE) -> "CacheWriter":
        """A new cache, or one that was cut off. size: tokens of a shard.

        UsageError, in one line, for a folder with something else in it, a cache of another origin, a damaged one, and
        where nothing can be written or another process writes.
        """
        with writing_to(path):
            path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(path / LOCK, timeout=0)
            try:
                lock.acquire()
            except Timeout:
                raise UsageError(
                    f"the token cache {clean_path(path)} is being written by another process: wait for it, or end it"
                ) from None
        try:
            clear_unfinished(path)
            return cls(path, begun(path, origin), lock, size)
        except BaseException:
            lock.release()
            raise

    @property
    def parts(self) -> int:
        """How many parts of the source need not be made again: those that are on disk."""
        return self.manifest.parts

    @property
    def complete(self) -> bool:
        """Whether there is nothing more to be written."""
        return self.manifest.complete

    def append(self, examples: Sequence[Example]) -> None:
        """What the next part of the source gives, perhaps nothing. UsageError for ids beyond the vocabulary."""
        width = self.manifest.origin.vocabulary
        for one in examples:
            if not one.sound(width):
                raise UsageError(
                    f"{one.prompt}: the tokenizer gives ids that the target's {width} embeddings do not have, or no "
                    "text: give the tokenizer that belongs to the target"
                )
        self._waiting += examples
        self._tokens += sum(len(one.ids) for one in examples)
        self._parts += 1
        if self._tokens >= self._size:
            self.flush()

    def flush(self) -> None:
        """Put everything that was appended on disk. UsageError where that fails; what was there before stays."""
        if not self._waiting:
            return
        with writing_to(self.path):
            shard = write_shard(self.path, len(self.manifest.shards), self._waiting, self._parts)
            self._write(shards=(*self.manifest.shards, shard))
        self._waiting, self._tokens = [], 0

    def finish(self, left_out: Mapping[str, int]) -> None:
        """Flush, and say that the cache is complete; left_out: what was not used, by reason."""
        self.flush()
        with writing_to(self.path):
            self._write(complete=True, left_out=dict(left_out))

    def _write(self, **changes: object) -> None:
        manifest = self.manifest.model_copy(update=changes)
        write_manifest(self.path, manifest)
        self.manifest = manifest

    def close(self) -> None:
        """Let others write; what was not flushed is forgotten. A second call does nothing."""
        self._waiting, self._tokens = [], 0
        self._lock.release()

    def __enter__(self) -> "CacheWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def writing_to(path: Path) -> AbstractContextManager[None]:
    return writing(
        f"the token cache {clean_path(path)}",
        "free some space, or give another folder; what is written stays, and the same command goes on with it",
    )


def begun(path: Path, origin: Origin) -> Manifest:
    """The manifest of a folder in which a cache is begun or gone on with; one that holds nothing is begun anew."""
    if (path / FILE).exists() and (manifest := read_manifest(path)).shards:
        refuse_other(path, manifest.origin, origin)
        check_files(path, manifest)
        return manifest
    others = sorted(file.name for file in path.iterdir() if file.name != LOCK and file.suffix != ".tmp")
    if others and not (path / FILE).exists():
        raise UsageError(
            f"{clean_path(path)} holds other files ({clean(others[0])} …): a token cache needs its own folder"
        )
    manifest = Manifest(origin=origin)
    with writing_to(path):
        write_manifest(path, manifest)
    return manifest


def cached(
    path: Path, origin: Origin, fill: Callable[[CacheWriter], Mapping[str, int]], size: int = SIZE
) -> TokenCache:
    """The cache of an origin: as it lies in the folder, or filled now; one that was cut off is gone on with.

    fill appends what is not there yet, and returns what it left out, by reason. Raises UsageError as `CacheWriter.open`
    and `TokenCache.open` do.
    """
    if not is_complete(path):
        with CacheWriter.open(path, origin, size) as writer:
            if not writer.complete:  # another process may have been faster
                writer.finish(fill(writer))
    return TokenCache.open(path, origin)


def is_complete(path: Path) -> bool:
    """Whether there is nothing more to be written in a folder: a finished cache is read without a lock."""
    return (path / FILE).exists() and read_manifest(path).complete
