"""Repositories as a hub keeps them: files at one commit, stored in git or, where large, by their hash elsewhere.

Knows the layout of the repositories that the aliases and data sets name; must not know HTTP.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from pathlib import Path

from specbench.data.sources import HUB, HubFile
from specbench.models.checkpoints.pairs import resolve
from specbench.shipped import ASSETS

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".safetensors", ".bin", ".parquet", ".gguf", ".model")  # what .gitattributes hands to LFS


@dataclass(frozen=True)
class StoredFile:
    path: str
    data: bytes

    @property
    def large(self) -> bool:
        return self.path.endswith(LARGE)

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def blob_id(self) -> str:
        return hashlib.sha1(b"blob %d\0" % len(self.data) + self.data).hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.large else self.blob_id


@dataclass(frozen=True)
class Repo:
    """`readers` are the tokens that may read a private one, or the files of a gated one."""

    id: str
    contents: Mapping[str, bytes]
    commit: str = COMMIT
    kind: str = "models"
    private: bool = False
    gated: bool = False
    readers: tuple[str, ...] = ()
    branches: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def files(self) -> dict[str, StoredFile]:
        return {path: StoredFile(path, data) for path, data in sorted(self.contents.items())}

    @cached_property
    def folders(self) -> set[str]:
        return {str(parent) for path in self.contents for parent in Path(path).parents if str(parent) != "."}

    def commit_of(self, revision: str) -> str | None:
        return {"main": self.commit, self.commit: self.commit, **self.branches}.get(revision)


def folder_files(folder: Path, **more: bytes) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.is_file()} | more


def alias(name: str, folder: Path, **more: bytes) -> Repo:
    """The repository that an alias names, at the commit that it is pinned at, with the files of `folder`."""
    found = resolve(name)
    return Repo(found.source, folder_files(folder, **more), found.revision or COMMIT, gated=found.gated)


def shipped(target: str, draft: str) -> list[Repo]:
    """The pair that ships with specbench under the names of another one."""
    pair = ASSETS / "pair"
    return [alias(target, pair / "target"), alias(draft, pair / "draft")]


# --- data sets --------------------------------------------------------------------------------------------------------

COLUMNS = {
    "humaneval": ("task_id", "prompt", "canonical_solution", "test", "entry_point"),
    "xsum": ("document", "summary", "id"),
}


def rows(name: str, count: int = 3) -> list[dict[str, str]]:
    """Rows with the columns of the official files; the texts are ours."""
    texts = {"prompt": "def add_{n}(a: int, b: int) -> int:\n    ", "document": "It rained in town {n} for a day."}
    return [{column: texts.get(column, column + "/{n}").format(n=n) for column in COLUMNS[name]} for n in range(count)]


def parquet_bytes(found: Iterable[Mapping[str, object]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = BytesIO()
    pq.write_table(pa.Table.from_pylist([dict(row) for row in found]), buffer)
    return buffer.getvalue()


def data_repo(source: HubFile, found: Iterable[Mapping[str, object]], **more: bytes) -> Repo:
    """A repository of data with one parquet file where `source` says, and what such repositories have besides."""
    files = {source.file: parquet_bytes(found), "README.md": b"---\nlicense: mit\n---\nRows.\n", **more}
    return Repo(source.repo, files, source.revision, "datasets")


def official(name: str) -> Repo:
    """The data set in the official layout, at the pinned commit; the file of another split lies beside."""
    source = HUB[name]
    other = source.file.replace("test-", "train-")
    return data_repo(source, rows(name), **{other: b"PAR1 is not to be read"})
