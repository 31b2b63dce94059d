"""Does greedy output of the method equal the baseline's, and if not, is the difference numerical?

Verification scores K + 1 tokens in one pass, the baseline one: other kernels, other rounding. A divergence is
numerical where the two best tokens lie closer together than the noise between the two ways of scoring; anything else
is a mismatch.
"""

import math
from collections.abc import Mapping, Sequence

from torch import Tensor

from specbench.backends.base import Scores
from specbench.choices import methods_of
from specbench.decoding.method_files import read_method
from specbench.results.cells import Comparison, Losslessness
from specbench.results.samples import Sample
from specbench.spec import RunSpec

Outputs = tuple[Sequence[int], Sequence[int], Sequence[int]]  # prompt ids, baseline tokens, method tokens


def divergence(a: Sequence[int], b: Sequence[int]) -> int | None:
    """The first index at which two token sequences differ, their ends included; None if they are equal."""
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return None if len(a) == len(b) else min(len(a), len(b))


def compare_outputs(outputs: Sequence[Outputs], scores: Scores | None, block: int) -> Losslessness:
    """What is known of greedy decodes beside those of the baseline; scores are computed only where they differ.

    The gap is the largest `shortfall` at any divergence, the noise the largest difference of any logit between scoring
    one token at a time and `block` at a time over the sequences that diverged. Without `scores` a divergence cannot be
    explained: the verdict is `not compared`, with the counts.
    """
    forks = [
        (prompt, base, other, at) for prompt, base, other in outputs if (at := divergence(base, other)) is not None
    ]
    same = len(outputs) - len(forks)
    if not forks:
        return Losslessness("identical", same, len(outputs))
    first = min(at for *_, at in forks)
    if scores is None:
        return Losslessness("not compared", same, len(outputs), first)
    gap, noise = 0.0, 0.0
    for prompt, base, other, at in forks:
        ids = [*prompt, *base]
        one, many = scores(ids, len(prompt), 1).double(), scores(ids, len(prompt), block).double()
        gap = max(gap, shortfall(one[at], base[at], other[at]) if at < min(len(base), len(other)) else math.inf)
        noise = max(noise, float((one - many).abs().max()))
    verdict: Comparison = "numeric" if gap <= 2 * noise else "MISMATCH"
    return Losslessness(verdict, same, len(outputs), first, gap, noise)


def shortfall(scores: Tensor, *tokens: int) -> float:
    """How far the worst of the tokens lies below the best score; the top-2 gap where the tokens are the two best.

    (An output that ends where the other goes on has no token there: no rounding does that, so its gap is infinite.)
    """
    return float(scores.max() - scores[list(tokens)].min())


def losslessness_of(
    spec: RunSpec, prompts: Mapping[tuple[str, int], Sequence[int]], samples: Sequence[Sample], scores: Scores | None
) -> Losslessness:
    """The losslessness of a greedy cell. Sampled output differs by chance, that of synthetic acceptance on purpose.

    prompts: their tokens, by the prompt's id and the number of the turn.
    """
    if spec.temperature > 0 or spec.acceptance is not None:
        lossy = spec.acceptance is None and not all(read_method(m)["lossless"] for m in methods_of(spec))
        return Losslessness("lossy" if lossy else "not compared")
    first = [s for s in samples if s.repeat == 0]
    outputs = [(prompts[s.prompt, s.conversation[0]], s.baseline.tokens, s.method.tokens) for s in first]
    widest = max((r.width for s in samples for r in s.method.rounds), default=0)  # all nodes of a tree are one pass
    return compare_outputs(outputs, scores, max(widest, spec.k) + 1)
