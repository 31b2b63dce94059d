"""From one cell at the largest lookahead to all smaller ones, and to those that could win."""

from dataclasses import replace
from itertools import accumulate
from operator import mul
from typing import Any

import pytest

from specbench.judge.candidates import (
    MOST,
    Choice,
    adaptive,
    best_choices,
    contenders,
    lookaheads,
    name_of,
    regrets,
    why_not,
)
from specbench.results.cells import Cell
from specbench.show.run_output import regret_lines
from specbench.spec import drafted_by
from specbench.theory.formulas import expected_tokens
from tests.support.measured import baseline_trace, cell, method_trace, sample

K, ALPHA = 8, 0.7


def row(speedup: float, tokens: float, chances: list[float], k: int = K, **more: Any) -> dict[str, Any]:
    found = {f"acceptance_at_{place}": chance for place, chance in enumerate(chances, 1)}
    about = {"status": "ok", "method": "chain", "k": k, "speedup": speedup, "speedup_low": 0.9 * speedup,
             "speedup_high": 1.1 * speedup, "tokens_per_round": tokens, "lossless": "identical"}  # fmt: skip
    return {**about, **found, **more}


@pytest.mark.parametrize("overhead", [0.0, 0.2])
@pytest.mark.parametrize("per_token", [0.05, 0.3])
def test_smaller_lookaheads_are_those_of_the_formula_if_every_drafted_token_costs_the_same(
    overhead: float, per_token: float
) -> None:
    def speedup(k: int) -> float:
        return expected_tokens(ALPHA, k) / (1 + overhead + per_token * k)

    measured = row(speedup(K), expected_tokens(ALPHA, K), [ALPHA] * K, overhead=overhead)
    found = lookaheads(measured)
    assert [one.k for one in found] == list(range(1, K + 1))
    for one in found:
        assert one.speedup == pytest.approx(speedup(one.k))
        assert (one.low, one.high) == pytest.approx((0.9 * one.speedup, 1.1 * one.speedup))
    (best,) = best_choices([measured])
    assert best.k == max(range(1, K + 1), key=speedup)


def test_rounds_without_a_draft_lower_the_tokens_of_every_lookahead_alike() -> None:
    drafted, chances = 0.4, [0.9, 0.8, 0.6]
    joint = list(accumulate(chances, mul))
    found = lookaheads(row(1.2, 1 + drafted * sum(joint), chances, k=3))
    time = (1 + drafted * sum(joint)) / 1.2
    assert found[-1].speedup == pytest.approx(1.2)
    assert found[0].speedup == pytest.approx((1 + drafted * joint[0]) / (1 + (time - 1) / 3))


def test_an_own_lookahead_alone_where_nothing_else_is_known_and_none_of_a_cell_that_failed() -> None:
    assert [one.k for one in lookaheads(row(1.2, 2.0, []))] == [K]
    blocks = row(1.2, 2.0, [0.7] * K, draft_cost_per="round"), row(1.2, 2.0, [0.7] * K, spec_config="dflash")
    assert [[one.k for one in lookaheads(block)] for block in blocks] == [[K], [K]]
    (unknown,) = lookaheads(row(1.2, float("nan"), []))  # a server that does not say what it drafted
    assert (unknown.k, unknown.speedup) == (K, 1.2)
    of_llama = row(1.2, 2.0, [0.7] * K, backend="llama-server", spec_config="ngram")
    assert [one.k for one in lookaheads(of_llama)] == list(range(3, K + 1)), "with fewer it compares fewer tokens"
    assert [one.k for one in lookaheads({**of_llama, "k": 2})] == [2]
    assert lookaheads(row(1.2, 2.0, [0.7] * K, status="oom")) == []
    assert lookaheads(row(1.2, 2.0, [0.7] * K, lossless="MISMATCH")) == []


def test_the_search_of_a_lookup_costs_the_same_for_any_lookahead() -> None:
    search, per_token, tokens = 0.3, 0.1, expected_tokens(ALPHA, K)
    measured = tokens / (1 + search + per_token * K)
    more = {"method": "prompt-lookup", "draft_cost_per": "round", "c": search / K, "drafted_per_round": K}
    for one in lookaheads(row(measured, tokens, [ALPHA] * K, **more)):
        assert one.speedup == pytest.approx(expected_tokens(ALPHA, one.k) / (1 + search + per_token * one.k))


def choice(name: str, speedup: float, spread: float = 0.05) -> Choice:
    return Choice({"method": name}, 2, speedup, speedup * (1 - spread), speedup * (1 + spread))


def test_those_that_could_be_the_fastest_and_pay_are_measured_again() -> None:
    found = [choice("a", 1.5), choice("b", 1.45), choice("c", 1.2), choice("d", 1.49, 0.5)]
    found.sort(key=lambda one: -one.speedup)
    assert [one.name for one in contenders(found)] == ["a", "d", "b"]
    assert why_not(found[-1], found) == "slower than a"
    assert why_not(choice("e", 0.8), found) == "at most 0.84× as fast as without a draft"
    many = [choice(name, 1.5) for name in "abcd"]
    assert len(contenders(many)) == MOST
    assert why_not(many[-1], many) == f"not among the best {MOST}"
    losing = [choice("a", 0.9), choice("b", 0.89)]
    assert [one.name for one in contenders(losing)] == ["a"], "the best is measured, so that NO is certain"
    assert contenders([]) == []
    policy = Choice({"spec_config": "adaptive"}, 4, 0.5, 0.4, 0.6)
    assert contenders([*many, policy])[MOST:] == [policy], "whatever it promises, for its regret"


def test_where_few_could_be_the_fastest_shorter_drafts_are_measured_too() -> None:
    (best,) = best_choices([row(2.0, 4.0, [0.9] * 8, k=8)])
    assert [one.k for one in contenders([best])] == [8, 4, 2]
    (best,) = best_choices([row(1.3, 1.7, [0.7], k=1)])
    assert [one.k for one in contenders([best])] == [1]
    two = best_choices([row(2.0, 4.0, [0.9] * 8, k=8, method=name) for name in ("chain", "suffix")])
    assert [(one.name, one.k) for one in contenders(two)] == [("chain", 8), ("suffix", 8), ("chain", 4)]


# --- cells that choose K by themselves --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "policy", "name"),
    [
        ({}, False, "chain"),
        ({"schedule": "auto"}, True, "chain --schedule auto"),
        ({"spec_config": "adaptive"}, True, "adaptive"),
        ({"spec_config": '{"enable_adaptive_verification": true}'}, True, '{"enable_adaptive_verification": true}'),
        ({"spec_config": '{"method": "mtp"}'}, False, '{"method": "mtp"}'),
        ({"spec_args": "--speculative-adaptive"}, True, "--speculative-adaptive"),
        ({"spec_config": "ngram", "spec_args": "--more"}, False, "ngram --more"),
    ],
)
def test_policies_and_words_of_engines_keep_the_lookahead_that_they_were_measured_with(
    words: dict[str, str], policy: bool, name: str
) -> None:
    measured = row(1.2, 2.0, [0.7] * K, **words)
    assert (adaptive(measured), name_of(measured)) == (policy, name)
    ours = not policy and not name.startswith(("{", "-"))
    assert [one.k for one in lookaheads(measured)] == (list(range(1, K + 1)) if ours else [K])


@pytest.mark.parametrize(
    ("words", "drafts"),
    [
        ("--spec-type ngram-mod --spec-ngram-mod-n-max 4", "ngram-mod"),
        ("--speculative-algorithm=EAGLE3 --speculative-num-steps 3", "EAGLE3"),
        ('--speculative-config \'{"method": "mtp"}\'', "mtp"),
        ('--speculative-config "{\\"model\\": \\"d\\"}"', "draft-model"),
        ("--spec-draft-n-max 4", "chain"),
        ("--speculative-config '{", "chain"),
    ],
)
def test_the_words_of_a_server_name_what_it_drafts_with(words: str, drafts: str) -> None:
    assert drafted_by(None, words, "chain") == drafts
    assert drafted_by("suffix", words, "chain") == "suffix"


def timed(arm: str, k: int, seconds: float, **more: Any) -> Cell:
    """Ten prompts; every other one takes a tenth longer with an arm whose K is the same in every round."""
    slower = {0: 1.0, 1: 1.0 if arm == "adaptive" else 1.1}
    arms = [
        {"baseline": replace(baseline_trace(range(9)), seconds=2.0),
         "method": replace(method_trace((4, 4)), tokens=tuple(range(9)), seconds=seconds * slower[n % 2])}
        for n in range(10)
    ]  # fmt: skip
    return cell(*(sample(f"p{n}", **one) for n, one in enumerate(arms)), spec_config=arm, k=k, **more)


def test_the_regret_of_an_adaptive_arm_is_against_the_best_static_choice_under_its_load() -> None:
    alone = [timed("adaptive", 7, 1.1), timed("dspark", 4, 1.0), timed("dspark", 7, 1.2)]
    crowded = [timed("adaptive", 7, 2.2, batch=8), timed("dspark", 4, 3.0, batch=8)]
    (_, best, among, one), (row, other, few, two) = regrets([*alone, *crowded])
    assert (best, among, other, few, row["batch"]) == ("dspark with K = 4", 3, "no draft", 2, 8)
    assert one.value == pytest.approx(1.1 / 1.05 - 1)
    assert one.low < one.value < one.high
    assert (two.value, two.low, two.high) == pytest.approx((0.1,) * 3)
    first, second = regret_lines([*alone, *crowded])
    assert "code, adaptive, K 7, batch 1: regret +4.8% of time [" in first
    assert second.endswith("regret +10.0% of time [+10.0%, +10.0%] against no draft, the best of 2 static choices")
    assert regret_lines(alone[1:]) == regret_lines(alone[:1]) == []
