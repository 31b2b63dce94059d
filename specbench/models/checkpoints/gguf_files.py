"""GGUF files as checkpoints: one file with configuration, tokenizer and weights, dequantised by transformers on load.

Knows the header of such a file and what reading one needs; must not know how a network is used. Weights are never kept
packed: transformers does that only for devices other than a CPU, with kernels that it would fetch from the hub and run.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import GgufConfig, modeling_gguf_pytorch_utils
from transformers.utils import logging

from specbench.errors import UnusableModelError
from specbench.models.checkpoints import hub
from specbench.models.checkpoints.extras import require
from specbench.models.checkpoints.pairs import GGUF, Checkpoint
from specbench.wording import clean_path

PART = re.compile(r"-\d{5}-of-\d{5}\.gguf")
# Its bar is the only one of transformers that cannot be turned off otherwise.
modeling_gguf_pytorch_utils.tqdm = logging.tqdm  # type: ignore[attr-defined]
LARGE = 64 << 20  # bytes of a file; reading it takes so long that a line says it
UNPACKED = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def fetch(checkpoint: Checkpoint) -> Path:
    """The folder with the file of `checkpoint`; UnusableModelError where it, or what reads it, is missing."""
    require("gguf", f"{checkpoint.name}: a GGUF file")
    file = str(checkpoint.file)
    if PART.search(file):
        raise UnusableModelError(
            f"{checkpoint.name} is a part of a GGUF file: join the parts with llama-gguf-split --merge"
        )
    folder = hub.fetch(checkpoint, (file,))
    if not (folder / file).is_file():
        raise UnusableModelError(f"{checkpoint.name}: {checkpoint.source} has no file {file}")
    return folder


def arguments(checkpoint: Checkpoint) -> dict[str, Any]:
    """What transformers' loaders are told besides the folder: nothing for a checkpoint that is no GGUF file."""
    return {"gguf_file": checkpoint.file} if checkpoint.file else {}


def unpacking(checkpoint: Checkpoint) -> dict[str, Any]:
    """What their loader of networks is told besides."""
    return {"quantization_config": GgufConfig(dequantize=True)} if checkpoint.file else {}


@contextmanager
def read_once(checkpoint: Checkpoint) -> Iterator[None]:
    """transformers reads meanwhile from the reader that is there already: configuration, tokenizer and weights each
    begin with all words of the tokenizer, which take seconds. Its loaders take the class from the module `gguf`."""
    if not checkpoint.file:
        yield
        return
    import gguf

    own, gguf.GGUFReader = gguf.GGUFReader, lambda file: reader(Path(file))  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        gguf.GGUFReader = own  # type: ignore[misc]


_READERS: dict[Path, tuple[int, Any]] = {}  # by the file, which is mapped: when it was changed, and what was read


def reader(file: Path) -> Any:
    """What the package reads from a file as it is now; `forget` frees it."""
    from gguf import gguf_reader

    changed = file.stat().st_mtime_ns
    if _READERS.get(file, (None,))[0] != changed:
        if file.stat().st_size > LARGE:
            print(f"reading {clean_path(file)}", file=sys.stderr)
        _READERS[file] = changed, gguf_reader.GGUFReader(file)
    return _READERS[file][1]


def forget(file: Path) -> None:
    """Free what was read of a file whose weights are loaded: the words of a tokenizer take hundreds of megabytes."""
    _READERS.pop(file, None)


def kinds(file: Path) -> Counter[str]:
    """How its weights are packed: of every type of GGUF (Q4_1, F32 …) the number of weights."""
    return _kinds(file, file.stat().st_mtime_ns)


@cache
def _kinds(file: Path, _: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for tensor in reader(file).tensors:
        found[tensor.tensor_type.name] += int(tensor.n_elements)
    return found


def dtype_of(file: Path) -> torch.dtype:
    """The type that its weights come closest to: that of most of them, bfloat16 where these are packed."""
    return UNPACKED.get(commonest(file), torch.bfloat16)


def commonest(file: Path) -> str:
    """The type of most of its weights."""
    (name, _), *_ = kinds(file).most_common(1)
    return name


def files_in(folder: Path) -> str:
    """What to do with a folder that holds no checkpoint but GGUF files; empty where it holds none."""
    files = sorted(folder.glob(f"*{GGUF}"))
    return f"; it holds GGUF files: name one of them, such as {files[0]}" if files else ""
