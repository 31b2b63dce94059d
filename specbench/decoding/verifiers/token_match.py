"""Naive token match. Knows rows and draws; must not know models, caches or clocks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from specbench.decoding.protocols import Judged
from specbench.decoding.randomness import Source, Stream
from specbench.decoding.types import Draft, Verdict
from specbench.decoding.verifiers.walk import Siblings, nothing_to_judge, replaced, walk


@dataclass(frozen=True)
class TokenMatch:
    """The model draws its own token at every node; a child that is the same token is accepted, else it is emitted.

    Lossless for any way of drafting, because what is emitted is the model's own draw; it accepts Σ p·q of the drafts,
    which is less than the Σ min(p, q) of `Rejection` (methods: naive token match; greedy: the same rule).
    """

    lossless: ClassVar[bool] = True
    judges: ClassVar[Judged] = "trees"

    def judge(self, p: Tensor, draft: Draft, rng: Source) -> Verdict:
        if not draft.tree.size:
            return nothing_to_judge(p, rng)
        own = rng.categorical(p, Stream.EMIT)
        walked = walk(p, draft, lambda x: (own[:, x.parents] == x.ids) & x.valid, unseen)
        token = own.gather(1, walked.last.unsqueeze(1)).squeeze(1)
        return Verdict(walked.path, walked.accepted, token, walked.levels(matches(walked.tested)))


def unseen(x: Siblings) -> Tensor:
    """The rows less the siblings' tokens: a token counts once, however often it was drawn."""
    return replaced(x, x.p.scatter(-1, x.ids.unsqueeze(-1), 0))


def matches(tested: Sequence[Siblings]) -> Tensor:
    """[B, n + 1] Σ p·q: the chance that a child of a node is the model's token."""
    rows = tested[0].left
    hit = rows.new_zeros(rows.shape[:2])
    for x in tested:
        hit[:, x.parents] += (x.p * x.q).sum(-1) * x.valid
    return hit
