"""Lossy verifiers: rules that accept too much, and report how far their tokens' distribution is from the model's.

A tree of drawn tokens is refused when a method is built: its distance depends on what its other
children might have been, which no verdict sees.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.decoding.loop import Speculate
from specbench.decoding.protocols import Judged, Verifier
from specbench.decoding.randomness import Source, Stream
from specbench.decoding.timing import EVERYWHERE, Spans
from specbench.decoding.tokens import TokenTree, ancestors, constant
from specbench.decoding.types import Draft, Verdict, acceptance, at
from specbench.decoding.verifiers.rejection import (
    Rejection,
    Siblings,
    Walk,
    at_levels,
    every_node,
    left_over,
    nothing_to_judge,
    residual,
    walk,
)
from specbench.errors import UsageError


@dataclass(frozen=True)
class Lenient:
    """Accepts x with probability p(x)/(l q(x)), else uses the residual (p − q)⁺ (Leviathan et al. 2022, A.5).

    The lenience l, in (0, 1], is used only in the comparison of q with p: the residual is that of
    `Rejection`, and l = 1 is `Rejection`. Accepts Σ min(p/l, q) of the drafts and makes no token more
    than 1/l times as likely as the model does. Exact if p is a point mass, as at temperature 0.
    """

    lenience: float
    lossless: ClassVar[bool] = False
    judges: ClassVar[Judged] = "point trees"

    def __post_init__(self) -> None:
        if not 0 < self.lenience <= 1:
            raise ValueError(f"lenience: must be in (0, 1], where 1 is lossless, found {self.lenience}")

    def judge(self, p: Tensor, draft: Draft, rng: Source) -> Verdict:
        if not draft.tree.size:
            return exact_token(p, rng)

        def chance(x: Siblings) -> Tensor:
            return acceptance(x.p, x.q, x.ids) / self.lenience

        def taken(x: Siblings) -> Tensor:
            return torch.minimum(x.p / self.lenience, x.q)

        return accepted_more(p, draft, rng, chance, taken)


@dataclass(frozen=True)
class Typical:
    """Accepts x if p(x) > min(ε, δ exp(−H(p))), H the entropy in nats: typical acceptance
    (Medusa, Cai et al. 2024, §2.3.1; the numbers are those of its code).

    Takes the longest accepted path, of several the one with the highest Σ log p, and draws the token after
    it from p: excess acceptance is not compensated. Exact if p is a point mass, as at temperature 0.
    """

    epsilon: float = 0.09
    delta: float = 0.3
    lossless: ClassVar[bool] = False
    judges: ClassVar[Judged] = "point trees"

    def __post_init__(self) -> None:
        for name, value in (("epsilon", self.epsilon), ("delta", self.delta)):
            if not 0 <= value <= 1:
                raise ValueError(f"{name}: must be in [0, 1], found {value}")

    def judge(self, p: Tensor, draft: Draft, rng: Source) -> Verdict:
        if not draft.tree.size:
            return exact_token(p, rng)
        x = every_node(p, draft)
        typical = self.typical(p)[:, x.parents]
        passed = typical.gather(-1, x.ids.unsqueeze(-1)).squeeze(-1) & x.valid
        path, on, last = longest(draft.tree, passed, x.p.gather(-1, x.ids.unsqueeze(-1)).squeeze(-1))
        token = rng.categorical(at(p, last), Stream.EMIT)

        kept = x.q * typical
        share = kept.sum(-1)  # share of the draws that pass
        distance = (kept - share.unsqueeze(-1) * x.p).abs().sum(-1) / 2  # of q on passing tokens + (1 − share) p from p
        # a passing child on another path decides nothing; failing point masses are at 0
        decides = x.valid & (on | ~passed)
        share, distance = (p.new_zeros(p.shape[:2]).index_add(1, x.parents, one * decides) for one in (share, distance))
        return Verdict(path, on.sum(1), token, at_levels(share, path), distance_along(distance, path))

    def typical(self, p: Tensor) -> Tensor:
        """[..., V] bool: the tokens that pass under the rows p [..., V]."""
        entropy: Tensor = torch.special.entr(p).sum(-1, keepdim=True)
        return p > (self.delta * (-entropy).exp()).clamp_max(self.epsilon)


Rule = Callable[[Siblings], Tensor]


def accepted_more(p: Tensor, draft: Draft, rng: Source, chance: Rule, taken: Rule) -> Verdict:
    """The verdict of a rule that accepts siblings with its own `chance` [B, m], and continues with the
    residual of `Rejection`. taken [B, m, V]: the accepted part of the q that they were drawn from."""
    walked = walk(p, draft, lambda x: rng.bernoulli(chance(x) * x.valid, Stream.ACCEPT))
    token = rng.categorical(left_over(walked), Stream.EMIT)
    emitted, missed = emitted_by(walked, taken)
    distance = (emitted - p).abs().sum(-1) / 2
    return Verdict(
        walked.path, walked.accepted, token, walked.levels(1 - missed), distance_along(distance, walked.path)
    )


def emitted_by(walked: Walk, taken: Rule) -> tuple[Tensor, Tensor]:
    """[B, n + 1, V] the distribution of the token emitted after every node, over the draws of
    its children, and [B, n + 1] the probability that none of them is accepted."""
    first, last = walked.tested[0], walked.tested[-1]
    missed = first.left.new_ones(first.left.shape[:2])
    emitted = torch.zeros_like(first.left)
    for x in walked.tested:
        kept = taken(x) * x.valid.unsqueeze(-1)
        emitted[:, x.parents] += missed[:, x.parents].unsqueeze(-1) * kept
        missed[:, x.parents] *= 1 - kept.sum(-1)
    return emitted + missed.unsqueeze(-1) * residual(last), missed


def exact_token(p: Tensor, rng: Source) -> Verdict:
    """The verdict on an empty draft, on which no rule applies."""
    return replace(nothing_to_judge(p, rng), distance=p.new_zeros((p.shape[0], 1)))


def longest(tree: TokenTree, passed: Tensor, chance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The longest path of nodes that passed [B, n], of several the one with the highest product of chance [B, n].

    → path [B, depth], -1 after its end; on [B, n] whether a node is on it; last [B] the row of its last node.
    """
    above = ancestors(tree.parents, passed.device)
    depths = constant(tree.topology.depths, passed.device)
    length = depths * ~(above & ~passed.unsqueeze(1)).any(-1)  # of the path to a node, 0 if a node on it failed
    logs = torch.where(passed, chance.double().log(), torch.zeros_like(chance, dtype=torch.double))
    weight = (above * logs.unsqueeze(1)).sum(-1)
    most = length.amax(1, keepdim=True)
    end = torch.where(length == most, weight, -torch.inf).argmax(1)
    on = above[end] & (most > 0)
    levels = constant(tuple(range(1, tree.topology.depth + 1)), passed.device)
    at_level = on.unsqueeze(1) & (depths == levels.unsqueeze(1))  # [B, depth, n]
    path = torch.where(at_level.any(-1), at_level.long().argmax(-1), -1)
    return path, on, torch.where(most.squeeze(1) > 0, end + 1, torch.zeros_like(end))


def distance_along(distance: Tensor, path: Tensor) -> Tensor:
    """[B, depth + 1] distance [B, n + 1] at the root and at the nodes of a path [B, depth]; 0 after its end."""
    rows = torch.cat([path.new_zeros((path.shape[0], 1)), path + 1], 1)
    reached = torch.cat([path.new_ones((path.shape[0], 1), dtype=torch.bool), path >= 0], 1)
    return distance.gather(1, rows) * reached


# --- relaxed ----------------------------------------------------------------------------------------------------------
# Relaxed acceptance: while a model reasons, any token is accepted whose probability is close to
# the best one's. As with other lossy rules, trees of drawn tokens are refused.


@dataclass(frozen=True)
class Relaxed:
    """Inside `spans` accepts x if it is one of the `top` likeliest tokens and p(x) ≥ max p − δ; otherwise,
    and outside of the spans, `Rejection` decides (relaxed acceptance of TensorRT-LLM and SGLang).

    So it accepts every token that `Rejection` would. Exact outside of spans, and if p is a
    point mass, as at temperature 0, where the engines compare the softmax at temperature 1.
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
            raise ValueError(f"delta: must be in [0, 1], found {self.delta}")

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
        """[B, n + 1, V] bool: the tokens that are accepted whatever they were drawn from. The
        model's own row decides, even after rejected siblings."""
        assert draft.text is not None, "what is judged is part of a text"
        likeliest = p.topk(min(self.top, p.shape[-1])).values
        good = (p >= likeliest[..., -1:]) & (p >= likeliest[..., :1] - self.delta) & (p > 0)
        return good & self.spans.at_nodes(draft.text, draft.tree).unsqueeze(-1)


# --- synthetic --------------------------------------------------------------------------------------------------------
# Synthetic acceptance: a verifier that does the work of another one and accepts at given rates. The
# output follows no model's distribution: it shows an engine's speed at a given acceptance, for pairs
# with another acceptance or for untrained weights (vLLM and SGLang have such a mode, with other rates).


@dataclass(frozen=True)
class Synthetic:
    """Accepts token i of a chain with probability rates[i], given that all before it were accepted.

    Rates are in [0, 1]; the last one holds for all later positions, so that one rate is the α of the formula.
    `inner` computes and draws the same as without rates, from the probabilities p/q to the token after the accepted
    ones: only the thresholds of its acceptance draws change. `overlap` is the rate at every tested level.
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
    """A source whose acceptance draws use the probabilities [B, n] instead of the requested ones."""

    inner: Source
    chances: Tensor

    def bernoulli(self, probs: Tensor, stream: Stream) -> Tensor:
        used = instead_of(probs, self.chances) if stream is Stream.ACCEPT else probs
        return self.inner.bernoulli(used, stream)

    def categorical(self, probs: Tensor, stream: Stream) -> Tensor:
        return self.inner.categorical(probs, stream)


def synthetic(method: Speculate, rates: tuple[float, ...] | None) -> Speculate:
    """The method with its acceptance at the rates; the method itself without rates.

    UsageError, naming the part, for a method that is not a chain judged by `Rejection`. Reads no weights.
    """
    if rates is None:
        return method
    verifier, drafter = type(method.verifier).__name__, type(method.drafter).__name__
    if not isinstance(method.verifier, Rejection):
        raise UsageError(
            f"--acceptance replaces the acceptance probabilities of Rejection, and {verifier} has others: leave it "
            "out, or choose --method chain"
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
    """The chances, but NaN where the real ones are NaN: a broken row accepts nothing, and no
    compiler can remove the computation of the real ones as unused."""
    return torch.where(real.isnan(), torch.nan, chances)
