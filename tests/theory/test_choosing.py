"""The bandit of `--method auto`, fed with recorded counts and seconds: no clock decides anything here."""

import math
from itertools import pairwise

import pytest

from specbench.metrics import RoundCounts
from specbench.theory.bandit import Arm, Bandit, Decoded, rounds_with, seconds_per_round, spread, tokens_per_round

PLAIN, SHORT, LONG, FOUND = Arm("baseline", 0), Arm("chain", 2), Arm("chain", 8), Arm("suffix", 8)
TEXT = (1, 0, 3, 0, 0, 2, 7, 0)  # in a stretch so many drafts are accepted one after the other before one is rejected


def rounds_of(k: int, text: tuple[int, ...] = TEXT) -> list[RoundCounts]:
    """The rounds that a greedy chain of k takes for a text."""
    found = []
    for accepted in text:
        left = accepted + 1  # the tokens of the stretch, with the correction at its end
        while left:
            emitted = min(left, k + 1)
            hit = k if left > k + 1 or (emitted == k + 1 and left == k + 1) else emitted - 1
            found.append(RoundCounts(k, min(hit + 1, k), min(hit, k), emitted, (0.5,) * min(hit + 1, k)))
            left -= emitted
    return found


def decoded(arm: Arm, rate: float, text: tuple[int, ...] = TEXT) -> Decoded:
    """A decode at so many rounds per second."""
    rounds = rounds_of(arm.k, text)
    return Decoded(arm, [rounds], len(rounds) / rate)


def test_whole_acceptance_goes_on_into_the_next_round_and_ends_with_the_text() -> None:
    whole = RoundCounts(4, 4, 4, 5, (1.0,) * 4)
    assert rounds_with(2, 4, [whole, whole]) == 4, "ten tokens in rounds of three"
    assert rounds_with(4, 4, [whole, whole]) == 2


def test_tokens_per_round_are_taken_from_longer_lookaheads_and_never_from_shorter_ones() -> None:
    seen = [decoded(LONG, 10.0), decoded(SHORT, 10.0)]
    emitted = sum(TEXT) + len(TEXT)
    assert tokens_per_round(SHORT, seen[:1]) == emitted / rounds_with(2, 8, rounds_of(8))
    assert tokens_per_round(LONG, seen) == emitted / len(rounds_of(8)), "what two drafts say of eight is not asked"
    assert math.isnan(tokens_per_round(LONG, seen[1:]))


def test_trees_of_other_sizes_are_other_drafts_and_seconds_are_those_of_the_arm_alone() -> None:
    tree = [RoundCounts(2, 1, 1, 2, (0.5,), nodes=6)]
    other = [RoundCounts(4, 4, 4, 5, (0.5,) * 4, nodes=30)]
    seen = [Decoded(Arm("tree", 2), [tree], 1.0), Decoded(Arm("tree", 4), [other], 1.0)]
    assert tokens_per_round(Arm("tree", 2), seen) == 2
    assert seconds_per_round(SHORT, [decoded(SHORT, 10.0), decoded(LONG, 1.0)]) == pytest.approx(0.1)


def test_what_was_only_counted_tells_tokens_and_no_seconds() -> None:
    counted = Decoded(FOUND, [rounds_of(8, (7, 7, 7))], None)
    seen = [decoded(PLAIN, 10.0, (0,) * 9), decoded(FOUND, 9.0, (0,) * 9), counted]
    bandit = Bandit([PLAIN, FOUND], seen)
    assert seconds_per_round(FOUND, seen) == pytest.approx(1 / 9)
    assert tokens_per_round(FOUND, seen) > 2
    assert bandit.choose() == FOUND, "what another one decoded speaks for it"
    assert Bandit([PLAIN, FOUND], [seen[0], counted]).choose() == FOUND, "how long its rounds take is not known"


def test_every_choice_is_tried_once_and_then_the_one_with_the_most_tokens_per_second_until_its_luck_ends() -> None:
    bandit = Bandit([PLAIN, SHORT, LONG])
    order = []
    for _ in range(3):
        arm = bandit.choose()
        order.append(arm)
        bandit.seen.append(decoded(arm, 10.0))
    assert order == [PLAIN, SHORT, LONG]
    rates = {PLAIN: 10.0, SHORT: 9.0, LONG: 4.0, FOUND: 8.0}
    texts = {PLAIN: (0,) * 20, SHORT: TEXT, LONG: TEXT, FOUND: (6, 5, 7)}
    bandit = Bandit(list(rates))
    for _ in range(60):
        arm = bandit.choose()
        bandit.seen.append(decoded(arm, rates[arm], texts[arm]))
    last = [one.arm for one in bandit.seen[20:]]
    assert last.count(FOUND) >= 0.9 * len(last)
    bandit = Bandit([PLAIN, FOUND])
    bandit.seen += [decoded(PLAIN, 10.0, (0,) * 20), decoded(FOUND, 9.0, (7, 7))]
    chosen = []
    for _ in range(40):
        chosen.append(arm := bandit.choose())
        bandit.seen.append(decoded(arm, 10.0 if arm == PLAIN else 9.0, (0,) * 20))
    assert chosen[0] == FOUND
    assert chosen[-1] == PLAIN


def test_the_baseline_is_never_in_doubt_and_others_less_with_every_decode() -> None:
    bandit = Bandit([PLAIN, SHORT])
    doubts = []
    for _ in range(6):
        bandit.seen += [decoded(PLAIN, 10.0, (0,) * 9), decoded(SHORT, 9.0)]
        doubts.append(bandit.doubts())
    assert {one["baseline"] for one in doubts} == {0.0}
    assert all(after["chain"] < before["chain"] for before, after in pairwise(doubts[1:]))
    assert spread([0.5]) == pytest.approx(0.25)
    assert spread([0.0, 1.0] * 500) == pytest.approx(0.5, rel=0.01)


def test_recorded_times_give_the_same_choices_again() -> None:
    def course() -> list[Arm]:
        bandit, found = Bandit([PLAIN, SHORT, LONG, FOUND]), []
        for number in range(30):
            found.append(arm := bandit.choose())
            bandit.seen.append(decoded(arm, 8.0 + (number * 7 % 5), TEXT[number % 3 :]))
        return found

    assert course() == course()
