"""What schedules make of a decode: the same tokens, as many drafts as a row has alone, spans; a wrong one is caught."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from specbench.decoding.decode import decode
from specbench.decoding.drafters.chain import ModelDrafter
from specbench.decoding.drafters.schedule import Confidence, Constant, Schedule
from specbench.decoding.loop import Speculate
from specbench.decoding.randomness import Source, seeded
from specbench.decoding.timing import WallClock
from specbench.decoding.types import Context, Draft
from specbench.decoding.verifiers.rejection import Rejection, TokenMatch
from specbench.metrics import RoundCounts, Trace
from specbench.models.network.causal import Causal
from specbench.models.network.sampling import Sampling
from tests.decoding.test_greedy import NEW, V, draft_of, generated, random_prompts, target_of
from tests.support.laws import EXACT
from tests.support.stateful_laws import SCHEDULES, history_error
from tests.support.toys import CPU, KINDS, Toy, random_pair

K, END = 7, 5
every = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)


def run(schedule: Schedule, prompts: Sequence[Sequence[int]]) -> list[Trace]:
    """A tiny pair at temperature 0 in one ragged batch, its draft wrong now and then."""
    target, draft = (Causal(net(torch.float64), Sampling(0), V) for net in (target_of, draft_of))
    method = Speculate(ModelDrafter(draft, K, schedule), target, Rejection())
    return decode(method, prompts, new=NEW, eos=[END], rng=seeded(range(len(prompts)), CPU), device=CPU)


def roomy(trace: Trace) -> list[RoundCounts]:
    """The rounds that could use K drafts; in the others a row has fewer."""
    before = accumulate((done.emitted for done in trace.rounds), initial=0)
    return [done for done, emitted in zip(trace.rounds, before, strict=False) if NEW - emitted > K]


@cache
def expected() -> list[tuple[int, ...]]:
    """What transformers emits after each of the prompts."""
    return [generated(target_of(torch.float64), prompt, NEW, [END]) for prompt in random_prompts(8)]


@every
def test_at_temperature_0_no_schedule_changes_a_token(schedule: Schedule) -> None:
    traces = run(schedule, random_prompts(8))
    assert [t.tokens for t in traces] == expected()
    lengths = {r.drafted for t in traces for r in roomy(t)}
    assert lengths == {K} if schedule == Constant() else len(lengths) > 1, "only a constant lookahead is constant"


@pytest.mark.slow
@every
def test_a_sequence_does_not_depend_on_those_before_it_or_beside_it(schedule: Schedule) -> None:
    prompts = random_prompts(4)
    alone = [run(schedule, (prompt,))[0] for prompt in prompts]
    for order in (prompts, prompts[::-1]):
        again = {prompt: run(schedule, (prompt,))[0] for prompt in order}
        assert [(again[p].tokens, again[p].rounds) for p in prompts] == [(t.tokens, t.rounds) for t in alone]
    assert [t.tokens for t in run(schedule, prompts)] == [t.tokens for t in alone]


@dataclass(frozen=True, eq=False)
class Slow(Toy):
    """Takes a second before the first token of a draft, a quarter of one between two tokens."""

    now: ClassVar[list[float]] = [0.0]

    def number(self, context: Context) -> Tensor:
        self.now[0] += 1
        return super().number(context)

    def after(self, number: Tensor, token: Tensor) -> Tensor:
        self.now[0] += 0.25
        return super().after(number, token)


def test_the_first_token_of_a_draft_is_timed_apart() -> None:
    clock, (p, q) = WallClock(now=lambda: Slow.now[0]), random_pair(0, 3, 3)
    method = Speculate(ModelDrafter(Slow(q), 3, clock=clock.under("draft")), Toy(p), Rejection(), clock=clock)
    (trace,) = decode(method, [[0]], new=20, eos=(), rng=seeded([1], CPU), device=CPU, clock=clock)
    rounds = len(trace.rounds)
    assert trace.rounds[-1].usable < 3 == trace.rounds[-1].drafted  # it drafts as many where it cannot use them
    assert trace.spans["draft/first"] == rounds
    assert trace.spans["draft"] == rounds + 0.25 * 3 * rounds


@dataclass(frozen=True)
class Dropping(ModelDrafter):
    """Stops before it keeps a token of low confidence: drops a drawn token for what it is."""

    def propose(self, context: Context, budget: int, rng: Source, lag: int = 1) -> Draft:
        draft = super().propose(context, budget, rng, lag)
        if draft.q is None:
            return draft
        sure = draft.q.gather(-1, draft.tree.ids.unsqueeze(-1)).squeeze(-1) >= 0.4
        return replace(draft, valid=sure.long().cumprod(1).bool())


@pytest.mark.parametrize("verifier", [Rejection(), TokenMatch()], ids=["chain", "token-match"])
def test_a_drafter_that_drops_what_it_drew_is_caught(verifier: Rejection | TokenMatch) -> None:
    """Not behind token match, which is lossless whatever is drafted and however."""
    worst = {}
    for drafter in (Dropping, ModelDrafter):
        errors = []
        for seed in range(len(KINDS)):
            p, q = random_pair(seed, 3, 4)
            errors.append(history_error(Speculate(drafter(Toy(q), 2, Confidence()), Toy(p), verifier), p, 4))
        worst[drafter] = max(errors)
    assert worst[ModelDrafter] <= EXACT
    assert worst[Dropping] > 1e-3 if isinstance(verifier, Rejection) else worst[Dropping] <= EXACT
