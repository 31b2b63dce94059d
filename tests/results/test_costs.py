"""The costs of a decode whose phases are known beforehand: an oracle with a clock that only the models move.

Sequences are short, so that many rounds are cut by the end of one: what they drafted in vain is drafted all the same.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from torch import Tensor

from specbench.decoding.decode import decode
from specbench.decoding.drafters.chain import ModelDrafter, NoDraft
from specbench.decoding.drafters.lookup import PromptLookup
from specbench.decoding.drafters.schedule import Confidence
from specbench.decoding.loop import Speculate
from specbench.decoding.protocols import Drafter
from specbench.decoding.randomness import Source, seeded
from specbench.decoding.timing import WallClock
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Context
from specbench.judge.significance import METRICS
from specbench.metrics import RoundCounts, Trace
from specbench.results.numbers import cost_columns as columns
from specbench.results.numbers import numbers, timing
from specbench.results.samples import Sample
from specbench.theory.waterfall import TERMS
from tests.support.measured import one_round, sample
from tests.support.toys import CPU, Toy, random_pair
from tests.test_metrics import Hand, SlowRejection

V, K, NEW = 4, 4, 9
FIRST, LATER = 0.5, 0.125  # seconds of the first drafted token of a round, and of every later one
PASS, NODE, JUDGE = 1.0, 0.25, 0.25  # of the target's pass, of every drafted token in it, and of the acceptance
PROMPTS = [(a, b) for a in range(V) for b in range(V)]


@dataclass(frozen=True, eq=False)
class Target(Toy):
    hand: Hand

    def probs(self, context: Context, tree: TokenTree, refeed: int = 0) -> Tensor:
        self.hand.now += PASS + NODE * tree.size
        return super().probs(context, tree, refeed)


@dataclass(frozen=True, eq=False)
class Small(Toy):
    hand: Hand

    def number(self, context: Context) -> Tensor:
        self.hand.now += FIRST  # once per call of `sample`, before the first token
        return super().number(context)

    def after(self, number: Tensor, token: Tensor) -> Tensor:
        self.hand.now += LATER  # between two tokens
        return super().after(number, token)

    def sample(self, context: Context, k: int, rng: Source, *rest: Any) -> tuple[Tensor, Tensor]:
        ids, rows = super().sample(context, k, rng, *rest)
        self.hand.now -= LATER * (len(ids[0]) == k)  # the toy steps once more behind its last token, a model does not
        return ids, rows


def arms(
    drafter: str = "model", new: int = NEW, prompts: Sequence[tuple[int, ...]] = PROMPTS
) -> tuple[list[Trace], list[Trace]]:
    """The traces of baseline and method over all prompts, one after the other."""
    hand = Hand()
    clock = WallClock(now=hand)
    p, q = random_pair(0, V, 4)
    small, laps = Small(q, hand), clock.under("draft")
    parts: dict[str, Drafter] = {
        "model": ModelDrafter(small, K, clock=laps),
        "confidence": ModelDrafter(small, K, Confidence(0.5), clock=laps),
        "lookup": PromptLookup(K),
    }
    traces = []
    for part in (NoDraft(), parts[drafter]):
        method = Speculate(part, Target(p, hand), SlowRejection(hand), clock=clock)
        runs = (
            decode(method, [one], new=new, eos=(), rng=seeded([seed], CPU), device=CPU, clock=clock)
            for seed, one in enumerate(prompts)
        )
        traces.append([trace for run in runs for trace in run])
    return traces[0], traces[1]


def samples(drafter: str = "model", new: int = NEW) -> list[Sample]:
    pairs = zip(*arms(drafter, new), strict=True)
    return [
        sample(f"p{n}", baseline=baseline, method=method, turn=n, prompt_tokens=2)
        for n, (baseline, method) in enumerate(pairs)
    ]


def exactly(value: float) -> float:
    return pytest.approx(value, rel=1e-12, abs=1e-12)


STEP = PASS + JUDGE
DRAFT = FIRST + (K - 1) * LATER
ROUND = DRAFT + PASS + K * NODE + JUDGE


def test_every_drawn_token_is_counted_in_c_also_where_the_end_of_the_sequence_leaves_no_use_for_it() -> None:
    cut = [r for trace in arms()[1] for r in trace.rounds if r.surplus]
    assert len(cut) > len(PROMPTS) / 2, "hardly any round was cut"
    assert any(r.usable == 0 for r in cut), "no round was cut whole"
    found = numbers(samples(), K)
    assert found["c"] == exactly(DRAFT / K / STEP)
    assert found["draft_token_ms"] == exactly(1000 * DRAFT / K)
    assert found["draft_first_ms"] == exactly(1000 * FIRST)
    assert found["v"] == exactly((PASS + K * NODE) / PASS)
    assert found["v_low"] == exactly(found["v"]), "every prompt has the same"
    assert found["v_high"] == exactly(found["v"])
    assert found["round_ms"] == exactly(1000 * ROUND)
    assert K * found["c"] + found["v"] + found["overhead"] == exactly(ROUND / STEP)


def test_a_chain_drafts_k_tokens_in_every_round_and_as_many_are_verified() -> None:
    found = numbers(samples(), K)
    assert found["drafted"] == K * found["rounds"]
    assert found["drafted_per_round"] == found["nodes_per_round"] == K
    assert found["draft_hit_rate"] == 1
    assert found["accepted_per_drafted"] == exactly(found["accepted"] / (K * found["rounds"]))


@pytest.mark.parametrize("new", [2, 3, NEW, 40])
def test_rounds_that_are_cut_short_lose_what_the_rest_of_the_waterfall_cannot_say(new: int) -> None:
    """Every round costs the same here, so the terms are nothing but the tokens that cut rounds did not emit."""
    found = numbers(samples(new=new), K)
    reached = [found.get(f"acceptance_at_{i}", 0.0) for i in range(1, K + 1)]
    whole = 1 + math.fsum(math.prod(reached[:i]) for i in range(1, K + 1))
    cut = found["term_truncated"]
    assert found["speedup_calibrated"] - cut == exactly(whole * STEP / ROUND)
    assert cut + found["term_rest"] == exactly((found["tokens_per_round"] - whole) * STEP / ROUND)
    assert cut <= 0
    if new <= 3:  # a text of n tokens that always accepts, in rounds of K + 1
        assert abs(found["term_rest"]) < abs(cut)
    assert found["speedup_ideal"] + math.fsum(found[f"term_{t}"] or 0 for t in TERMS) == exactly(found["speedup"])


def test_compare_counts_them_too() -> None:
    rows = [one.row() for one in samples()]
    over, under = (
        math.prod(sum(r[name] for r in rows) for name in part) for part in (METRICS["c"].over, METRICS["c"].under)
    )
    assert over / under == exactly(numbers(samples(), K)["c"])


def test_what_a_schedule_does_not_ask_for_is_not_drafted() -> None:
    traces = arms("confidence")[1]
    rounds = [r for trace in traces for r in trace.rounds]
    assert len({r.drafted for r in rounds}) > 1
    assert not any(r.surplus for r in rounds)  # it knows what is left
    seconds = math.fsum(trace.spans["draft"] for trace in traces)
    expected = math.fsum(FIRST + LATER * (r.drafted - 1) for r in rounds if r.drafted)
    assert seconds == exactly(expected)


def test_a_lookup_that_finds_more_than_the_rest_of_the_sequence_has_found_it() -> None:
    rounds = [r for trace in arms("lookup")[1] for r in trace.rounds]
    assert any(r.drafted and not r.usable for r in rounds)
    assert any(r.drafted == 0 for r in rounds)
    hits = sum(r.drafted > 0 for r in rounds) / len(rounds)
    assert numbers(samples("lookup"), K)["draft_hit_rate"] == exactly(hits)
    assert hits < 1


def test_the_first_token_is_that_of_the_rounds_that_drafted_one() -> None:
    """Half of the rounds have no draft, and no first token: they are no part of its mean."""
    rounds = (one_round(2), RoundCounts(0, 0, 0, 1, ()), one_round(0), RoundCounts(0, 0, 0, 1, ()))
    one = sample()
    spans = {**one.method.spans, "draft": 0.02, "draft/first": 0.006}
    one = replace(one, method=replace(one.method, rounds=rounds, spans=spans))
    found = columns([one], timing([one.baseline]), timing([one.method]))
    assert found["draft_first_ms"] == exactly(3)
    assert found["draft_token_ms"] == exactly(1000 * 0.02 / (2 * 4))
