"""Waits for a first token, for the prompt and for every further token: their percentiles, and nothing of no wait."""

import pytest

from specbench.metrics import FIRST_PIECE, HELD, LAST_PIECE, PIECE_GAP, TURN_PART, Trace
from specbench.results.latency import LATENCY, POINTS, SERVED, WITHIN, goodputs, latency, served


def waited(*seconds: float) -> list[Trace]:
    return [Trace((1,), (), 1.0, 0.0, {FIRST_PIECE: one, LAST_PIECE: one}) for one in seconds]


def test_waits_are_told_in_milliseconds() -> None:
    found = latency(waited(0.5), waited(*(n / 1000 for n in range(21))))
    times = {name: value for name, value in found.items() if "ttft" in name}
    assert times == {
        "ttft_ms": 10.0, "ttft_median_ms": 10.0, "ttft_p90_ms": 18.0, "ttft_p95_ms": 19.0,
        "ttft_p99_ms": pytest.approx(19.8), "baseline_ttft_ms": 500.0,
        **{f"baseline_ttft_{point}_ms": 500.0 for point in POINTS},
    }  # fmt: skip
    assert latency([], waited(0.25))["ttft_p95_ms"] == 250.0
    assert latency([], waited(0.25))["baseline_ttft_ms"] is None


def test_in_this_process_the_prompt_is_read_and_nobody_waits_for_a_server() -> None:
    baseline, method = [Trace((1, 2), (), 3.0, 0.5)], [Trace((1,) * 4, (), s, 0.25) for s in (1.0, 2.0, 6.0)]
    found = latency(baseline, method)
    assert list(found) == list(LATENCY)
    unknown = {name for name in LATENCY if any(word in name for word in ("ttft", "latency", "per_step"))}
    assert {name for name, value in found.items() if value is None} == unknown
    assert (found["per_token_median_ms"], found["baseline_per_token_median_ms"]) == (500.0, 1500.0)
    assert found["per_token_p95_ms"] == pytest.approx(1400.0)
    assert (found["prefill_median_ms"], found["baseline_prefill_p95_ms"]) == (250.0, 500.0)


def test_prompts_that_share_the_time_of_a_batch_have_no_latency_and_in_this_process_nobody_is_served() -> None:
    traces = [Trace((1, 2), (), 3.0, 0.5)]
    assert latency(traces, traces, rows=2) == dict.fromkeys(LATENCY)
    assert served(traces, traces) == dict.fromkeys(SERVED)


def request(first: float, last: float, part: float, tokens: int = 5, pieces: int = 1, **more: float) -> Trace:
    """A request to a server, whose seconds are its part of a turn."""
    spans = {FIRST_PIECE: first, LAST_PIECE: last, TURN_PART: part, **more}
    spans |= {PIECE_GAP: (last - first) / (pieces - 1)} if pieces > 1 else {}
    return Trace((1,) * tokens, (), part, 0.0, spans)


def test_a_request_has_its_own_waits_however_many_were_under_way() -> None:
    baseline = [request(1.0, 3.0, 0.5, pieces=5)]
    method = [request(0.5, 0.5, 0.25, tokens=9), request(0.25, 1.25, 0.25, pieces=3)]
    found = latency(baseline, method, rows=4)
    assert (found["latency_median_ms"], found["baseline_latency_p99_ms"]) == (875.0, 3000.0)
    assert (found["baseline_per_token_median_ms"], found["per_token_median_ms"]) == (500.0, 250.0)
    assert found["per_token_p99_ms"] == 250.0  # an answer of one piece has no time between pieces
    assert (found["baseline_per_step_median_ms"], found["per_step_median_ms"]) == (500.0, 500.0)  # two tokens a piece
    assert {name for name, value in found.items() if value is None} == {n for n in LATENCY if "prefill" in n}


def test_throughput_is_over_whole_turns() -> None:
    baseline = [request(1.0, 3.0, 0.5), request(1.0, 3.0, 0.5)]
    method = [request(0.5, 0.75, 0.25, tokens=3), request(0.25, 1.25, 0.25, **{HELD: 0.0})]
    found = served(baseline, method)
    assert list(found) == list(SERVED)
    assert found == {
        "tokens_per_second_per_user": 4.8, "baseline_tokens_per_second_per_user": 2.0,
        "served_tokens_per_second": 16.0, "baseline_served_tokens_per_second": 10.0,
        "served_requests_per_second": 4.0, "baseline_served_requests_per_second": 2.0,
        "requests_held": 1, "baseline_requests_held": 0,
    }  # fmt: skip


def test_limits_are_met_by_a_share_of_the_requests_and_so_many_a_second() -> None:
    """Of four, one of the baseline and three of the method are within both limits; turns took 2 s and 1 s in all."""
    baseline = [request(0.1, last, 0.5) for last in (0.9, 1.5, 1.5, 1.5)]
    method = [request(first, 0.9, 0.25) for first in (0.1, 0.1, 0.1, 0.3)]
    found = goodputs(baseline, method, 4, "ttft=200ms,e2e=1000ms")
    assert set(found) == set(WITHIN)
    assert (found["baseline_slo_share"], found["slo_share"], found["slo_share_difference"]) == (0.25, 0.75, 0.5)
    assert (found["baseline_goodput"], found["goodput"]) == (0.5, 3.0)
    assert found["goodput_low"] == pytest.approx(4.0 * found["slo_share_low"])
    wider = goodputs(baseline, method, 2, "ttft=200ms,e2e=1000ms")
    for name in ("slo_share", "baseline_goodput", "slo_share_difference"):
        assert wider[f"{name}_low"] < found[f"{name}_low"] < found[name] < found[f"{name}_high"] < wider[f"{name}_high"]


def test_a_limit_of_one_kind_asks_for_no_other_and_without_limits_or_requests_nothing_is_met() -> None:
    """Of five tokens: 0.2 s for each after the first."""
    requests, traces = [request(5.0, 5.8, 1.0)], [Trace((1, 2), (), 3.0, 0.5)]
    shares = [goodputs(requests, requests, 1, f"tpot={limit}ms")["slo_share"] for limit in (200, 199)]
    assert shares == [1.0, 0.0]
    assert goodputs(requests, requests, 1, None) == goodputs(traces, traces, 1, "e2e=9s") == dict.fromkeys(WITHIN)
