"""From what a command was asked for to the origin of a token cache.

Knows settings, tokenizers and sources; must not know engines or files.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from specbench.errors import UsageError
from specbench.models.checkpoints.check import PROBES
from specbench.settings import group
from specbench.spec import RunSpec
from specbench.training.text.data_options import Sources
from specbench.training.text.manifest import Origin

VALUES = 4096  # of a weight
ROWS = 8  # answers of a call per row: few rows stand idle at its end


def answers_origin(
    sources: Sources, spec: RunSpec, described: Mapping[str, Any], tokenizer: Any, vocabulary: int, samples: int = 1
) -> Origin:
    """Of the target's answers, decoded as a spec says. described: `Backend.describe`; vocabulary: width of the head.

    UsageError for several samples of greedy answers. Greedy answers have no seed.
    """
    if samples > 1 and not spec.temperature:
        raise UsageError(
            f"{samples} samples per prompt are all the same at temperature 0: give a --temperature, or take one"
        )
    names = [*(setting.name for setting in group("law", RunSpec)), "max_new_tokens", "ignore_eos"]
    decoded: dict[str, Any] = {name: getattr(spec, name) for name in names}
    decoded |= {"samples": samples, "together": max(128, ROWS * spec.batch)}
    decoded["seed"] = spec.seed if spec.temperature else 0
    return Origin(kind="answers", **decoded, **common(sources, described, tokenizer, vocabulary))


def text_origin(sources: Sources, described: Mapping[str, Any], tokenizer: Any, vocabulary: int, length: int) -> Origin:
    """Of texts as they are, in windows of so many tokens."""
    return Origin(kind="text", length=length, **common(sources, described, tokenizer, vocabulary))


def common(sources: Sources, described: Mapping[str, Any], tokenizer: Any, vocabulary: int) -> dict[str, Any]:
    """What origins of both kinds have."""
    return {
        "target": described["target_source"],
        "revision": described["target_commit"],
        "weights": described["target_weights"],
        "dtype": described["dtype_resolved"],
        "tokenizer_sha256": tokenizer_sha256(tokenizer),
        "chat_template_sha256": sources.template_sha256,
        "prompts_sha256": sources.sha256,
        "data": sources.names,
        "vocabulary": vocabulary,
    }


def with_weights(described: Mapping[str, Any], network: Any) -> dict[str, Any]:
    """What a backend describes, with the weights of the target named by their values: a folder may get others."""
    return {**described, "target_weights": f"{described['target_weights']}, {weights_digest(network)[:12]}"}


def weights_digest(network: Any) -> str:
    """A digest of a network's weights, of a few thousand values of each: training changes them all.

    The same in every type that has these values. Packed weights count by their names and shapes.
    """
    digest = hashlib.sha256()
    for name, weight in sorted(network.state_dict().items()):
        digest.update(f"{name} {tuple(weight.shape)}\n".encode())
        if type(weight) is Tensor and weight.is_floating_point():
            some = weight.flatten()[:: max(weight.numel() // VALUES, 1)]
            digest.update(some.float().cpu().numpy().tobytes())
    return digest.hexdigest()


def tokenizer_sha256(tokenizer: Any) -> str:
    """What a tokenizer of transformers is known by: its tokens, and how it splits texts of many kinds."""
    known = [sorted(tokenizer.get_vocab().items()), [list(tokenizer(text).input_ids) for text in PROBES]]
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()
