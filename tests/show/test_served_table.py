"""Requests to servers: the table of their waits, and the notes that go with it."""

from dataclasses import replace
from typing import Any

from specbench.metrics import FIRST_PIECE, HELD, LAST_PIECE, TURN_PART, Trace
from specbench.results.samples import Sample
from specbench.show.run_notes import notes
from specbench.show.served_table import served_tables
from tests.support.measured import cell, sample


def served(trace: Trace, first: float, last: float, **more: float) -> Trace:
    return replace(trace, spans={FIRST_PIECE: first, LAST_PIECE: last, TURN_PART: 0.5, **more})


def request(name: str, turn: int, **more: float) -> Sample:
    one = sample(name, turn=turn, cluster=f"batch {turn}")
    return replace(one, baseline=served(one.baseline, 0.25, 1.25), method=served(one.method, 0.125, 0.625, **more))


def row(*samples: Sample, **changes: Any) -> dict[str, Any]:
    return cell(*samples, backend="openai", url="http://a", baseline_url="http://b", **changes).row()


def test_the_method_stands_below_its_baseline_at_every_rate() -> None:
    rows = [row(*(request(f"p{n}", n) for n in range(3)), arrivals=rate, batch=8) for rate in (0.5, 2.0)]
    (table,) = served_tables(rows)
    assert table.header[:2] == ["arrivals", "arm"]
    new = len(sample().method.tokens)
    assert table.lines[0] == ["0.5", "baseline", f"{2 * new}", "2", *["250"] * 3, *[f"{1000 / (new - 1):.3g}"] * 3,
                              *["1,250"] * 3]  # fmt: skip
    assert table.lines[3] == ["2.0", "chain K4", f"{2 * new}", "2", *["125"] * 3, *[f"{500 / (new - 1):.3g}"] * 3,
                              *["625"] * 3]  # fmt: skip
    assert len(table.lines) == 4


def test_engines_in_this_process_have_no_such_table() -> None:
    assert list(served_tables([cell(sample()).row()])) == []
    assert list(served_tables([row(status="error")])) == []


def test_requests_that_had_to_wait_for_a_place_are_told() -> None:
    found = row(request("p1", 0), request("p2", 1, **{HELD: 0.75}), arrivals=2.0, batch=8)
    assert (found["requests_held"], found["baseline_requests_held"]) == (1, 0)
    said = notes([found])
    assert any(
        "requests that waited, as 8 were under way, the most that may be: 1 of the method" in one for one in said
    )
    assert any("wait for each other: the interval is over 2 turns (--limit 80 gives 5)" in one for one in said)
    assert not any("rows stood idle" in one for one in said)
    closed = notes([row(request("p1", 0), request("p2", 1), batch=8)])
    assert not any("waited" in one or "wait for each other" in one for one in closed)
