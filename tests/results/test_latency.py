"""Waits for a first token, for the prompt and for every further token: their percentiles, and nothing of no wait."""

import pytest

from specbench.metrics import FIRST_PIECE, HELD, LAST_PIECE, TURN_PART, Trace
from specbench.results.latency import LATENCY, SERVED, latency, served


def waited(*seconds: float) -> list[Trace]:
    return [Trace((1,), (), 1.0, 0.0, {FIRST_PIECE: one}) for one in seconds]


def test_waits_are_told_in_milliseconds() -> None:
    found = latency(waited(0.5), waited(*(n / 1000 for n in range(21))))
    times = {name: value for name, value in found.items() if "ttft" in name}
    assert times == {
        "ttft_ms": 10.0, "ttft_median_ms": 10.0, "ttft_p95_ms": 19.0, "ttft_p99_ms": pytest.approx(19.8),
        "baseline_ttft_ms": 500.0, "baseline_ttft_median_ms": 500.0, "baseline_ttft_p95_ms": 500.0,
        "baseline_ttft_p99_ms": 500.0,
    }  # fmt: skip
    assert latency([], waited(0.25))["ttft_p95_ms"] == 250.0
    assert latency([], waited(0.25))["baseline_ttft_ms"] is None


def test_in_this_process_the_prompt_is_read_and_nobody_waits_for_a_server() -> None:
    baseline, method = [Trace((1, 2), (), 3.0, 0.5)], [Trace((1,) * 4, (), s, 0.25) for s in (1.0, 2.0, 6.0)]
    found = latency(baseline, method)
    assert list(found) == list(LATENCY)
    unknown = {name for name in LATENCY if "ttft" in name or "latency" in name}
    assert {name for name, value in found.items() if value is None} == unknown
    assert (found["per_token_median_ms"], found["baseline_per_token_median_ms"]) == (500.0, 1500.0)
    assert found["per_token_p95_ms"] == pytest.approx(1400.0)
    assert (found["prefill_median_ms"], found["baseline_prefill_p95_ms"]) == (250.0, 500.0)


def test_prompts_that_share_the_time_of_a_batch_have_no_latency_of_their_own() -> None:
    traces = [Trace((1, 2), (), 3.0, 0.5)]
    assert latency(traces, traces, rows=2) == dict.fromkeys(LATENCY)


def request(first: float, last: float, part: float, tokens: int = 5, **more: float) -> Trace:
    """A request to a server, whose seconds are its part of a turn."""
    spans = {FIRST_PIECE: first, LAST_PIECE: last, TURN_PART: part, **more}
    return Trace((1,) * tokens, (), part, 0.0, spans)


def test_a_request_has_its_own_waits_however_many_were_under_way() -> None:
    baseline, method = [request(1.0, 3.0, 0.5)], [request(0.5, 0.5, 0.25, tokens=1), request(0.25, 1.25, 0.25)]
    found = latency(baseline, method, rows=4)
    assert (found["latency_median_ms"], found["baseline_latency_p99_ms"]) == (875.0, 3000.0)
    assert (found["baseline_per_token_median_ms"], found["per_token_median_ms"]) == (500.0, 250.0)
    assert found["per_token_p99_ms"] == 250.0  # an answer of one piece has no time between pieces
    assert {name for name, value in found.items() if value is None} == {n for n in LATENCY if "prefill" in n}


def test_throughput_is_over_whole_turns() -> None:
    baseline = [request(1.0, 3.0, 0.5), request(1.0, 3.0, 0.5)]
    method = [request(0.5, 0.75, 0.25, tokens=3), request(0.25, 1.25, 0.25, **{HELD: 0.0})]
    found = served(baseline, method)
    assert list(found) == list(SERVED)
    assert found == {
        "served_tokens_per_second": 16.0, "baseline_served_tokens_per_second": 10.0,
        "served_requests_per_second": 4.0, "baseline_served_requests_per_second": 2.0,
        "requests_held": 1, "baseline_requests_held": 0,
    }  # fmt: skip


def test_of_engines_in_this_process_nobody_is_served() -> None:
    traces = [Trace((1, 2), (), 3.0, 0.5)]
    assert served(traces, traces) == dict.fromkeys(SERVED)
