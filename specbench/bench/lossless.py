"""Does greedy output of the method equal the baseline's, and if not, is the difference numerical?

Verification scores K + 1 tokens in one pass, the baseline one: other kernels, other rounding. A divergence is
numerical where the two best tokens lie closer together than the noise between the two ways of scoring; anything else
is a mismatch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

Scores = Callable[[Sequence[int], int, int], Tensor]  # (ids, start, block) → logits of the tokens from start on
Verdict = Literal["identical", "numeric", "MISMATCH", "not compared"]


@dataclass(frozen=True)
class Losslessness:
    """`lossless` is identical, numeric, MISMATCH, or not compared (sampled output differs by chance)."""

    verdict: Verdict = "not compared"
    identical: int = 0
    compared: int = 0
    first_divergence: int | None = None
    gap: float | None = None
    noise: float | None = None

    def row(self) -> dict[str, Any]:
        return {
            "lossless": self.verdict,
            "prompts_identical": self.identical,
            "prompts_compared": self.compared,
            "first_divergence": self.first_divergence,
            "top2_gap": self.gap,
            "noise_floor": self.noise,
        }


def divergence(a: Sequence[int], b: Sequence[int]) -> int | None:
    """The first index at which two token sequences differ, their ends included; None if they are equal."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))


def compare(
    outputs: Sequence[tuple[Sequence[int], Sequence[int], Sequence[int]]], scores: Scores, block: int
) -> Losslessness:
    """The verdict over (prompt ids, baseline tokens, method tokens) of greedy decodes; scores only where they differ.

    The gap is the largest top-2 gap at any divergence, the noise the largest difference of any logit between scoring
    one token at a time and `block` at a time over the texts that diverged.
    """
    forks = [(prompt, base, at) for prompt, base, other in outputs if (at := divergence(base, other)) is not None]
    same = len(outputs) - len(forks)
    if not forks:
        return Losslessness("identical", same, len(outputs))
    gap, noise = 0.0, 0.0
    for prompt, base, at in forks:
        text = [*prompt, *base]
        one, many = scores(text, len(prompt), 1).double(), scores(text, len(prompt), block).double()
        best = one[min(at, len(base) - 1)].topk(2).values
        gap = max(gap, float(best[0] - best[1]))
        noise = max(noise, float((one - many).abs().max()))
    verdict: Verdict = "numeric" if gap <= 2 * noise else "MISMATCH"
    return Losslessness(verdict, same, len(outputs), min(at for _, _, at in forks), gap, noise)
