"""What a design shows: the table holds the numbers of its rows."""

import csv
import io

import pytest

from specbench.show.documents import line, print_design
from tests.support.designs import decoded, found

PLAIN = found()
FINAL = PLAIN.rungs[-1][0].name
ROWS = found({FINAL: decoded(FINAL, (4, 2, 4))}).rows


def test_the_table_has_a_line_per_shape_for_readers_and_every_column_for_programs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_design(ROWS, "csv")
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["name"] for row in rows] == [row["name"] for row in ROWS]
    assert {"latency_low_ms", "c", "tokens_per_round", "speedup", "on_front", "reached", "heads"} <= rows[0].keys()
    assert [line(row) for row in rows] == [line(row) for row in ROWS]  # a file that is read back says the same
    for style in ("table", "md"):
        print_design(ROWS, style)  # type: ignore[arg-type]
        shown = capsys.readouterr().out
        assert all(row["name"] in shown for row in ROWS)
        assert "dropped after" in shown


def test_numbers_have_what_they_lie_between_and_blanks_are_dashes() -> None:
    measured, *_, dropped = ROWS
    one, other = line(measured), line(dropped)
    assert one["latency_ms"].count("[") == 1
    assert (one["measured"], other["measured"]) == (f"{measured['tokens_per_second']:.1f}", "–")
    assert other["speedup"] == "–"
    assert {one["front"], other["front"]} <= {"yes", "no"}
