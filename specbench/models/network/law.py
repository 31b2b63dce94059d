"""The distribution of the next token: logits → probabilities by temperature, top-k, top-p, min-p and eta.

The warpers are transformers' own, but for eta and top-p, in transformers' order, applied once and to target and draft
alike. Knows nothing of models or caches.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.generation.logits_process import (
    EtaLogitsWarper,
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
)

from specbench.decoding.rows import point_mass
from specbench.models.network.top_p import TopP

COLD = 1e-3  # below this temperature the quotient logits ÷ temperature leaves float32


class Eta(EtaLogitsWarper):
    """Eta sampling as in transformers, whose entropy comes with a check of its input that waits for the device, and
    whose epsilon is a tensor of the host, which would be copied to the device every time."""

    def __init__(self, epsilon: float) -> None:
        super().__init__(epsilon)
        self.most, self.root = epsilon, math.sqrt(epsilon)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        probs = scores.softmax(-1)
        entropy = torch.special.entr(probs).sum(-1, keepdim=True)
        eta = (self.root * (-entropy).exp()).clamp(max=self.most)
        return scores.masked_fill((probs < eta) & (scores < scores.amax(-1, keepdim=True)), self.filter_value)


@dataclass(frozen=True)
class Law:
    """How logits become the distribution that tokens are drawn from.

    Temperature 0 is greedy: a one-hot row, lowest id at ties.

    Raises ValueError with one line for values outside their range (the ranges are those of transformers).
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    eta: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature must be 0 (greedy) or a positive number, not {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top-k must be at least 1, not {self.top_k}")
        for name, value, top in (("top-p", self.top_p, 1.0), ("min-p", self.min_p, 1.0), ("eta", self.eta, 1.0)):
            if value is not None and not 0 < value <= top:
                raise ValueError(f"{name} must lie in (0, 1], not {value}")

    @cached_property
    def _warpers(self) -> LogitsProcessorList:
        warpers = LogitsProcessorList()
        if self.temperature != 1.0:
            warpers.append(TemperatureLogitsWarper(float(self.temperature)))
        if self.top_k is not None:
            warpers.append(TopKLogitsWarper(self.top_k))
        if self.top_p is not None and self.top_p < 1.0:
            warpers.append(TopP(self.top_p))
        if self.min_p is not None:
            warpers.append(MinPLogitsWarper(self.min_p))
        if self.eta is not None and self.eta < 1.0:
            warpers.append(Eta(self.eta))
        return warpers

    @property
    def certain(self) -> bool:
        """Whether every row gives all to one token."""
        return self.temperature == 0

    def __call__(self, logits: Tensor, width: int) -> Tensor:
        """[..., width] probabilities in float32 (float64 stays) from logits [..., V'].

        A head wider than `width` is cut before the softmax, a narrower one padded with zeros: only a draft's
        distribution may be changed so, the output stays distributed as the target's.
        """
        return self.checked(logits, width)[0]

    def checked(self, logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """The probabilities, and [...] which rows are a distribution: logits that are NaN or infinite give none."""
        scores = logits[..., :width]
        scores = scores if scores.dtype == torch.float64 else scores.float()
        if self.certain:
            greatest, ids = scores.max(-1)  # on a CPU twice as fast as argmax
            return point_mass(ids, width, scores.dtype), greatest.abs() < torch.inf  # false for NaN, too
        return self._drawn(scores, width), scores.amax(-1).abs() < torch.inf

    def _drawn(self, scores: Tensor, width: int) -> Tensor:
        if self.temperature < COLD:
            scores = scores.double() - scores.amax(-1, keepdim=True)
        flat = scores.reshape(-1, scores.shape[-1])
        if self._warpers:
            nothing = torch.empty((flat.shape[0], 0), dtype=torch.long, device=flat.device)  # no warper reads it
            flat = self._warpers(nothing, flat)  # type: ignore[arg-type]
        probs = flat.softmax(-1).view(scores.shape)
        return F.pad(probs, (0, width - probs.shape[-1])) if probs.shape[-1] < width else probs
