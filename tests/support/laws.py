"""Distributions of sequences, exactly, as the proofs that ship compute them; and of what a drafter proposes."""

from collections.abc import Sequence

from torch import Tensor

from specbench.decoding.decode import begin
from specbench.decoding.proofs.exact import (
    CPU,
    ENUMERABLE,
    EXACT,
    Outcomes,
    autoregressive,
    block_error,
    carried_on,
    enumerate_outcomes,
    error,
    one_round,
    outcomes_of,
    sequence_error,
    sequence_law,
)
from specbench.decoding.protocols import Drafter
from specbench.decoding.randomness import Source
from specbench.decoding.types import Draft

__all__ = ["ENUMERABLE", "EXACT", "Outcomes", "autoregressive", "block_error", "carried_on", "error", "one_round",
           "outcomes_of", "proposals", "sequence_error", "sequence_law"]  # fmt: skip


def proposals(drafter: Drafter, prompt: Sequence[int], budget: int, eos: Sequence[int] = ()) -> tuple[Draft, Tensor]:
    """Every draft that may be proposed after a prompt, with its probability."""

    def run(origin: Tensor, source: Source) -> Draft:
        context = begin([prompt], budget + 1, drafter.room, eos, CPU).select(origin)
        drafter.start(context)
        return drafter.propose(context, budget, source)

    draft, weight, _ = enumerate_outcomes(run)
    return draft, weight
