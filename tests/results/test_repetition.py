"""Repeated n-grams and loops: exact on texts made by hand, equal to brute force on all others."""

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.metrics import Trace
from specbench.results.numbers import OUTPUTS, output_columns, outside_loops
from specbench.results.samples import REPEATS, SHORTEST, Loop, loop_of, repeated_ngrams, rounds_before, tail_periods
from tests.support.measured import baseline_trace, cell, method_trace, one_round, sample

Tokens = tuple[int, ...]
WORDS = tuple(range(100, 120))  # twenty tokens, none twice
texts = st.lists(st.integers(0, 2), max_size=40).map(tuple)
cycles = st.lists(st.integers(0, 3), min_size=1, max_size=9)
heads = st.lists(st.integers(0, 3), max_size=12)
looping = st.builds(lambda head, cycle, n: (*head, *(cycle * n)), heads, cycles, st.integers(1, 9))


def periodic(tail: Sequence[int], period: int) -> bool:
    return all(a == b for a, b in zip(tail, tail[period:], strict=False))


def slow_periods(tokens: Tokens) -> list[int]:
    tails = [tokens[len(tokens) - n :] for n in range(1, len(tokens) + 1)]
    return [next(p for p in range(1, len(tail) + 1) if periodic(tail, p)) for tail in tails]


def slow_loop(tokens: Tokens) -> Loop | None:
    """Every tail and every cycle, from the definition."""
    for start in range(len(tokens)):
        tail = tokens[start:]
        for cycle in range(1, len(tail) // REPEATS + 1):
            if len(tail) >= SHORTEST and periodic(tail, cycle):
                return Loop(start, cycle)
    return None


# --- loops ------------------------------------------------------------------------------------------------------------


@given(texts)
def test_the_periods_of_all_tails_are_those_of_brute_force(tokens: Tokens) -> None:
    assert tail_periods(tokens) == slow_periods(tokens)


@given(texts | looping)
def test_the_loop_is_that_of_brute_force(tokens: Tokens) -> None:
    assert loop_of(tokens) == slow_loop(tokens)


@pytest.mark.parametrize(
    ("tokens", "loop"),
    [
        ((), None),
        (WORDS, None),
        ((*WORDS, *[7] * 23), None),
        ((*WORDS, *[7] * 24), Loop(20, 1)),
        ((*WORDS, *WORDS), Loop(0, 20)),
        ((*WORDS, *WORDS[:19]), None),
        ((8, *WORDS[:11], *WORDS[:11]), None),
        ((1, 2, *(3, 4, 5, 6, 7) * 5, 3, 4), Loop(2, 5)),
        ((*(3, 4, 5, 6, 7) * 5, 1), None),
        ((*[1] * 30, 2) * 2, Loop(0, 31)),
    ],
    ids=["nothing", "words", "23", "24", "twice", "not quite", "two short lines", "cut", "got out", "in a cycle"],
)
def test_a_loop_is_a_tail_of_24_tokens_that_has_its_cycle_twice(tokens: Tokens, loop: Loop | None) -> None:
    assert loop_of(tokens) == loop


def comparisons(n: int, cycle: Sequence[int]) -> int:
    """How many tokens are compared to find the periods of a text of n tokens."""
    count = 0

    class Token(int):
        def __eq__(self, other: object) -> bool:
            nonlocal count
            count += 1
            return int(self) == other

        def __ne__(self, other: object) -> bool:
            return not self == other

        __hash__ = int.__hash__

    tail_periods([Token(cycle[i % len(cycle)]) for i in range(n)])
    return count


@pytest.mark.parametrize("cycle", [[1], [1, 2], [1, 1, 1, 1, 2], list(range(1000))])
def test_the_work_grows_with_the_length_and_no_faster(cycle: list[int]) -> None:
    assert comparisons(1000, cycle) <= 4 * 1000


# --- n-grams ----------------------------------------------------------------------------------------------------------


def test_repeated_n_grams_are_those_of_welleck() -> None:
    assert repeated_ngrams(WORDS) == 0
    assert repeated_ngrams((1,) * 13) == 0.9  # ten 4-grams, one of them distinct
    assert repeated_ngrams((1, 2, 3, 4, 1, 2, 3, 4)) == 1 / 5
    assert repeated_ngrams((1, 2) * 3) == 1 / 3
    assert math.isnan(repeated_ngrams((1, 2, 3)))


# --- rounds -----------------------------------------------------------------------------------------------------------


def test_a_round_is_in_the_loop_if_all_its_tokens_are() -> None:
    rounds = [one_round(accepted) for accepted in (2, 0, 3, 1)]  # they emit tokens 0–2, 3, 4–7 and 8–9
    assert [len(rounds_before(rounds, start)) for start in (0, 1, 3, 4, 5, 8, 9, 10)] == [0, 1, 1, 2, 3, 3, 4, 4]


def circling() -> Trace:
    """Ten rounds of two tokens with an overlap of 0.2, then six of four tokens, in a loop, with one of 0.9."""
    rounds = (*[one_round(1, 0.2)] * 10, *[one_round(3, 0.9)] * 6)
    return Trace((*WORDS, *(5, 6) * 12), rounds, 1.0)


def test_alpha_outside_loops_is_over_the_rounds_before_them_and_samples_say_where_they_begin() -> None:
    samples = [sample("p1", method=circling(), baseline=baseline_trace(WORDS))]
    found = output_columns(samples, 44)
    assert found["alpha_outside_loops"] == pytest.approx(0.2)
    assert found["tokens_per_round_outside_loops"] == 2
    assert cell(*samples).row()["alpha"] == pytest.approx((20 * 0.2 + 24 * 0.9) / 44)
    row = samples[0].row()
    assert (row["loop_start"], row["cycle"]) == (20, 2)
    assert (row["baseline_loop_start"], row["baseline_cycle"], row["baseline_repeated_4grams"]) == (None, None, 0)


def test_what_loops_is_counted_by_prompts_and_tokens_of_either_arm() -> None:
    straight = method_trace((4,), range(5))
    samples = [
        sample("p1", method=circling(), baseline=baseline_trace(range(44))),
        sample("p1", repeat=1, method=circling(), baseline=baseline_trace(range(44))),
        sample("p2", method=straight, baseline=baseline_trace([1] * 24)),
    ]
    found = output_columns(samples, 44)
    assert (found["prompts_looping"], found["longest_cycle"], found["prompts_ended_by_eos"]) == (1, 2, 1)
    assert found["looping_share"] == 48 / 93
    assert (found["baseline_prompts_looping"], found["baseline_longest_cycle"]) == (1, 1)
    assert (found["baseline_looping_share"], found["baseline_prompts_ended_by_eos"]) == (24 / 112, 1)
    assert found["repeated_4grams"] == pytest.approx(2 * (41 - 22) / 41 / 3)
    assert tuple(found) == OUTPUTS


def test_an_output_without_a_loop_keeps_all_its_rounds() -> None:
    trace = method_trace((4, 2))
    assert outside_loops(trace) == list(trace.rounds)
    found = output_columns([sample()], 128)
    assert found["alpha_outside_loops"] == cell(sample()).row()["alpha"]
    assert (found["prompts_looping"], found["longest_cycle"], found["looping_share"]) == (0, 0, 0)
