"""Drafts as checkpoints: weights, configuration and generation config, each file there whole or not at all.

Knows files and formats; must not know training. Tokenizer and model card are written by others.
"""

from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from torch import Tensor

from specbench.errors import UsageError
from specbench.models.checkpoints import reduced
from specbench.models.network.reduced import ReducedHead
from specbench.replacing import filling
from specbench.wording import first_line

LAST = "model.safetensors"  # its file appears last: where it is, the others are
WHOLE = "1TB"  # no file of weights is divided


def save_draft(model: Any, folder: Path, dtype: torch.dtype | None = None) -> None:
    """Write a draft into `folder`, in its own dtype unless another is given; its head may know some tokens only.

    Files of the same names are replaced one by one, all others stay. UsageError where they cannot be written.
    """
    try:
        with filling(folder, LAST) as scratch:
            write(model, scratch, dtype or model.dtype)
    except (OSError, SafetensorError) as error:
        raise UsageError(f"cannot write the draft to {folder}: {first_line(error)}") from error


def write(model: Any, folder: Path, dtype: torch.dtype) -> None:
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    model.save_pretrained(folder, state_dict=weights_of(model, dtype), max_shard_size=WHOLE)
    model.config.dtype = dtype  # transformers has put the name of the network's own there
    model.config.save_pretrained(folder)
    model.config.dtype = model.dtype
    (folder / LAST).chmod((folder / "config.json").stat().st_mode)  # safetensors lets nobody else read its files


def weights_of(model: Any, dtype: torch.dtype) -> dict[str, Tensor]:
    """The weights as the file has them; those that are one tensor in the network are one here."""
    head = model.get_output_embeddings()
    found, cast = dict[str, Tensor](), dict[int, Tensor]()
    cut = isinstance(head, ReducedHead)
    own = {f"{name}.{part}" for name, one in model.named_modules() if one is head for part in ("weight", "ids")}
    for name, tensor in model.state_dict().items():
        if not (cut and name in own):
            found[name] = cast.setdefault(tensor.data_ptr(), in_dtype(tensor, dtype))
    if cut:
        found |= {name: in_dtype(tensor, dtype) for name, tensor in reduced.stored(head).items()}
    return found


def in_dtype(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.detach().cpu().to(dtype) if tensor.is_floating_point() else tensor.detach().cpu()
