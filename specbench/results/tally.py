"""Was text drawn from the distributions of a model? Sums over its tokens in, z out.

Pure statistics: who emitted the tokens does not matter, nor who scored them: our own loop, another engine, a server.

Let f be any function of a token and of the text before it. If every token x_t was drawn from p_t, given that text, then
f_t(x_t) − Σ p_t f_t has mean 0 and variance Σ p_t f_t² − (Σ p_t f_t)², given that text. The sum over tokens is a
martingale, so z = Σ (f_t(x_t) − Σ p_t f_t) ÷ √ΣVar is asymptotically standard normal, however the tokens depend on each
other (Brown 1971, Ann. Math. Stat. 42, 59). With f = −log p this holds the surprise of the text against its entropy.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields

from scipy.special import ndtr


@dataclass(frozen=True)
class Tally:
    """Sums over tokens: f of the emitted ones, and the mean and the variance that f has under p."""

    tokens: int
    observed: float
    expected: float
    variance: float

    @property
    def z(self) -> float:
        """Standard normal where the tokens were drawn from p."""
        excess = self.observed - self.expected
        if self.variance > 0:
            return excess / math.sqrt(self.variance)
        return 0.0 if abs(excess) <= 1e-9 * max(self.tokens, 1) else math.copysign(math.inf, excess)

    @property
    def excess(self) -> float:
        """By how much f of a token exceeds what it would be in the mean."""
        return (self.observed - self.expected) / self.tokens if self.tokens else math.nan


def total(parts: Iterable[Tally]) -> Tally:
    """The tally of several texts together."""
    found = list(parts)
    tokens, *sums = (math.fsum(getattr(part, one.name) for part in found) for one in fields(Tally))
    return Tally(int(tokens), *sums)


def two_sided(z: float) -> float:
    """The chance of a z this far from 0 or farther; 0 where it is no number."""
    return 0.0 if math.isnan(z) else float(2 * ndtr(-abs(z)))
