"""Synthetic acceptance: a verifier that does the work of another one and accepts at given rates.

What a method emits with it follows no model's distribution: it shows what an engine makes of an acceptance, for pairs
that have another one or for weights that have none (vLLM and SGLang have such a mode, with other rates). Knows
verifiers and draws; must not know models, clocks or where the rates come from.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.decoding.loop import Speculate
from specbench.decoding.protocols import Judged, Verifier
from specbench.decoding.randomness import Source, Stream
from specbench.decoding.tokens import constant
from specbench.decoding.types import Draft, Verdict
from specbench.decoding.verifiers.rejection import Rejection
from specbench.decoding.verifiers.walk import at_levels
from specbench.errors import UsageError


@dataclass(frozen=True)
class Synthetic:
    """Accepts token i of a chain with probability rates[i], given that all before it were accepted.

    Rates lie in [0, 1]; the last one holds for all later positions, so that one rate is the α of the formula. `inner`
    computes and draws all that it would without them, from the chances p/q to the token after the accepted ones: only
    what its draws of acceptance are compared with is another number. `overlap` is the rate at every tested level.
    """

    inner: Verifier
    rates: tuple[float, ...]
    lossless: ClassVar[bool] = False
    judges: ClassVar[Judged] = "chains"

    def judge(self, p: Tensor, draft: Draft, rng: Source) -> Verdict:
        chances = along(self.rates, draft)
        verdict = self.inner.judge(p, draft, AtRates(rng, chances))
        rated = at_levels(F.pad(chances, (0, 1)), verdict.path)
        return replace(verdict, overlap=instead_of(verdict.overlap, rated))


@dataclass(frozen=True)
class AtRates:
    """A source whose draws of acceptance have the chances [B, n] in the place of those they are asked for."""

    inner: Source
    chances: Tensor

    def bernoulli(self, probs: Tensor, stream: Stream) -> Tensor:
        asked = instead_of(probs, self.chances) if stream is Stream.ACCEPT else probs
        return self.inner.bernoulli(asked, stream)

    def categorical(self, probs: Tensor, stream: Stream) -> Tensor:
        return self.inner.categorical(probs, stream)


def synthetic(method: Speculate, rates: tuple[float, ...] | None) -> Speculate:
    """The method with its acceptance at the rates; the method itself where there are none.

    UsageError, naming the part, for a method that is not a chain judged by `Rejection`. Looks at no weight.
    """
    if rates is None:
        return method
    verifier, drafter = type(method.verifier).__name__, type(method.drafter).__name__
    if not isinstance(method.verifier, Rejection):
        raise UsageError(
            f"--acceptance takes the place of the chances with which Rejection accepts, and {verifier} has other ones: "
            "leave it out, or choose --method chain"
        )
    if method.drafter.branches or not method.drafter.drawn:
        raise UsageError(
            f"--acceptance is by position in a chain from a model, and {drafter} drafts none: "
            "leave it out, or choose --method chain"
        )
    return replace(method, verifier=Synthetic(method.verifier, rates))


def along(rates: tuple[float, ...], draft: Draft) -> Tensor:
    """[B, n] float64: the rate at every node of a chain; 0 at nodes that a row does not have."""
    ids = draft.tree.ids
    profile = tuple(rates[min(i, len(rates) - 1)] for i in range(ids.shape[1]))
    chances = constant(profile, ids.device, torch.float64).expand(ids.shape)
    return chances if draft.valid is None else chances * draft.valid


def instead_of(real: Tensor, chances: Tensor) -> Tensor:
    """The chances, and NaN where the real ones are: a broken row accepts nothing, and no compiler can leave out the
    work that computes the real ones as unused."""
    return torch.where(real.isnan(), torch.nan, chances)
