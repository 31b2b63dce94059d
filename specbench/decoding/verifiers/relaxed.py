"""Relaxed acceptance: while a model thinks aloud, any token will do that it finds nearly as good as its best.

Knows rows, draws and where spans lie; must not know models. As of other lossy rules, trees of drawn tokens are refused.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from specbench.decoding.protocols import Judged
from specbench.decoding.randomness import Source
from specbench.decoding.rows import acceptance
from specbench.decoding.spans import EVERYWHERE, Spans
from specbench.decoding.types import Draft, Verdict
from specbench.decoding.verifiers.lossy import accepted_more, exact_token
from specbench.decoding.verifiers.walk import Siblings


@dataclass(frozen=True)
class Relaxed:
    """Inside `spans` accepts x where it is one of the `top` likeliest tokens and p(x) ≥ max p − δ; what that does not
    accept, and all outside of the spans, is judged as by `Rejection` (relaxed acceptance of TensorRT-LLM and SGLang).

    So it accepts whatever `Rejection` would. Exact outside of spans, and where p gives all to one token, as at
    temperature 0, where the engines compare the softmax at temperature 1.
    """

    top: int = 10
    delta: float = 0.6
    spans: Spans = EVERYWHERE
    lossless: ClassVar[bool] = False
    judges: ClassVar[Judged] = "point trees"

    def __post_init__(self) -> None:
        if self.top < 1:
            raise ValueError(f"top: must be 1 or more, found {self.top}")
        if not 0 <= self.delta <= 1:
            raise ValueError(f"delta: must lie in [0, 1], found {self.delta}")

    def judge(self, p: Tensor, draft: Draft, rng: Source) -> Verdict:
        if not draft.tree.size:
            return exact_token(p, rng)
        passes = self.passes(p, draft)

        def chance(x: Siblings) -> Tensor:
            free = passes[:, x.parents].gather(-1, x.ids.unsqueeze(-1)).squeeze(-1)
            return torch.where(free, 1.0, acceptance(x.p, x.q, x.ids))

        def taken(x: Siblings) -> Tensor:
            return torch.where(passes[:, x.parents], x.q, torch.minimum(x.p, x.q))

        return accepted_more(p, draft, rng, chance, taken)

    def passes(self, p: Tensor, draft: Draft) -> Tensor:
        """[B, n + 1, V] bool: which tokens are accepted whatever they were drawn from. The model's own row decides,
        also after siblings that were rejected."""
        assert draft.text is not None, "what is judged is part of a text"
        likeliest = p.topk(min(self.top, p.shape[-1])).values
        good = (p >= likeliest[..., -1:]) & (p >= likeliest[..., :1] - self.delta) & (p > 0)
        return good & self.spans.at_nodes(draft.text, draft.tree).unsqueeze(-1)
