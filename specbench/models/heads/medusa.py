"""Medusa heads: each predicts one of the next tokens from the target's last hidden state, independently.

Cai et al. 2024, arXiv 2401.10774, §3.1. Files in the authors' format, inside whole models (Medusa-2), and in vLLM's.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig

from specbench.decoding.types import Context
from specbench.errors import UnusableModelError, UsageError
from specbench.models.heads.parts import Borrowed, fill, output_of, refuse_other, shape_of
from specbench.models.heads.recognition import Head
from specbench.models.heads.together import Drafted, Parallel, Places

VLLM = re.compile(r"blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)")
VLLM_HEAD = re.compile(r"lm_heads\.(\d+)\.weight")
SHARED, KNOWN = "lm_head.weight", "token_map"


class Residual(nn.Module):
    """x + SiLU(W x + b)."""

    def __init__(self, weight: Tensor, bias: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias, device="meta")

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.linear(x))


class Medusa(Parallel, nn.Module):
    """Head i gives the row of the token i + 2 positions after the state's, i from 0: the first after the pending."""

    taps: tuple[int | str, ...] = ("z",)

    def __init__(self, head: Head, target: Borrowed, override: Sequence[int] | None = None) -> None:
        super().__init__()
        if override is not None:
            raise UsageError(f"--aux-layers: {head.name} is a Medusa head, which reads the last hidden state only")
        self.known: Tensor | None = known(head, target)
        tensors = as_authors(head)
        self.steps = 1 + max((int(name.split(".")[0]) for name in tensors if name[0].isdigit()), default=-1)
        width = shape_of(replace(head, tensors=tensors), "0.0.linear.weight")[1]
        refuse_other(head, target, width)
        nobody: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
        config = LlamaConfig(num_hidden_layers=0, hidden_size=width, num_attention_heads=1, **nobody)
        config.vocab_size = target.vocabulary
        config._attn_implementation = target.config._attn_implementation
        self.target, self.dtype, self.config = target, target.dtype, config
        for number in range(self.steps):
            self.add_module(str(number), self._head(head, tensors, number, target))
        self.lm_head = self._output(target) if SHARED in tensors else None
        ids = {name: self.known for name in self.state_dict() if name.endswith(".ids") and self.known is not None}
        self.warnings = fill(self, head, target, {**tensors, **ids})

    def _head(self, head: Head, tensors: dict[str, Tensor], number: int, target: Borrowed) -> nn.Module:
        blocks = [name for name in tensors if re.fullmatch(rf"{number}\.\d+\.linear\.weight", name)]
        made: list[nn.Module] = [Residual(tensors[name], name.replace("weight", "bias") in tensors) for name in blocks]
        if SHARED not in tensors:
            made.append(self._output(target))
        return nn.ModuleList(made)

    def _output(self, target: Borrowed) -> nn.Module:
        rows = target.vocabulary if self.known is None else len(self.known)
        return output_of(self.config, rows, self.config.hidden_size, target)

    def front(self, depth: int) -> int:
        return 0

    def read(self, context: Context, text: Tensor, features: Tensor | None, places: Places) -> None:
        return  # it reads one state, and keeps nothing

    def draft(self, context: Context, text: Tensor, features: Tensor | None, places: Places, depth: int) -> Drafted:
        assert features is not None
        rows = [self.row(number, features[:, -1]) for number in range(depth)]
        return Drafted(torch.stack([logits for logits, _ in rows], 1), torch.stack([state for _, state in rows], 1))

    def row(self, number: int, z: Tensor) -> tuple[Tensor, Tensor]:
        """A head's logits [..., V] for last hidden states [..., H], and the states before its output."""
        parts: Any = self.get_submodule(str(number))
        for block in parts if self.lm_head is not None else parts[:-1]:
            z = block(z)
        return (self.lm_head if self.lm_head is not None else parts[-1])(z), z


def as_authors(head: Head) -> dict[str, Tensor]:
    """The tensors by the authors' names; those of vLLM are renamed, and its output is cut to the known tokens.

    `original_lm_head` (vLLM): one matrix makes the logits of all heads, the first if there are several.
    """
    given, found = dict(head.tensors), {}
    map_, rows = given.pop(KNOWN, None), {}
    for name, tensor in given.items():
        if block := VLLM.fullmatch(name):
            found[f"{block[1]}.{block[2]}.linear.{block[3]}"] = tensor
        elif number := VLLM_HEAD.fullmatch(name):
            rows[int(number[1])] = tensor
        else:
            found[name] = tensor
    if rows and head.config.get("original_lm_head"):
        found.setdefault(SHARED, rows[min(rows)])
        rows = {}
    depth = len({name.split(".")[1] for name in found if name.startswith("0.") and ".linear." in name})
    found |= {f"{number}.{depth}.weight": tensor for number, tensor in rows.items()}
    if map_ is not None:
        outputs = [name for name in found if ".linear." not in name]
        found |= {name: found[name][map_] for name in outputs if len(found[name]) > len(map_)}
    return found


def known(head: Head, target: Borrowed) -> Tensor | None:
    """The tokens of a head with its own vocabulary (`token_map` of vLLM); None if it knows all."""
    ids = head.tensors.get(KNOWN)
    if ids is None or len(ids) == target.vocabulary:
        return None
    if (
        ids.ndim != 1
        or ids.is_floating_point()
        or len(set(ids.tolist())) != len(ids)
        or not 0 <= int(ids.min()) <= int(ids.max()) < target.vocabulary
    ):
        raise UnusableModelError(f"{head.name}: its {KNOWN} are not tokens of the target, each of them once")
    return ids.long().to(target.device)
