"""Schedules: how many tokens a chain drafts in a round, without a bias.

A schedule may limit a row before it draws, from the past alone, or end it after a token that it keeps. It never drops
a drawn token because of its value: that would change the draft's distribution, and the reported q would be wrong.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.decoding.types import Context, Draft, Verdict
from specbench.theory.optimum import Costs


class Schedule:
    """The rule of one drafter. Its state is one entry per row [B]; rows and sequences are independent.

    By default it has no state, drafts k tokens in every round, and predicts no acceptance.
    """

    static: ClassVar[bool] = False  # every draft has k tokens, and the host reads nothing
    learns: ClassVar[bool] = False  # needs the verdict on the drafter's own drafts, not on shared ones

    def start(self, context: Context, k: int) -> None:
        """Reset the state for new sequences. No draft is longer than k."""

    def admit(self, row: int) -> None:
        """Reset one row for a new sequence."""

    def lookahead(self) -> Tensor | None:
        """[B] the tokens that each row drafts in the next round, at least 1; None: k for all, without a host read."""
        return None

    def stops(self, ids: Tensor, logits: Tensor, sure: Tensor | None = None) -> Tensor | None:
        """[B] whether a row stops after the token ids [B] just drawn, which it keeps.

        logits [B, V'] are the draft's own, before temperature; sure [B]: see `After`. None: no
        row ever stops, without a host read.
        """
        return None

    def believed(self, drawn: int) -> Tensor | None:
        """[B, drawn] the predicted acceptance of each token of the last draft, given that those before it
        are accepted; NaN if missing. None: the schedule predicts none. None is computed for this alone."""
        return None

    def learn(self, context: Context, draft: Draft, verdict: Verdict) -> None:
        """Learn from the verdict on the last draft."""


@dataclass
class Constant(Schedule):
    """Always k tokens. The host reads nothing."""

    static: ClassVar[bool] = True


@dataclass
class Confidence(Schedule):
    """Stops after a token with a draft probability below `threshold`, and keeps that token. If a draft
    predicts the acceptance of its next token, it stops before one that is less likely than that.

    The rule of transformers' `assistant_confidence_threshold` (5.17 and later: generation/stopping_criteria.py,
    `ConfidenceCriteria.__call__`) with a constant threshold; transformers adapts its own if scikit-learn is
    installed. The probability is that of the logits before temperature: at temperature 0 every row is a point
    mass, as there. Costs one host read per drafted token except the k-th, which needs none.
    """

    threshold: float = 0.4
    _held: list[Tensor] = field(default_factory=list, init=False, repr=False, compare=False)  # [B] of each token so far

    def lookahead(self) -> Tensor | None:
        self._held = []  # a draft begins
        return None

    def stops(self, ids: Tensor, logits: Tensor, sure: Tensor | None = None) -> Tensor | None:
        if sure is not None:
            self._held += [sure] if self._held else [torch.full_like(sure, torch.nan), sure]  # it is of the next token
            return sure < self.threshold
        logits = logits.float()
        chance = (logits.gather(-1, ids.unsqueeze(-1)) - logits.logsumexp(-1, keepdim=True)).exp().squeeze(-1)
        self._held.append(chance)
        return chance < self.threshold

    def believed(self, drawn: int) -> Tensor | None:
        if not self._held:
            return None
        unasked = [torch.full_like(self._held[0], torch.nan)] * (drawn - len(self._held))
        return torch.stack([*self._held[:drawn], *unasked], 1)


@dataclass
class Heuristic(Schedule):
    """Two more tokens after a fully accepted draft, one less (at least 1) after any other.

    The rule of transformers' `num_assistant_tokens_schedule="heuristic_transient"` (generation/candidate_generator.py,
    `AssistedCandidateGenerator.update_candidate_strategy`), which restarts with every sequence. A draft shortened by
    the end of the sequence changes nothing when it is fully accepted. Costs one host read per round.
    """

    begin: int = 5
    learns: ClassVar[bool] = True
    _k: int = field(default=0, init=False, repr=False, compare=False)
    _lookahead: Tensor = field(init=False, repr=False, compare=False)

    def start(self, context: Context, k: int) -> None:
        self._k = k
        self._lookahead = torch.full_like(context.pos, min(self.begin, k))

    def admit(self, row: int) -> None:
        self._lookahead[row] = min(self.begin, self._k)

    def lookahead(self) -> Tensor | None:
        return self._lookahead

    def learn(self, context: Context, draft: Draft, verdict: Verdict) -> None:
        drafted, accepted = judged(context, draft, verdict)
        more = torch.where(drafted >= self._lookahead, self._lookahead + 2, self._lookahead)
        after = torch.where(accepted == drafted, more, self._lookahead - 1)
        self._lookahead = after.clamp(1, max(self._k, 1))


UNMEASURED = Costs(first=0.1, later=0.1, verify=tuple(1 + 0.05 * n for n in range(17)), overhead=0.03)

# The prior of `Marginal` and its weights. A test is one drafted token that was judged.
PRIOR = 0.7  # acceptance before any evidence: the mean of the model drafts in Leviathan et al. 2022, Table 3
PRIOR_TESTS = 10.0  # its weight, σ²/τ² with σ² = 0.7 · 0.3 of a test and a spread of τ = 0.15 between prompts
SHRINK_TESTS = 20.0  # the weight of the mean over all positions at each of them, with τ = 0.1 between positions
KEEP = 0.95  # of the evidence after every round: 20 rounds count, as easy and hard passages of a text are even shorter


@dataclass
class Marginal(Schedule):
    """The lookahead K with the highest estimated tokens per second: the maximum of E_K / round(K) for K in 1..k.

    E_K = 1 + Σ p_i with p_i the probability that the first i drafts are accepted, and round(K) from
    `costs`. If E_K is concave and round(K) convex, it is the first K for which p_{K+1}/E_K > (c +
    v(K+1) − v(K)) / round(K) is false. The acceptances by position are those of this sequence: evidence
    decays from round to round and is shrunk towards the mean over all positions, so a position that is
    not drafted for a while returns to that mean and is tried again. Costs one host read per round.
    """

    costs: Costs = UNMEASURED
    learns: ClassVar[bool] = True
    _rounds: Tensor = field(init=False, repr=False, compare=False)  # [k] cost of a round by its lookahead
    _tests: Tensor = field(init=False, repr=False, compare=False)  # [B, 1 + k]: the prior, then every position
    _hits: Tensor = field(init=False, repr=False, compare=False)  # [B, 1 + k]: sums of acceptance probabilities
    _held: tuple[Tensor, ...] = field(default=(), init=False, repr=False, compare=False)  # [B] of each position, now

    def start(self, context: Context, k: int) -> None:
        device = context.pos.device
        self._rounds = torch.tensor(self.costs.rounds(k), dtype=torch.float64, device=device)
        self._tests = torch.zeros((context.rows, 1 + k), dtype=torch.float64, device=device)
        self._tests[:, 0] = PRIOR_TESTS
        self._hits = self._tests * PRIOR

    def admit(self, row: int) -> None:
        self._tests[row] = 0
        self._tests[row, 0] = PRIOR_TESTS
        self._hits[row] = self._tests[row] * PRIOR

    def lookahead(self) -> Tensor | None:
        mean = self._hits.sum(1, keepdim=True) / self._tests.sum(1, keepdim=True)
        acceptance = (self._hits[:, 1:] + SHRINK_TESTS * mean) / (self._tests[:, 1:] + SHRINK_TESTS)
        self._held = acceptance.unbind(1)
        expected = 1 + acceptance.cumprod(1).cumsum(1)
        return (expected / self._rounds).argmax(1) + 1

    def believed(self, drawn: int) -> Tensor | None:
        return torch.stack(self._held[:drawn], 1)

    def learn(self, context: Context, draft: Draft, verdict: Verdict) -> None:
        drafted, accepted = judged(context, draft, verdict)
        tested = torch.minimum(accepted + 1, drafted).unsqueeze(1)
        depth = verdict.overlap.shape[1]
        here = (torch.arange(depth, device=tested.device) < tested).double()
        chance = verdict.overlap.double().clamp_max(1) * here  # less noise than the accepted count, with the same mean
        fade = torch.where(tested > 0, KEEP, 1.0)
        by_position = (1, self._tests.shape[1] - 1 - depth)
        self._tests = fade * self._tests + F.pad(here, by_position)
        self._hits = fade * self._hits + F.pad(chance, by_position)


def judged(context: Context, draft: Draft, verdict: Verdict) -> tuple[Tensor, Tensor]:
    """[B] drafted and accepted tokens of chains; those after a drafted end token do not count."""
    ends = torch.isin(draft.tree.ids, context.eos).long()
    part = ends.cumsum(1) == ends  # includes the first end token
    drafted = (part if draft.valid is None else part & draft.valid).sum(1)
    return drafted, torch.minimum(verdict.accepted, drafted)


def scheduled(name: str, confidence: float = 0.4, costs: Costs | None = None) -> Schedule:
    """The schedule by its name in a spec: constant, auto, heuristic or confidence."""
    known: dict[str, Schedule] = {
        "constant": Constant(),
        "auto": Marginal(costs or UNMEASURED),
        "heuristic": Heuristic(),
        "confidence": Confidence(confidence),
    }
    return known[name]
