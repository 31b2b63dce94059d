"""Tiny data files for the tests of prompts, and the shortest way from one to a set of prompts."""

import gzip
import json
from pathlib import Path

import pytest

from specbench.data.loading import load_prompts
from specbench.data.prompts import PromptSet
from specbench.errors import UsageError


def bytes_of(text: str) -> list[int]:
    return list(text.encode())


def load(dataset: str, **options: object) -> PromptSet:
    settings: dict[str, object] = {"limit": None, "seed": 0, "longest": None} | options
    return load_prompts(dataset, bytes_of, **settings)  # type: ignore[arg-type]


def write(path: Path, content: bytes | str) -> Path:
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def jsonl(path: Path, *rows: object) -> str:
    return f"jsonl:{write(path, ''.join(json.dumps(row) + chr(10) for row in rows))}"


def parquet(path: Path, *rows: dict[str, object]) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return f"parquet:{path}"


def texts(found: PromptSet) -> list[str]:
    return [prompt.text for prompt in found.prompts]


def complaint(dataset: str, **options: object) -> str:
    with pytest.raises(UsageError) as caught:
        load(dataset, **options)
    assert str(caught.value).isprintable(), "an error is one line without escapes"
    return str(caught.value)
