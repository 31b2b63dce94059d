"""Counts, overlaps and costs: by hand, by enumeration, and from decodes of toy models under a clock that we turn."""

import math
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.decoding import loop
from specbench.decoding.decode import decode
from specbench.decoding.drafters.chain import ModelDrafter, NoDraft
from specbench.decoding.loop import Speculate
from specbench.decoding.protocols import Verifier
from specbench.decoding.randomness import Source, seeded
from specbench.decoding.timing import CudaClock, NullClock, Under, WallClock, between, by_phase
from specbench.decoding.tokens import TokenTree
from specbench.decoding.types import Context, Draft, Verdict
from specbench.decoding.verifiers import rejection as token_match
from specbench.decoding.verifiers import rejection as walk
from specbench.decoding.verifiers.rejection import Rejection, TokenMatch
from specbench.metrics import (
    RoundCounts,
    Trace,
    acceptance,
    acceptance_by_position,
    lengths,
    overlap_by_level,
    speedup_of_totals,
)
from specbench.theory import formulas
from specbench.theory.optimum import Phases, Timing, measured_costs, phases
from tests.laws.mutants import Mutant, catches, mutants
from tests.support.cases import quick_or_slow
from tests.support.device_clock import DeviceTime
from tests.support.laws import EXACT, one_round
from tests.support.toys import CPU, KINDS, PROMPT, Stopping, Toy, Tree, chain, methods, number_of, random_pair

both = pytest.mark.parametrize("verifier", [Rejection(), TokenMatch()], ids=lambda verifier: type(verifier).__name__)


def test_acceptance_by_hand() -> None:
    # three drafted: one accepted; all accepted; the second is an end token; clipped to one draft, rejected
    rounds = [
        RoundCounts(3, 2, 1, 2, (0.5, 0.25)),
        RoundCounts(3, 3, 3, 4, (0.75, 1.0, 0.5)),
        RoundCounts(3, 2, 2, 2, (1.0, 0.5)),
        RoundCounts(1, 1, 0, 1, (0.5,)),
    ]
    found = acceptance(rounds)
    assert (found.rounds, found.drafted, found.tested, found.accepted, found.emitted) == (4, 10, 8, 6, 9)
    assert found.alpha == 5.0 / 8
    assert found.alpha_tested == 6 / 8
    assert found.accepted_per_drafted == 6 / 10
    assert found.tokens_per_round == 9 / 4
    assert found.by_position == (3 / 4, 2 / 3, 1.0)  # of those tested at a position


def test_nothing_to_divide_by_is_no_number() -> None:
    empty, undrafted = acceptance([]), acceptance([RoundCounts(0, 0, 0, 1, ())])
    assert all(map(math.isnan, (empty.alpha, empty.alpha_tested, empty.accepted_per_drafted, empty.tokens_per_round)))
    assert math.isnan(undrafted.alpha)
    assert undrafted.tokens_per_round == 1
    assert undrafted.by_position == ()
    assert math.isnan(speedup_of_totals([], [], [], []))


def test_speedup_is_a_ratio_of_totals_per_token() -> None:
    assert speedup_of_totals([1.0, 3.0], [10, 30], [1.0, 1.0], [10, 30]) == 2.0
    assert speedup_of_totals([4.0], [40], [1.0], [20]) == 2.0  # half the tokens in a quarter of the time


def expected_tokens(accepted: Tensor, k: int) -> float:
    """1 + Σ over all prefixes of up to k drafts of the product of their rows of `accepted` [N, V]."""
    vocab, reached, total = accepted.shape[1], torch.ones(1, dtype=torch.float64), 1.0
    number = torch.tensor([number_of(PROMPT, vocab)])
    for _ in range(k):
        reached = (reached.unsqueeze(1) * accepted[number]).flatten()
        number = (number.unsqueeze(1) * vocab + 1 + torch.arange(vocab)).flatten()
        total += reached.sum().item()
    return total


def emitted_on_average(method: Speculate, k: int) -> float:
    outcomes = one_round(method, [PROMPT], len(PROMPT) + k + 1)
    return outcomes.mean(outcomes.step.round.emitted).item()


@pytest.mark.parametrize(("vocab", "k"), [(2, 4), (3, 3), (4, 2)])
@pytest.mark.parametrize("seed", range(len(KINDS)))
def test_the_expected_number_of_tokens_is_the_closed_form(vocab: int, k: int, seed: int) -> None:
    p, q = random_pair(seed, vocab, k + 1)
    rejection, match = emitted_on_average(chain(p, q, k), k), emitted_on_average(chain(p, q, k, TokenMatch()), k)
    assert rejection == pytest.approx(expected_tokens(torch.minimum(p, q), k), abs=EXACT)
    assert match == pytest.approx(expected_tokens(p * q, k), abs=EXACT)
    assert match <= rejection + EXACT


@pytest.mark.parametrize("k", [1, 2, 4])
def test_equal_acceptance_everywhere_gives_the_formula_of_leviathan(k: int) -> None:
    p, q = random_pair(KINDS.index("flat"), 3, k + 1)
    alpha = torch.minimum(p[0], q[0]).sum().item()
    assert emitted_on_average(chain(p, q, k), k) == pytest.approx(formulas.expected_tokens(alpha, k), abs=EXACT)


def quick(widths: tuple[int, ...], how: str, end: int, eos: tuple[int, ...], verifier: Verifier) -> bool:
    return widths == (3,) or how == "top" or isinstance(verifier, Rejection)


LEVELS = product([(3,), (2, 1)], ["iid", "without", "top"], [4, 2], [(), (2,)], [Rejection(), TokenMatch()])


@pytest.mark.parametrize(("widths", "how", "end", "eos", "verifier"), quick_or_slow(LEVELS, quick))
def test_the_overlap_of_a_level_is_its_chance_of_acceptance(
    widths: tuple[int, ...], how: str, end: int, eos: tuple[int, ...], verifier: Verifier
) -> None:
    for seed, kind in product(range(len(KINDS)), (Tree, Stopping)):
        p, q = random_pair(seed, 3, len(widths) + 1)
        outcomes = one_round(Speculate(kind((Toy(q),), widths, how), Toy(p), verifier), [PROMPT], end, eos, len(widths))
        done, level = outcomes.step.round, torch.arange(len(widths))
        tested, accepted = (level < n.unsqueeze(1) for n in (done.tested, done.accepted))
        assert torch.allclose(outcomes.mean(done.overlap), outcomes.mean(accepted), rtol=0, atol=EXACT), (seed, kind)
        assert not done.overlap[~tested].any()
        assert (done.accepted <= done.tested).all()
        assert (done.tested <= torch.minimum(done.drafted, done.emitted)).all()


def test_where_an_accepted_path_ends_before_others_nothing_is_accepted_at_the_next_level() -> None:
    ended, whole = RoundCounts(3, 1, 1, 2, (0.5,)), RoundCounts(3, 3, 3, 4, (0.75, 0.5, 1.0))
    assert (ended.reached, whole.reached) == (2, 3)
    assert RoundCounts(3, 1, 1, 1, (0.5,)).reached == 1  # the sequence ended there
    assert acceptance_by_position([ended, whole]) == (1.0, 0.5, 1.0)
    assert overlap_by_level([ended, whole]) == (0.625, 0.25, 1.0)
    assert formulas.expected_tokens_by_position(acceptance_by_position([ended, whole])) == 3.0  # (2 + 4) / 2


def test_rows_of_float32_make_no_alpha_above_one() -> None:
    rounds = [RoundCounts(1, 1, 1, 2, (1 + 1e-7,))]
    assert acceptance(rounds).alpha == 1.0
    assert overlap_by_level(rounds) == (1.0,)


def test_a_branch_that_ends_early_is_not_tested_further() -> None:
    p, q = random_pair(0, 3, 3)
    second = int(q[number_of(PROMPT, 3)].topk(2).indices[1])  # the second child is left without a child of its own
    method = Speculate(Stopping((Toy(q),), (2, 1), "top", stop=second), Toy(p), Rejection())
    step = one_round(method, [PROMPT], 4).step
    first_node, tested = step.verdict.path[:, 0], step.round.tested
    assert set(tested[first_node == 0].tolist()) == {2}
    assert set(tested[first_node == 1].tolist()) == {1}


def level_check(widths: tuple[int, ...], how: str, eos: tuple[int, ...], verifier: Verifier) -> partial[None]:
    return partial(test_the_overlap_of_a_level_is_its_chance_of_acceptance, widths, how, 4, eos, verifier)


SIBLINGS = level_check((3,), "iid", (), Rejection())
ENDS = level_check((2, 1), "top", (2,), Rejection())
REACHED = RoundCounts.reached.fget  # type: ignore[attr-defined]
MUTANTS: dict[str, Mutant] = {
    "the misses of siblings averaged": (
        *(walk.overlap, "acceptance(x.p, x.q, x.ids)", "torch.minimum(x.p, x.q).sum(-1)"),
        SIBLINGS,
    ),
    "a chance of rejection below zero": (walk.overlap, ".clamp_min(0)", "", SIBLINGS),
    "tests behind the end counted": (
        *(loop.count, "torch.minimum(verdict.accepted + tried_further(tree, valid, verdict), emitted)"),
        *("verdict.accepted + tried_further(tree, valid, verdict)", ENDS),
    ),
    "accepted behind the end": (
        *(loop.count, "torch.minimum(verdict.accepted, emitted)", "verdict.accepted"),
        ENDS,
    ),
    "a sibling matched twice": (
        *(token_match.unseen, "x.p.scatter(-1, x.ids.unsqueeze(-1), 0)", "x.p"),
        level_check((3,), "iid", (), TokenMatch()),
    ),
    "levels reached are those tested": (
        *(REACHED, "self.tested + ended", "self.tested"),
        test_where_an_accepted_path_ends_before_others_nothing_is_accepted_at_the_next_level,
    ),
    "levels reached behind the end": (
        *(REACHED, " and self.emitted > self.accepted", ""),
        test_where_an_accepted_path_ends_before_others_nothing_is_accepted_at_the_next_level,
    ),
    "alpha up to two": (acceptance, ", 1.0)", ", 2.0)", test_rows_of_float32_make_no_alpha_above_one),
    "the alpha of a level up to two": (
        *(overlap_by_level, ", 1.0)", ", 2.0)"),
        test_rows_of_float32_make_no_alpha_above_one,
    ),
}


@mutants(MUTANTS)
def test_a_wrong_count_is_caught(mutant: Mutant) -> None:
    catches(*mutant)


@pytest.mark.parametrize("name", methods(3))
def test_counts_of_a_decode_add_up(name: str) -> None:
    prompts = [(0,), (1, 0), (0, 1, 1), (1, 1)]
    traces = decode(methods(3)[name], prompts, new=12, eos=(2,), rng=seeded(range(4), CPU), device=CPU)
    for trace in traces:
        assert sum(done.emitted for done in trace.rounds) == len(trace.tokens) <= 12
        assert len(trace.tokens) == 12 or trace.tokens[-1] == 2
        assert 2 not in trace.tokens[:-1]
        for place, done in enumerate(trace.rounds, start=1):
            last = place == len(trace.rounds)
            assert done.accepted <= done.tested <= done.drafted
            assert len(done.overlap) == done.tested
            assert done.emitted == done.accepted + 1 or (last and done.emitted == done.accepted)


@both
def test_alpha_by_overlap_agrees_with_alpha_by_counting(verifier: Verifier) -> None:
    p, q = random_pair(0, 8, 3)
    traces = decode(chain(p, q, 4, verifier), [PROMPT] * 32, new=200, eos=(), rng=seeded(range(32), CPU), device=CPU)
    rounds = [done for trace in traces for done in trace.rounds]
    found = acceptance(rounds)
    variance = math.fsum(a * (1 - a) for done in rounds for a in done.overlap)  # of a sum of tests, given their chances
    assert abs(found.alpha - found.alpha_tested) <= 4 * math.sqrt(variance) / found.tested
    assert 0.1 < found.alpha < 0.9
    unclipped = acceptance([done for done in rounds if done.usable == 4 and done.emitted == done.accepted + 1])
    assert formulas.expected_tokens_by_position(unclipped.by_position) == pytest.approx(unclipped.tokens_per_round)


@dataclass
class Hand:
    """A clock that stands still until somebody moves it."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True, eq=False)
class Slow(Toy):
    """Takes `seconds` for a pass over one token, half as long again for a pass over more."""

    hand: Hand
    seconds: float

    def probs(self, context: Context, tree: TokenTree, refeed: int = 0) -> Tensor:
        self.hand.now += self.seconds * (1.5 if tree.size else 1)
        return super().probs(context, tree, refeed)

    def sample(self, context: Context, k: int, rng: Source, *rest: Any) -> tuple[Tensor, Tensor]:
        self.hand.now += self.seconds * k
        return super().sample(context, k, rng, *rest)


@dataclass(frozen=True)
class SlowRejection(Rejection):
    hand: Hand

    def judge(self, p: Tensor, draft: Draft, rng: Source) -> Verdict:
        self.hand.now += 0.25
        return super().judge(p, draft, rng)


def timing(trace: Trace) -> Timing:
    drafted = sum(done.drafted for done in trace.rounds)
    spans = trace.spans
    return Timing(trace.seconds, spans["draft"], spans["verify"], len(trace.rounds), drafted, len(trace.tokens))


def test_costs_are_those_of_the_models() -> None:
    hand = Hand()
    clock = WallClock(now=hand)
    p, q = random_pair(0, 3, 3)
    target, draft, rule = Slow(p, hand, 1.0), Slow(q, hand, 0.125), SlowRejection(hand)
    arms = []
    for drafter in (NoDraft(), ModelDrafter(draft, 2)):
        method = Speculate(drafter, target, rule, clock=clock)
        arms += decode(method, [PROMPT], new=31, eos=(), rng=seeded([1], CPU), device=CPU, clock=clock)
    assert arms[0].spans == {"host": 0.0, "draft": 0.0, "verify": 31.0, "accept": 31 * 0.25}
    assert arms[0].seconds == 31 * 1.25
    assert set(arms[1].spans) == {"host", "draft", "verify", "accept"}
    assert sum(arms[1].spans.values()) == arms[1].seconds

    baseline, method = map(timing, arms)
    found = measured_costs(baseline, method)
    assert found.baseline_step_seconds == 1.25
    assert method.drafted == 2 * method.rounds  # also where a row could not use them
    assert sum(done.usable for done in arms[1].rounds) < method.drafted
    assert found.c == pytest.approx(0.125 / 1.25)
    assert found.v == pytest.approx(arms[1].spans["verify"] / method.rounds)
    k = method.drafted / method.rounds
    assert k * found.c + found.v + found.overhead == pytest.approx(found.round_seconds / found.baseline_step_seconds)
    measured = speedup_of_totals([baseline.seconds], [baseline.tokens], [method.seconds], [method.tokens])
    tokens_per_round = acceptance(arms[1].rounds).tokens_per_round
    assert tokens_per_round / (k * found.c + found.v + found.overhead) == pytest.approx(measured)


def test_a_baseline_costs_a_step_a_round() -> None:
    arm = Timing(seconds=10.0, draft=0.0, verify=8.0, rounds=5, drafted=0, tokens=5)
    found = measured_costs(arm, arm)
    assert (found.c, found.v, found.overhead) == (0.0, 1.0, 0.0)


def test_the_phases_of_a_mean_round_add_up_to_it() -> None:
    arm = Timing(seconds=10.0, draft=2.0, verify=5.0, rounds=4, drafted=8, tokens=9, accept=1.0)
    assert phases(arm) == Phases(draft=0.5, verify=1.25, accept=0.25, host=0.5)
    idle = Timing(seconds=10.0, draft=1.0, verify=8.0, rounds=4, drafted=0, tokens=4)
    assert phases(idle) == Phases(draft=0.0, verify=2.0, accept=0.0, host=0.5)
    nothing = phases(Timing(0.0, 0.0, 0.0, 0, 0, 0))
    assert math.isnan(nothing.host)


def test_laps_are_summed_by_phase_and_a_phase_counts_what_is_under_it() -> None:
    hand = Hand()
    clock = WallClock(now=hand)
    drafter = clock.under("draft")
    clock.start()
    for _ in range(2):
        for laps, phase, seconds in ((drafter, "first", 1), (drafter.under("draft"), "verify", 2), (clock, "draft", 4)):
            hand.now += seconds
            laps.lap(phase)
    hand.now += 8
    expected = {"draft": 14.0, "draft/first": 2.0, "draft/draft": 4.0, "draft/draft/verify": 4.0}
    assert clock.stop() == (22.0, expected)
    clock.start()
    assert clock.stop() == (0.0, {})  # earlier laps are forgotten


def test_a_clock_of_a_device_counts_its_laps_and_those_of_replays() -> None:
    with DeviceTime().at_hand() as hand:
        clock = hand.clock
        for _ in range(2):  # the second time nothing is left of the first
            clock.start()
            for phase, seconds, hand.capturing in (("draft", 1, False), ("", 4, True), ("verify", 2, True)):
                hand.now += seconds
                clock.lap(phase)
            hand.capturing = False
            clock.replayed(clock.captured())
            assert clock.captured() == []
            assert clock.stop() == (7.0, {"draft": 1.0, "verify": 2.0})


def test_an_idle_replay_takes_no_time_from_the_end_of_the_one_before_it() -> None:
    with DeviceTime().at_hand() as hand:
        clock = hand.clock
        for _ in range(2):  # the second time nothing is left of the first
            clock.start()
            for idle, gap, seconds in ((False, 1, 4), (True, 2, 8)):
                hand.capturing = True
                for phase, step in (("", gap), ("verify", seconds)):
                    hand.now += step
                    clock.lap(phase)
                hand.capturing = False
                clock.replayed(clock.captured(), idle)
            hand.now += 16  # the host's
            assert clock.stop() == (1 + 4 + 16, {"verify": 4.0})


LAPS = test_laps_are_summed_by_phase_and_a_phase_counts_what_is_under_it
DEVICE = test_a_clock_of_a_device_counts_its_laps_and_those_of_replays
IDLE = test_an_idle_replay_takes_no_time_from_the_end_of_the_one_before_it
CLOCKS: dict[str, Mutant] = {
    "a phase without what is under it": (by_phase, "range(1, ", "range(len(parts), ", LAPS),
    "the last lap of a phase": (by_phase, "spans.get(name, 0.0) + seconds", "seconds", LAPS),
    "laps of earlier regions kept": (WallClock.start, "self._laps = []", "pass", LAPS),
    "laps that end where they begin": (WallClock.stop, "[self._began, *", "[*", LAPS),
    "a region up to its last lap": (WallClock.stop, "ended = self._now()", "ended = self._laps[-1][1]", LAPS),
    "a phase of an inner part without its name": (Under.lap, "{self.phase}/", "", LAPS),
    "laps of a device by the phase before": (between, "for (_, a), (phase, b)", "for (phase, a), (_, b)", DEVICE),
    "laps of a device in milliseconds": (between, " / 1000", "", DEVICE),
    "the first lap of a device lost": (CudaClock.start, 'self.lap("")', "pass", DEVICE),
    "laps of a device kept": (CudaClock.start, "self._marks, self._replayed, self._idle = [], [], 0.0", "pass", DEVICE),
    "laps of a capture counted": (CudaClock.lap, "self._captured if inside else self._marks", "self._marks", DEVICE),
    "laps of a capture kept": (
        CudaClock.captured,
        ", self._captured = self._captured, []",
        " = self._captured",
        DEVICE,
    ),
    "laps of replays lost": (CudaClock.stop, ", *self._replayed", "", DEVICE),
    "idle replays counted": (CudaClock.stop, " - self._idle", "", IDLE),
    "only the laps of an idle replay left out": (CudaClock.replayed, "*self._ended, *laps[-1:]", "*laps", IDLE),
    "idle time kept": (CudaClock.start, "[], [], 0.0", "[], [], self._idle", IDLE),
}


@mutants(CLOCKS)
def test_a_wrong_lap_is_caught(mutant: Mutant) -> None:
    catches(*mutant)


def test_the_spans_of_an_inner_speculation_lie_inside_the_draft() -> None:
    hand = Hand()
    clock = WallClock(now=hand)
    p, q = random_pair(0, 3, 3)
    inner = Speculate(ModelDrafter(Slow(q, hand, 0.125), 1), Slow(q, hand, 0.5), Rejection(), 1, clock.under("draft"))
    method = Speculate(inner, Slow(p, hand, 1.0), Rejection(), clock=clock)
    spans = decode(method, [PROMPT], new=9, eos=(), rng=seeded([1], CPU), device=CPU, clock=clock)[0].spans
    assert set(spans) == {"host", "draft", "draft/draft", "draft/verify", "draft/accept", "verify", "accept"}
    assert spans["draft"] == spans["draft/draft"] + spans["draft/verify"] > 0


def test_a_null_clock_measures_nothing() -> None:
    clock = NullClock()
    clock.start()
    clock.under("draft").lap("first")
    clock.lap("draft")
    assert clock.stop() == (0.0, {})


def test_lengths_count_rounds_with_a_draft_alone() -> None:
    def drafted(accepted: int) -> RoundCounts:
        return RoundCounts(3, min(accepted + 1, 3), accepted, accepted + 1, ())

    step = RoundCounts(0, 0, 0, 1, ())
    requests = [[step, *(drafted(n) for n in (0, 0, 3))], [step, drafted(1), step], [step]]
    found = lengths(requests)
    assert found["acceptance_length"] == 1 + 4 / 4
    assert found["acceptance_length_mean"] == (2 + 2) / 2
    assert found["rounds_by_accepted"] == "2 1 0 1"
    assert found["acceptance_joint"] == "0.5 0.25 0.25"
    assert lengths([[step]])["rounds_by_accepted"] == ""
    assert math.isnan(lengths([])["acceptance_length"])
