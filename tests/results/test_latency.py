"""Waits for a first token, for the prompt and for every further token: their percentiles, and nothing of no wait."""

import pytest

from specbench.metrics import FIRST_PIECE, Trace
from specbench.results.latency import COLUMNS, latency


def waited(*seconds: float) -> list[Trace]:
    return [Trace((1,), (), 1.0, 0.0, {FIRST_PIECE: one}) for one in seconds]


def test_waits_are_told_in_milliseconds() -> None:
    found = latency(waited(0.5), waited(*(n / 1000 for n in range(21))))
    times = {name: value for name, value in found.items() if "ttft" in name}
    assert times == {
        "ttft_ms": 10.0, "ttft_median_ms": 10.0, "ttft_p95_ms": 19.0,
        "baseline_ttft_ms": 500.0, "baseline_ttft_median_ms": 500.0, "baseline_ttft_p95_ms": 500.0,
    }  # fmt: skip
    assert latency([], waited(0.25))["ttft_p95_ms"] == 250.0
    assert latency([], waited(0.25))["baseline_ttft_ms"] is None


def test_in_this_process_the_prompt_is_read_and_nobody_waits_for_a_server() -> None:
    baseline, method = [Trace((1, 2), (), 3.0, 0.5)], [Trace((1,) * 4, (), s, 0.25) for s in (1.0, 2.0, 6.0)]
    found = latency(baseline, method)
    assert list(found) == list(COLUMNS)
    assert {name for name, value in found.items() if value is None} == {name for name in COLUMNS if "ttft" in name}
    assert (found["per_token_median_ms"], found["baseline_per_token_median_ms"]) == (500.0, 1500.0)
    assert found["per_token_p95_ms"] == pytest.approx(1400.0)
    assert (found["prefill_median_ms"], found["baseline_prefill_p95_ms"]) == (250.0, 500.0)


def test_prompts_that_share_the_time_of_a_batch_have_no_latency_of_their_own() -> None:
    traces = [Trace((1, 2), (), 3.0, 0.5)]
    assert latency(traces, traces, rows=2) == dict.fromkeys(COLUMNS)
