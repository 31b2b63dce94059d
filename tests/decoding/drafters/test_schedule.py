"""The arithmetic of schedules, by hand and against the code that it comes from. What they do in a decode is in
test_schedule_decode, that they leave the law of the target alone in test_exact_law and test_build.
"""

import math
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from transformers.generation.candidate_generator import AssistedCandidateGenerator
from transformers.generation.stopping_criteria import ConfidenceCriteria

from specbench.decoding.drafters.schedule import (
    KEEP,
    PRIOR,
    PRIOR_TESTS,
    SHRINK_TESTS,
    UNMEASURED,
    Confidence,
    Heuristic,
    Marginal,
    Schedule,
    scheduled,
)
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Context, Draft, Verdict
from specbench.theory import optimum
from specbench.theory.optimum import Costs
from tests.support.stateful_laws import EDGE
from tests.support.tiny import context_of

END = 9


def begun(schedule: Schedule, k: int, rows: int = 1) -> Context:
    context = context_of([[0]] * rows, 50, k, [END])
    schedule.start(context, k)
    return context


def see(
    schedule: Schedule, context: Context, drafted: int, accepted: int, chances: tuple[float, ...] = (), end: int = -1
) -> int:
    """Let a schedule see one round, with an end token at place `end` of the draft; its next lookahead."""
    ids = torch.zeros((1, drafted), dtype=torch.long)
    ids[:, end : end + 1] = END if end >= 0 else 0
    overlap = torch.tensor([chances or (0.5,) * drafted])
    path = torch.arange(drafted).where(torch.arange(drafted) < accepted, -1).unsqueeze(0)
    verdict = Verdict(path, torch.tensor([accepted]), torch.tensor([0]), overlap)
    schedule.learn(context, Draft(TokenTree.chain(ids)), verdict)
    return int(schedule.lookahead())


# --- the heuristic ----------------------------------------------------------------------------------------------------


def test_the_heuristic_adds_two_and_takes_one() -> None:
    heuristic = Heuristic()
    context = begun(heuristic, 8)
    assert int(heuristic.lookahead()) == 5
    assert [see(heuristic, context, n, a) for n, a in ((5, 5), (7, 7), (8, 8), (8, 7), (7, 0))] == [7, 8, 8, 7, 6]
    assert [see(heuristic, context, 6 - n if n < 5 else 1, 0) for n in range(7)] == [5, 4, 3, 2, 1, 1, 1]
    assert see(heuristic, context, 1, 1) == 3


def test_a_draft_cut_short_is_no_evidence_for_a_longer_one() -> None:
    heuristic = Heuristic()
    context = begun(heuristic, 8)
    assert see(heuristic, context, 3, 3) == 5  # there was no room for more
    assert see(heuristic, context, 0, 0) == 5  # nor for any
    assert see(heuristic, context, 5, 5, end=2) == 5  # what lies behind an end token was never part of the sequence
    assert see(heuristic, context, 5, 5, end=4) == 7
    assert see(heuristic, context, 3, 2) == 6  # but a rejection is one


def test_the_heuristic_starts_within_the_ceiling() -> None:
    heuristic = Heuristic()
    begun(heuristic, 3)
    assert int(heuristic.lookahead()) == 3


@pytest.mark.parametrize("seed", range(4))
def test_the_heuristic_is_that_of_transformers(seed: int) -> None:
    theirs = object.__new__(AssistedCandidateGenerator)
    config = {"num_assistant_tokens_schedule": "heuristic_transient", "assistant_confidence_threshold": 0}
    theirs.assistant_generation_config, theirs.num_assistant_tokens = SimpleNamespace(**config), 5
    ours, generator = Heuristic(), torch.Generator().manual_seed(seed)
    context, k = begun(ours, 1000), 5
    for _ in range(60):
        accepted = min(int(torch.randint(2 * k, (), generator=generator)), k)
        theirs.update_candidate_strategy(None, torch.zeros(1, k + 1, 1), accepted)
        k = see(ours, context, k, accepted)
        assert k == theirs.num_assistant_tokens


# --- confidence -------------------------------------------------------------------------------------------------------


def test_confidence_is_that_of_transformers() -> None:
    logits = torch.randn((64, 5), generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2
    ids = torch.arange(64) % 5
    theirs = ConfidenceCriteria(0.3)
    expected = [theirs(ids[row].view(1, 1), (logits[row : row + 1],)) for row in range(64)]
    assert Confidence(0.3).stops(ids, logits).tolist() == expected
    assert 10 < sum(expected) < 54


def test_confidence_takes_the_word_of_a_draft_that_says_how_sure_it_is_of_its_next_token() -> None:
    ids, logits = torch.tensor([0, 1]), torch.tensor([[9.0, 0.0], [9.0, 0.0]])
    assert Confidence(0.6).stops(ids, logits, torch.tensor([0.5, 0.7])).tolist() == [True, False]


def test_confidence_knows_the_tokens_that_a_law_cannot_draw() -> None:
    logits = torch.tensor([[0.0, -torch.inf], [1.0, 1.0]]).bfloat16()
    assert Confidence(0.6).stops(torch.tensor([0, 1]), logits).tolist() == [False, True]


# --- the marginal rule ------------------------------------------------------------------------------------------------


@dataclass
class ByHand:
    """`Marginal` in plain numbers."""

    costs: tuple[float, ...]

    def __post_init__(self) -> None:
        self.tests, self.hits = [0.0] * len(self.costs), [0.0] * len(self.costs)
        self.prior = PRIOR_TESTS

    def learn(self, chances: tuple[float, ...]) -> None:
        """`chances` are those of the tested positions."""
        keep = KEEP if chances else 1.0
        self.prior *= keep
        for place in range(len(self.costs)):
            self.tests[place] = keep * self.tests[place] + (place < len(chances))
            self.hits[place] = keep * self.hits[place] + (chances[place] if place < len(chances) else 0)

    def best(self) -> int:
        mean = (PRIOR * self.prior + sum(self.hits)) / (self.prior + sum(self.tests))
        values, reached, tokens = [], 1.0, 1.0
        for cost, tests, hits in zip(self.costs, self.tests, self.hits, strict=True):
            reached *= (hits + SHRINK_TESTS * mean) / (tests + SHRINK_TESTS)
            tokens += reached
            values.append(tokens / cost)
        return values.index(max(values)) + 1


@pytest.mark.parametrize("costs", [UNMEASURED, EDGE, Costs(0.05, 0.02, (1.0, 1.1, 1.1, 1.5, 1.5), 0.1)])
def test_the_marginal_rule_is_its_arithmetic(costs: Costs) -> None:
    marginal, hand, seen = Marginal(costs), ByHand(costs.rounds(5)), set()
    context, generator = begun(marginal, 5), torch.Generator().manual_seed(1)
    for turn in range(160):
        drafted = int(torch.randint(0, 6, (), generator=generator))
        accepted = int(torch.randint(0, drafted + 1, (), generator=generator))
        chances = tuple(torch.rand(drafted, generator=generator).pow(5 if turn < 80 else 0.2).tolist())
        hand.learn(chances[: min(accepted + 1, drafted)])
        seen.add(hand.best())
        assert see(marginal, context, drafted, accepted, chances) == hand.best(), turn
    assert len(seen) > 1, "it never adapted"


def settled(costs: Costs, chances: tuple[float, ...]) -> int:
    """The lookahead after many rounds in which all positions were tested and had the same chances as ever."""
    marginal, k = Marginal(costs), len(chances)
    context = begun(marginal, k)
    return [see(marginal, context, k, k, chances) for _ in range(300)][-1]


@pytest.mark.parametrize("c", [0.01, 0.05, 0.1, 0.3])
@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.7, 0.8, 0.9, 0.95])
def test_a_stationary_acceptance_gives_the_best_lookahead_of_the_theory(alpha: float, c: float) -> None:
    best, _ = optimum.best_k(alpha, c, 12)
    assert settled(Costs(c, c, (1.0,), 0.0), (alpha,) * 12) == max(best, 1)


@pytest.mark.parametrize("alpha", [0.3, 0.6, 0.8, 0.95])
def test_the_best_lookahead_is_the_first_at_which_one_more_token_does_not_pay(alpha: float) -> None:
    v = [1 + 0.02 * n + 0.01 * n * n for n in range(11)]
    costs, c = Costs(0.12, 0.08, tuple(v), 0.05), 0.08
    tokens = [sum(alpha**j for j in range(k + 1)) for k in range(11)]
    rounds = [0.0, *costs.rounds(10)]
    gains = (k for k in range(1, 10) if alpha ** (k + 1) / tokens[k] <= (c + v[k + 1] - v[k]) / rounds[k])
    assert settled(costs, (alpha,) * 10) == next(gains, 10)


def test_an_end_token_hides_what_is_behind_it() -> None:
    cut, short = Marginal(EDGE), Marginal(EDGE)
    contexts = begun(cut, 4), begun(short, 4)
    for _ in range(5):
        a = see(cut, contexts[0], 4, 4, (0.9, 0.9, 0.0, 0.0), end=1)
        b = see(short, contexts[1], 2, 2, (0.9, 0.9))
        assert a == b
    assert a > 1


def test_positions_that_are_not_drafted_are_tried_again() -> None:
    marginal = Marginal(Costs(0.2, 0.2, (1.0,), 0.0))
    context = begun(marginal, 4)
    assert [see(marginal, context, 4, 1, (0.9, 0.0)) for _ in range(60)][-1] == 1
    assert max(see(marginal, context, 1, 1, (0.9,)) for _ in range(60)) > 1


def test_what_verification_costs_goes_on_as_it_was_measured_last() -> None:
    costs = Costs(0.5, 0.25, (1.0, 1.25, 2.0), 0.125)
    assert costs.rounds(4) == (1.875, 2.875, 3.875, 4.875)
    assert Costs(0.5, 0.25, (1.0,), 0.0).rounds(2) == (1.5, 1.75)
    assert costs.rounds(0) == ()


def test_names_are_those_of_a_spec() -> None:
    costs = Costs(0.2, 0.1, (1.0,), 0.0)
    assert scheduled("auto", 0.4, costs) == Marginal(costs)
    assert scheduled("auto") == Marginal(UNMEASURED)
    assert scheduled("confidence", 0.7) == Confidence(0.7)
    assert scheduled("heuristic") == Heuristic()
    assert math.isclose(UNMEASURED.rounds(2)[1], 0.2 + 1.1 + 0.03)
