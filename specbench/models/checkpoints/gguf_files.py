"""GGUF files as checkpoints: one file with configuration, tokenizer and weights, dequantised by transformers on load.

Knows the header of such a file and what reading one needs; must not know how a network is used. Weights are never kept
packed: transformers does that only for devices other than a CPU, with kernels that it would fetch from the hub and run.
"""

import re
from collections import Counter
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

PART = re.compile(r"-\d{5}-of-\d{5}\.gguf")
# Its bar is the only one of transformers that cannot be turned off otherwise.
modeling_gguf_pytorch_utils.tqdm = logging.tqdm  # type: ignore[attr-defined]
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


def kinds(file: Path) -> Counter[str]:
    """How its weights are packed: of every type of GGUF (Q4_1, F32 …) the number of weights."""
    return _kinds(file, file.stat().st_mtime_ns)


@cache  # a file says it between all the words of its tokenizer, which take seconds to read
def _kinds(file: Path, _: int) -> Counter[str]:
    from gguf import GGUFReader

    found: Counter[str] = Counter()
    for tensor in GGUFReader(file).tensors:
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
