"""What a method that learns shows from request to request: a table and a figure beside the methods that do not."""

from specbench.results.stretches import smoothed
from specbench.show.report.plots_requests import over_requests
from specbench.show.stretches_table import stretches_tables
from specbench.wording import Row
from tests.results.test_stretches import PHASES, in_phases
from tests.support.measured import cell


def rows_and_stretches() -> tuple[list[Row], dict[str, list[Row]]]:
    cells = [
        cell(*in_phases(), method="chain"),
        cell(*in_phases((4, 4)), method="online", resolved={"carries": "Distilled"}),
    ]
    return [one.row() for one in cells], {one.spec.key: one.stretch_rows() for one in cells}


def test_what_learns_stands_beside_what_does_not_request_by_request() -> None:
    (table,) = stretches_tables(*rows_and_stretches())
    assert table.lines[0] == ["1–5", "1 code", "0.500", "5.000", "2.564×", "0.500", "3.000", "1.538×"]
    assert len(table.lines) == 5
    assert table.header[2].startswith("code method online")
    rows, found = rows_and_stretches()
    assert stretches_tables(rows[:1], found) == [], "nothing learns"


def test_the_figure_marks_the_phases_and_what_learns() -> None:
    lines = {"online": list(smoothed(in_phases((4, 4)))), "chain": list(smoothed(in_phases()))}
    picture = over_requests(lines, ["online"])
    assert picture is not None
    alpha, tokens, speedup = picture.figure.axes
    assert [(line.get_label(), line.get_linestyle()) for line in tokens.get_lines()[:2]] == [
        ("online", "-"),
        ("chain", "--"),
    ]
    assert list(tokens.get_lines()[0].get_ydata()) == [5.0] * len(PHASES)
    assert [text.get_text() for text in alpha.texts] == ["1 code", "2 articles", "3 code"]
    marks = [line.get_xdata()[0] for line in speedup.get_lines() if len(set(line.get_xdata())) == 1]
    assert marks == [5.5, 18.5]
    assert over_requests({"online": lines["online"][:1]}, ["online"]) is None
