"""The reliability curve and its error, by hand; what the journal keeps of beliefs; nothing where none was held."""

import json
import math
import random
from pathlib import Path

import pandas as pd
import pytest

from specbench.metrics import RoundCounts
from specbench.results.cells import Cell
from specbench.results.folder import RunFolder
from specbench.results.journal_lines import samples_of, turn_line
from specbench.results.nests import BELIEF, BINS, belief_columns, belief_rows, calibration_error, curve, error_if_exact
from specbench.results.reading import read_run
from specbench.spec import SCHEMA_VERSION
from tests.support.beliefs import ROUNDS, believing, round_of
from tests.support.measured import cell, one_round, sample

HELD = [round_of(*one) for one in ROUNDS]


# --- the error --------------------------------------------------------------------------------------------------------


def test_the_errors_are_their_arithmetic() -> None:
    found = belief_columns(HELD)
    assert list(found) == list(BELIEF)
    assert found["belief_tests"] == 6
    assert found["belief_mean"] == pytest.approx(4.2 / 6)
    assert found["belief_accepted"] == pytest.approx(4 / 6)
    # believed and accepted, bin by bin: 1.75 and 2, 0.8 and 1, 1.35 and 1, 0.3 and 0
    assert found["belief_ece"] == pytest.approx((0.25 + 0.2 + 0.35 + 0.3) / 6)
    assert found["belief_brier"] == pytest.approx((0.01 + 0.0225 + 0.04 + 0.4225 + 0.09 + 0.09) / 6)
    variances = (0.09 + 0.1275, 0.16, 0.2275 + 0.21, 0.21)
    assert found["belief_ece_if_exact"] == pytest.approx(math.sqrt(2 / math.pi) * sum(map(math.sqrt, variances)) / 6)


def test_the_curve_is_a_row_for_every_bin_with_tests() -> None:
    found = belief_rows(HELD)
    assert [(row["low"], row["high"], row["tests"]) for row in found] == [
        (0.2, 0.3, 1), (0.6, 0.7, 2), (0.7, 0.8, 1), (0.8, 0.9, 2),
    ]  # fmt: skip
    assert [row["believed"] for row in found] == pytest.approx([0.3, 0.675, 0.8, 0.875])
    assert [row["accepted"] for row in found] == [0.0, 0.5, 1.0, 1.0]


@pytest.mark.parametrize(("belief", "place"), [(0.0, 0), (0.1, 0), (0.1001, 1), (0.95, 9), (1.0, 9), (1.0000001, 9)])
def test_a_bin_holds_its_upper_end(belief: float, place: int) -> None:
    assert [one.tests for one in curve([round_of((belief,), 0)])] == [float(i == place) for i in range(BINS)]


def test_luck_makes_as_much_of_exact_beliefs_as_is_said() -> None:
    """The mean of many simulated runs, each of the same number of tokens that are accepted as they are believed."""
    chance, errors, said = random.Random(0), list[float](), list[float]()
    for _ in range(300):
        held = [chance.betavariate(3, 1) for _ in range(200)]
        bins = curve([round_of((one,), int(chance.random() < one)) for one in held])
        errors.append(calibration_error(bins))
        said.append(error_if_exact(bins))
    assert sum(errors) / sum(said) == pytest.approx(1, abs=0.05)
    wrong = curve([round_of((0.9,), int(chance.random() < 0.7)) for _ in range(2000)])
    assert calibration_error(wrong) > 10 * error_if_exact(wrong)


def test_what_believes_nothing_has_no_numbers() -> None:
    none = [one_round(2), RoundCounts(0, 0, 0, 1, ())]
    assert set(belief_columns(none).values()) == {None}
    assert belief_rows(none) == []
    static = cell(sample("p1"))
    assert {static.row()[name] for name in BELIEF} == {None}
    assert static.belief_rows() == []
    assert cell(believing(), status="error").belief_rows() == []


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_the_journal_keeps_what_was_believed_and_nothing_where_nothing_was() -> None:
    both = [believing("p1"), sample("p1")]
    for one in both:
        line = json.loads(json.dumps(turn_line({cell().spec: [one]}), allow_nan=False))
        assert samples_of(line) == {cell().spec.key: [one]}
    of_rounds = [turn_line({cell().spec: [one]})["arms"][cell().spec.key]["trace"]["rounds"] for one in both]
    assert [len(line) for line in of_rounds[0]] == [10, 10]
    assert of_rounds[0][1][-1] == [0.85, None, 0.7, 0.3]
    assert {len(line) for line in of_rounds[1]} == {9}, "as in journals that were written before there were beliefs"


@pytest.mark.parametrize("held", [[0.5], [0.5, 0.5, 1.5], [0.5, 0.5, "x"], [0.5, 0.5, True], "abc", 7, [0.5] * 4])
def test_beliefs_that_nobody_can_hold_are_refused(held: object) -> None:
    line = turn_line({cell().spec: [believing("p1", ROUNDS[:1])]})
    line["arms"][cell().spec.key]["trace"]["rounds"][0][-1] = held
    with pytest.raises((ValueError, TypeError)):
        samples_of(line)


def test_a_run_that_is_gone_on_with_has_the_numbers_of_one_that_was_not(tmp_path: Path) -> None:
    spec = {"schedule": "confidence", "confidence": 0.5}
    whole = cell(believing("p1"), believing("p2", ROUNDS[:1], turn=1), **spec)
    specs = [whole.spec.model_dump(mode="json")]
    folder = RunFolder.create(tmp_path, "run", {"schema_version": SCHEMA_VERSION, "specs": specs})
    folder.begin([cell(**spec)], 2)
    folder.turn({whole.spec: whole.samples[:1]})
    folder.close()  # as if it had been killed
    again = RunFolder.resume(folder.path)
    (past,) = again.past.values()
    assert past.samples == [whole.samples[0]]
    again.turn({whole.spec: whole.samples[1:]})
    again.end(whole)
    again.close()
    (found,) = read_run(folder.path).cells
    check_same(found, whole)
    kept = pd.read_parquet(folder.path / "rounds.parquet")["belief"]
    assert list(kept[0]) == [0.9, 0.8, 0.65]


def check_same(found: Cell, expected: Cell) -> None:
    """Two cells have the same beliefs, down to the last bit."""
    assert {name: found.row()[name] for name in BELIEF} == {name: expected.row()[name] for name in BELIEF}
    assert found.belief_rows() == expected.belief_rows() != []
