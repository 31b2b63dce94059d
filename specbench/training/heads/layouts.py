"""Heads as files: what is asked of a new one, and how a trained one is written.

Knows folders and layouts; must not know how heads learn, or what is in their files.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from specbench.models.heads.recognition import Head
from specbench.training.start.saving import in_dtype

CONFIG = "config.json"


@dataclass(frozen=True)
class Asked:
    """A head that is to be made. known: the ids of the tokens that it knows, in rising order; None for all.

    steps: the drafts of Medusa, and what others are proposed to draft in a round; verifier: what its files call the
    target; intermediate: the width of its MLP, the target's unless given; begin: the head that it goes on from.
    """

    known: Sequence[int] | None
    steps: int
    verifier: str
    intermediate: int | None = None
    seed: int = 0
    begin: Head | None = None


@dataclass(frozen=True)
class Layout:
    """What the files of a head say: `config` as config.json; `file` with the tensors; `stored`, which gives those of a
    module by their names there."""

    config: Mapping[str, Any]
    file: str
    stored: Callable[[Any], dict[str, Tensor]]

    def write(self, head: Any, folder: Path, dtype: torch.dtype) -> None:
        """The files of a head, in a dtype. OSError where they cannot be written."""
        tensors = {name: in_dtype(tensor, dtype).contiguous() for name, tensor in self.stored(head).items()}
        config = {**self.config, "dtype": str(dtype).removeprefix("torch.")}
        (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        save_file(tensors, folder / self.file, metadata={"format": "pt"})
        (folder / self.file).chmod((folder / CONFIG).stat().st_mode)  # safetensors lets nobody else read its files


def output_of(network: Any) -> Tensor:
    """[V, H] the output of a target, in float32, with the scale that the target gives its logits."""
    text = network.config.get_text_config(decoder=True)
    weight: Tensor = network.get_output_embeddings().weight.detach().float().cpu().clone()
    return weight / (getattr(text, "logits_scaling", None) or 1.0) * (getattr(text, "logit_scale", None) or 1.0)


def speculators_keys(network: Any, asked: Asked, algorithm: str, architecture: str) -> dict[str, Any]:
    """What every config.json of speculators says: which algorithm it is, and for which target."""
    greedy = {"proposal_type": "greedy", "speculative_tokens": asked.steps, "verifier_accept_k": 1,
              "accept_tolerance": 0.0}  # fmt: skip
    return {
        "architectures": [architecture],
        "speculators_model_type": algorithm,
        "speculators_version": "0.3.0",
        "speculators_config": {
            "algorithm": algorithm,
            "default_proposal_method": "greedy",
            "proposal_methods": [greedy],
            "verifier": {
                "name_or_path": asked.verifier,
                "architectures": list(getattr(network.config, "architectures", None) or [type(network).__name__]),
            },
        },
    }
