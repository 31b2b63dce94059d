"""From predicted to measured: terms by hand, and for any rounds and seconds terms that add up."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specbench.metrics import RoundCounts
from specbench.theory import formulas
from specbench.theory.optimum import Timing
from specbench.theory.waterfall import TERMS, Explanation, explain

K = 4


def one_round(accepted: int, drafted: int = K) -> RoundCounts:
    tested = min(accepted + 1, drafted)
    return RoundCounts(drafted, tested, accepted, accepted + 1, (0.5,) * tested)


def arm(rounds: int, drafted: int, verify: float, accept: float, host: float, tokens: int) -> Timing:
    """So many milliseconds of a round by phase, and one for every drafted token."""
    seconds = (drafted + rounds * (verify + accept + host)) / 1000
    return Timing(seconds, drafted / 1000, rounds * verify / 1000, rounds, drafted, tokens, rounds * accept / 1000)


ROUNDS = [one_round(n) for n in (4, 2, 0, 2)]  # 12 tokens; acceptance by position 3/4, 1, 1/3, 1; α 0.5
BASELINE = arm(12, 0, verify=8, accept=1, host=1, tokens=12)  # a step of 10 ms
METHOD = arm(4, 16, verify=12, accept=2, host=1.5, tokens=12)  # a round of 19.5 ms
MEASURED = 120 / 78


def exactly(value: float) -> float:
    return pytest.approx(value, rel=1e-12, abs=1e-12)


def total(found: Explanation) -> float:
    return found.ideal + math.fsum(getattr(found, name) for name in TERMS)


def test_the_terms_by_hand() -> None:
    found = explain(ROUNDS, BASELINE, METHOD, K, MEASURED)
    # 1.9375 tokens by α = 0.5, 3 by position; a round of 1.4 steps by the formula, then 0.4 dearer in the pass
    # (12 ms for 8 ms), 0.1 in the acceptance stage (2 ms for 1 ms), 0.05 in the rest (1.5 ms for 1 ms)
    assert found.ideal == found.predicted == exactly(1.9375 / 1.4) == exactly(formulas.speedup(0.5, K, 0.1))
    assert found.first_draft == 0.0
    assert found.position == exactly(3 / 1.4 - 1.9375 / 1.4)
    assert found.verify == exactly(3 / 1.8 - 3 / 1.4)
    assert found.sampling == exactly(3 / 1.9 - 3 / 1.8)
    assert found.host == exactly(3 / 1.95 - 3 / 1.9)
    assert found.calibrated == exactly(120 / 78)
    assert (found.truncated, found.rest) == (0, exactly(0))
    # of the 4 ms that four tokens take the first takes 2.5: a later one costs 0.5 ms, a twentieth of a step
    found = explain(ROUNDS, BASELINE, replace(METHOD, draft_first=0.0025 * 4), K, MEASURED)
    assert found.ideal == exactly(1.9375 / 1.2)
    assert found.first_draft == exactly(1.9375 / 1.4 - 1.9375 / 1.2)
    assert found.predicted == exactly(1.9375 / 1.4)


def test_one_drafted_token_has_no_later_ones() -> None:
    rounds = [one_round(1, drafted=1), one_round(0, drafted=1)]
    method = replace(arm(2, 2, verify=12, accept=2, host=1.5, tokens=3), draft_first=0.001)
    found = explain(rounds, BASELINE, method, 1, 0.6)
    assert found.ideal == found.predicted
    assert total(found) == exactly(0.6)
    rounds = [one_round(4), one_round(1, drafted=1)]  # the second had room for one drafted token only
    found = explain(rounds, BASELINE, arm(2, 5, verify=12, accept=2, host=1.5, tokens=7), K, 70 / 36)
    assert found.calibrated == exactly(5 / 1.95)  # every position accepts, so four drafted tokens give five
    assert (found.truncated, found.rest) == (0, exactly(3.5 / 1.8 - 5 / 1.95))
    found = explain(rounds, BASELINE, arm(2, 5, verify=12, accept=2, host=1.5, tokens=7), K, 70 / 36, lengths=[7])
    assert found.calibrated == exactly(3.5 / 1.95)  # seven tokens take two rounds of five
    assert (found.truncated, found.rest) == (exactly(-1.5 / 1.95), exactly(3.5 / 1.8 - 3.5 / 1.95))


def test_an_adaptive_lookahead_counts_the_levels_that_were_drafted() -> None:
    rounds = [one_round(4), one_round(1, drafted=1)]
    found = explain(rounds, BASELINE, arm(2, 5, verify=12, accept=2, host=1.5, tokens=7), None, 70 / 36)
    assert found.predicted == exactly((1.9375 + 1.5) / 2 / 1.25)  # K = 4 and K = 1 at α = 0.5, 2.5 tokens a round
    assert found.calibrated == exactly(3.5 / 1.8)
    assert (found.ideal, found.first_draft) == (found.predicted, 0.0)  # its first token is not told apart
    assert (found.truncated, found.rest) == (0, exactly(0))
    rounds = [one_round(4), one_round(4), one_round(0, drafted=1), one_round(0, drafted=1)]
    found = explain(rounds, BASELINE, arm(4, 10, verify=12, accept=2, host=1.5, tokens=12), None, 120 / 72)
    assert found.calibrated == exactly(3 / 1.8)  # by position over all rounds it would be 2.25 tokens
    assert (found.truncated, found.rest) == (0, exactly(0))


@pytest.mark.parametrize("lookahead", [K, None])
def test_drafting_nothing_is_predicted_to_change_nothing(lookahead: int | None) -> None:
    rounds = [RoundCounts(0, 0, 0, 1, ())] * 12
    method = replace(BASELINE, seconds=0.13, draft=0.001)
    found = explain(rounds, BASELINE, method, lookahead, 0.12 / 0.13)
    assert (found.ideal, found.predicted, found.position, found.verify) == (1.0, 1.0, 0.0, 0.0)
    assert found.host == found.calibrated - 1 == exactly(0.12 / 0.13 - 1)
    assert total(found) == exactly(0.12 / 0.13)


def test_a_lookahead_that_was_never_drafted_whole_counts_positions_never_reached_as_none() -> None:
    found = explain(ROUNDS, BASELINE, METHOD, 16, MEASURED)
    assert found.predicted == exactly(formulas.speedup(0.5, 16, 0.1))
    assert found.calibrated == exactly(3 / (1.6 + 1.55))
    assert total(found) == exactly(MEASURED)
    method = arm(3, 12, verify=12, accept=2, host=1.5, tokens=3)
    found = explain([one_round(0)] * 3, BASELINE, method, K, 30 / 58.5)
    assert found.position == exactly(1 / 1.4 - 1.9375 / 1.4)
    assert found.calibrated == exactly(1 / 1.95)
    assert (found.truncated, found.rest) == (0, exactly(0))


@pytest.mark.parametrize(
    ("rounds", "baseline", "method"),
    [
        ([], BASELINE, METHOD),
        (ROUNDS, replace(BASELINE, verify=0.0, accept=0.0), replace(METHOD, draft=0.0, verify=0.0, accept=0.0)),
        (ROUNDS, Timing(0.0, 0.0, 0.0, 0, 0, 0), METHOD),
        (ROUNDS, BASELINE, Timing(0.0, 0.0, 0.0, 0, 0, 0)),
        ([replace(r, overlap=(math.nan,) * r.tested) for r in ROUNDS], BASELINE, METHOD),
    ],
    ids=["no rounds", "no phases", "no baseline", "no method", "no law"],
)
def test_what_was_not_measured_is_no_number_and_the_measured_speedup_stays(
    rounds: list[RoundCounts], baseline: Timing, method: Timing
) -> None:
    found = explain(rounds, baseline, method, K, 1.25)
    assert found.measured == 1.25
    assert all(math.isnan(value) for value in found.row().values())


def test_the_columns() -> None:
    assert list(explain(ROUNDS, BASELINE, METHOD, K, MEASURED).row()) == [
        "speedup_ideal", "speedup_predicted", "speedup_calibrated", "term_first_draft", "term_levels", "term_position",
        "term_verify", "term_sampling", "term_host", "term_update", "term_truncated",
        "term_rest",
    ]  # fmt: skip


@st.composite
def drafted_rounds(draw: st.DrawFn) -> RoundCounts:
    drafted = draw(st.integers(0, 9))
    accepted = draw(st.integers(0, drafted))
    tested = draw(st.integers(accepted, min(accepted + 1, drafted)))
    overlap = tuple(draw(st.lists(st.floats(0, 1), min_size=tested, max_size=tested)))
    emitted, nodes = max(1, accepted + draw(st.integers(0, 1))), draw(st.sampled_from([0, drafted, 3 * drafted]))
    return RoundCounts(drafted, tested, accepted, emitted, overlap, nodes)


seconds = st.floats(0, 100, allow_subnormal=False)


@st.composite
def arms(draw: st.DrawFn, rounds: int, drafted: int) -> Timing:
    draft, verify, accept, rest = (draw(seconds) for _ in range(4))
    first = draft * draw(st.floats(0, 1))
    return Timing(draft + verify + accept + rest, draft, verify, rounds, drafted, rounds, accept, first)


@settings(max_examples=200)
@given(st.data(), st.lists(drafted_rounds(), max_size=12), st.none() | st.integers(0, 20), st.floats(0, 100))
def test_the_terms_add_up_to_the_measured_speedup(
    data: st.DataObject, rounds: list[RoundCounts], lookahead: int | None, measured: float
) -> None:
    method = data.draw(arms(len(rounds), sum(r.drafted for r in rounds)))
    baseline = data.draw(arms(data.draw(st.integers(1, 20)), 0))
    drafts = data.draw(st.none() | st.lists(st.floats(0, 100), min_size=21, max_size=21))
    lengths = data.draw(st.lists(st.integers(0, 20), max_size=4))
    found = explain(rounds, baseline, method, lookahead, measured, drafts, lengths=lengths)
    assert found.measured == measured
    assert drafts is not None or found.levels == 0 or math.isnan(found.levels)
    values = found.row().values()
    assert all(map(math.isfinite, values)) or all(map(math.isnan, values))
    if math.isfinite(found.ideal):
        size = max(1.0, *map(abs, values))
        assert total(found) == pytest.approx(measured, rel=0, abs=1e-12 * size)
