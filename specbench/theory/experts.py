"""What a pass of a mixture of experts reads: the experts that its tokens chose, each once, beside all other weights.

Where memory decides what a pass costs, this is v(K) before any kernel is looked at: tokens of a draft choose experts
that one token alone does not. Knows numbers; must not know networks.
"""

from dataclasses import dataclass

from specbench.metrics import ratio


def touched(experts: int, chosen: int, tokens: float) -> float:
    """Expected number of distinct experts of a layer, E(1 − (1 − k/E)^w), if each of w tokens chose k of E by itself.

    Every token chooses k different ones, evenly and independently of the others: real texts, whose neighbouring tokens
    choose alike, touch fewer. ValueError unless 1 ≤ k ≤ E and w ≥ 0.
    """
    if not 1 <= chosen <= experts or tokens < 0:
        raise ValueError(f"expected 1 ≤ k ≤ E and w ≥ 0, found k = {chosen}, E = {experts}, w = {tokens}")
    return float(experts * (1 - (1 - chosen / experts) ** tokens))


@dataclass(frozen=True)
class Experts:
    """What was counted over some passes of a network: distinct experts of a layer, in the mean.

    once: those of a step, of one token in each row; many: those of a verify pass; independent: what `touched` expects
    in the place of `many`. dense and expert: bytes of all weights that every pass reads, and of one expert in each of
    the layers that have experts.
    """

    experts: int
    once: float
    many: float
    independent: float
    dense: float
    expert: float

    def v(self, many: float) -> float:
        """Bytes of a pass that touches `many` experts in every layer ÷ those of a step."""
        return ratio(self.dense + many * self.expert, self.dense + self.once * self.expert)

    def row(self) -> dict[str, float]:
        """As columns of results.csv."""
        counts = (self.experts, self.once, self.many, self.v(self.many), self.v(self.independent))
        return dict(zip(COLUMNS, counts, strict=True))


COLUMNS = ("experts", "experts_per_step", "experts_per_verify", "v_by_experts", "v_by_independence")
