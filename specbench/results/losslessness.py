"""How the output of a cell compares with the baseline's, as data. Must not know texts or models."""

from dataclasses import dataclass
from typing import Any, Literal

Agreement = Literal["identical", "numeric", "MISMATCH", "not compared", "lossy"]


@dataclass(frozen=True)
class Losslessness:
    """`lossless` is identical, numeric, MISMATCH, not compared (sampled output differs by chance), or lossy.

    lossy: sampled by a rule that is not lossless; the column law_distance says how far its distribution is off. The
    names of the fields are keys of the journal.
    """

    verdict: Agreement = "not compared"
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
