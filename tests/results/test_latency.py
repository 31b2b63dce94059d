"""Waits for a first token: their mean, median and 95th percentile, and nothing where nobody waited."""

from specbench.metrics import FIRST_PIECE, Trace
from specbench.results.latency import COLUMNS, latency


def waited(*seconds: float) -> list[Trace]:
    return [Trace((1,), (), 1.0, 0.0, {FIRST_PIECE: one}) for one in seconds]


def test_waits_are_told_in_milliseconds() -> None:
    found = latency(waited(0.5), waited(*(n / 1000 for n in range(21))))
    assert found == {"ttft_ms": 10.0, "ttft_median_ms": 10.0, "ttft_p95_ms": 19.0, "baseline_ttft_ms": 500.0}
    assert latency([], waited(0.25))["ttft_p95_ms"] == 250.0
    assert latency([], waited(0.25))["baseline_ttft_ms"] is None


def test_nobody_waits_for_an_engine_in_this_process() -> None:
    traces = [Trace((1,), (), 1.0)]
    assert latency(traces, traces) == dict.fromkeys(COLUMNS)
