"""Latency (first token, prompt, per further token, whole answer) and throughput.

First-token and whole-answer latency are measured for server requests and blank for in-process engines, where
a reader waits for the prompt and one round; so is the throughput over whole turns.
"""

import math
from collections.abc import Sequence
from statistics import mean, median, quantiles

from specbench.metrics import FIRST_PIECE, HELD, LAST_PIECE, TURN_PART, Trace

ARMS = ("", "baseline_")
TIMES = ("ttft", "prefill", "per_token", "latency")  # these have percentiles, over requests or prompts
POINTS = ("median", "p95", "p99")
LATENCY = (
    "ttft_ms",
    "baseline_ttft_ms",
    *(f"{arm}{t}_{p}_ms" for t in TIMES for p in POINTS for arm in ARMS),
)


def latency(baseline: Sequence[Trace], method: Sequence[Trace], rows: int = 1) -> dict[str, float | None]:
    """Mean time to first token, and the median, 95th and 99th percentile of every latency, in milliseconds.

    `rows` were decoded together: if several, their prompts share the time of a batch and have no separate
    prefill; only server requests, whose pieces have times, then have their own time per token.
    """
    found = dict[str, float | None](dict.fromkeys(LATENCY))
    for arm, traces in (("", method), ("baseline_", baseline)):
        waited, whole = (
            [1000 * trace.spans[span] for trace in traces if span in trace.spans] for span in (FIRST_PIECE, LAST_PIECE)
        )
        found[f"{arm}ttft_ms"] = mean(waited) if waited else None
        prefill = [] if waited or rows > 1 else [1000 * t.prefill_seconds for t in traces if t.prefill_seconds > 0]
        steps = [per_token(t, rows) for t in traces]
        told = [1000 * step for step in steps if step is not None]
        for name, times in zip(TIMES, (waited, prefill, told, whole), strict=True):
            found |= {f"{arm}{name}_{point}_ms": value for point, value in percentiles(times).items()}
    return found


def per_token(trace: Trace, rows: int) -> float | None:
    """Seconds per token after the first piece of a server request, else of a prompt decoded alone."""
    between = trace.spans.get(LAST_PIECE, 0.0) - trace.spans.get(FIRST_PIECE, 0.0)
    if LAST_PIECE in trace.spans and between > 0 and len(trace.tokens) > 1:
        return between / (len(trace.tokens) - 1)
    return trace.seconds / len(trace.tokens) if rows == 1 and trace.tokens else None


def percentiles(times: Sequence[float]) -> dict[str, float | None]:
    """The percentiles `POINTS`; None without values."""
    if not times:
        return dict.fromkeys(POINTS)
    ranks = quantiles(times, n=100, method="inclusive") if len(times) > 1 else [times[0]] * 99
    return dict(zip(POINTS, (median(times), ranks[94], ranks[98]), strict=True))


PER_SECOND = ("served_tokens_per_second", "served_requests_per_second", "requests_held")
SERVED = tuple(f"{arm}{name}" for name in PER_SECOND for arm in ARMS)


def served(baseline: Sequence[Trace], method: Sequence[Trace]) -> dict[str, float | None]:
    """Throughput of both arms from the first request of a turn to its last answer, and the queued requests."""
    found = dict[str, float | None](dict.fromkeys(SERVED))
    for arm, traces in (("", method), ("baseline_", baseline)):
        requests = [trace for trace in traces if trace.spans.get(TURN_PART, 0.0) > 0]
        if not requests:
            continue
        seconds = math.fsum(trace.spans[TURN_PART] for trace in requests)
        held = sum(HELD in trace.spans for trace in requests)
        numbers = (sum(len(trace.tokens) for trace in requests) / seconds, len(requests) / seconds, held)
        found |= {f"{arm}{name}": number for name, number in zip(PER_SECOND, numbers, strict=True)}
    return found
