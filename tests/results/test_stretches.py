"""How numbers change from request to request: stretches that lie within phases, and values smoothed within them."""

from dataclasses import replace

import pytest

from specbench.results.samples import Sample, without_updates
from specbench.results.stretches import smoothed, stretches
from tests.support.measured import STEP, cell, method_trace, sample

PHASES = ("1 code",) * 5 + ("2 articles",) * 13 + ("3 code",) * 4


def exactly(value: float) -> float:
    return pytest.approx(value, rel=1e-9, abs=1e-12)


def in_phases(accepted: tuple[int, ...] = (4, 2, 0, 2)) -> list[Sample]:
    return [sample(f"p{n}", accepted, category=phase, turn=n) for n, phase in enumerate(PHASES)]


def learning(seconds: float) -> Sample:
    """A sample with an update of so many seconds."""
    trace = method_trace((4, 2, 0, 2))
    spans = {**trace.spans, "update": seconds}
    return sample(method=replace(trace, seconds=trace.seconds + seconds, spans=spans))


def test_stretches_divide_the_phases_and_are_in_time() -> None:
    found = list(stretches(in_phases()[::-1]))
    assert [(row["first"], row["last"], row["phase"]) for row in found] == [
        (1, 5, "1 code"), (6, 9, "2 articles"), (10, 13, "2 articles"), (14, 18, "2 articles"), (19, 22, "3 code")
    ]  # fmt: skip
    assert {round(row["tokens_per_round"], 9) for row in found} == {3.0}


def test_where_categories_alternate_there_are_no_phases() -> None:
    some = [sample(f"p{n}", category="ab"[n % 2], turn=n) for n in range(20)]
    assert [(row["first"], row["last"]) for row in stretches(some)] == [(1, 6), (7, 13), (14, 20)]


def test_smoothed_values_are_over_the_requests_before_of_the_same_phase() -> None:
    first = [sample(f"a{n}", (4,), category="1 a", turn=n) for n in range(10)]
    after = [sample(f"b{n}", (0,), category="2 b", turn=10 + n) for n in range(2)]
    found = list(smoothed([*first, *after]))
    assert [row["request"] for row in found] == list(range(1, 13))
    assert [row["tokens_per_round"] for row in found] == [5.0] * 10 + [1.0] * 2


def test_the_cost_of_learning_is_counted_and_shown() -> None:
    plain, slow = sample(), learning(0.5)
    assert without_updates(slow).method.seconds == exactly(plain.method.seconds)
    row = cell(slow, learning(0.25)).row()
    assert row["speedup_elsewhere"] == exactly(cell(plain).row()["speedup"])
    assert row["update_share"] == exactly(0.75 / (0.75 + 2 * plain.method.seconds))
    assert row["round_update_ms"] == exactly(1000 * 0.75 / 8)
    assert row["round_host_ms"] == exactly(cell(plain).row()["round_host_ms"])
    assert row["term_host"] == exactly(cell(plain).row()["term_host"])
    assert row["speedup_calibrated"] == exactly(3 / (1.95 + 0.75 / 8 / STEP))
    assert row["term_update"] == exactly(3 / (1.95 + 0.75 / 8 / STEP) - 3 / 1.95)
    assert row["speedup_calibrated"] + row["term_truncated"] == exactly(row["speedup"])
    of_others = cell(plain).row()
    assert [of_others[name] for name in ("speedup_elsewhere", "update_share")] == [None, None]
    assert of_others["round_update_ms"] is None
    assert of_others["term_update"] == 0.0, "so that the terms of a row add up"
