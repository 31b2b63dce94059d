"""Speculative sampling. Knows rows and draws; must not know models, caches or clocks."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from specbench.decoding.protocols import Judged
from specbench.decoding.randomness import Source, Stream
from specbench.decoding.rows import acceptance
from specbench.decoding.types import Draft, Verdict
from specbench.decoding.verifiers.walk import Siblings, left_over, nothing_to_judge, overlap, walk


@dataclass(frozen=True)
class Rejection:
    """Speculative sampling: accept x with probability p(x)/q(x), else go on with the residual (p − q)⁺.

    Leviathan et al. 2022 §2.3 and Chen et al. 2023 Alg. 2 for a chain; several children of a node are tested in their
    order against the residual that the earlier ones left (SpecInfer, Miao et al. 2023, Alg. 2), which is exact for
    independent draws, for draws without replacement and for point masses, if q is what the token was drawn from.
    """

    lossless: ClassVar[bool] = True
    judges: ClassVar[Judged] = "trees"

    def judge(self, p: Tensor, draft: Draft, rng: Source) -> Verdict:
        if not draft.tree.size:
            return nothing_to_judge(p, rng)

        def accepts(x: Siblings) -> Tensor:
            return rng.bernoulli(acceptance(x.p, x.q, x.ids) * x.valid, Stream.ACCEPT)

        walked = walk(p, draft, accepts)
        token = rng.categorical(left_over(walked), Stream.EMIT)
        return Verdict(walked.path, walked.accepted, token, walked.levels(overlap(walked.tested)))
