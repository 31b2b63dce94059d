"""A head as learning begins with it, and as it is kept.

Knows kinds of heads; must not know losses or data.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from specbench.errors import UsageError
from specbench.models.heads.build import built
from specbench.models.heads.recognition import SPECULATORS, Head, flat
from specbench.models.network.reduced import SIZE
from specbench.replacing import filling
from specbench.training.heads import eagle3, medusa, mtp
from specbench.training.heads.layouts import Asked, Layout
from specbench.training.heads.students import Beside, Unrolled
from specbench.wording import first_line

HeadKind = Literal["eagle3", "medusa", "mtp"]
Begun = Callable[[Any, Asked], tuple[Layout, dict[str, Tensor]]]


@dataclass(frozen=True)
class Trainable:
    """What a kind of head needs to be trained: how it begins, in which format, and how it learns."""

    begun: Begun
    format: str
    student: Callable[[Any], nn.Module]


KINDS: Mapping[HeadKind, Trainable] = {
    "eagle3": Trainable(eagle3.begun, SPECULATORS, Unrolled),
    "medusa": Trainable(medusa.begun, "", Beside),
    "mtp": Trainable(mtp.begun, SPECULATORS, Unrolled),
}


def beginning(kind: HeadKind, network: Any, asked: Asked) -> tuple[Any, Layout]:
    """A `Student` on its target that has learned nothing, or goes on from another head, and how it is written.

    UnusableModelError or UsageError for a target that no such head can be made for.
    """
    how = KINDS[kind]
    layout, tensors = how.begun(network, asked)
    head = built(Head(kind, how.format, flat(layout.config), tensors, Path(), "the head"), network)
    if asked.known is not None:
        setattr(head.config, SIZE, len(asked.known))
    return how.student(head), layout


def save_head(student: Any, layout: Layout, folder: Path, dtype: torch.dtype) -> None:
    """Write a head into `folder`, each file there whole or not at all; the weights appear last.

    Files of the same names are replaced, all others stay. UsageError where they cannot be written.
    """
    try:
        with filling(folder, layout.file) as scratch:
            layout.write(student.head, scratch, dtype)
    except (OSError, SafetensorError) as error:
        raise UsageError(f"cannot write the head to {folder}: {first_line(error)}") from error
