"""How long readers waited: for the first token, for the prompt, for every further token and for the whole, as columns.

The waits for a first token and for a whole answer are those of requests to a server and empty of engines in this
process, where a reader waits for the prompt to be read and one round. Knows traces and the names of spans; must not
know servers.
"""

from collections.abc import Sequence
from statistics import mean, median, quantiles

from specbench.metrics import FIRST_PIECE, LAST_PIECE, Trace

ARMS = ("", "baseline_")
TIMES = ("ttft", "prefill", "per_token", "latency")  # of which there are percentiles, over requests or prompts
POINTS = ("median", "p95", "p99")
COLUMNS = (
    "ttft_ms",
    "baseline_ttft_ms",
    *(f"{arm}{t}_{p}_ms" for t in TIMES for p in POINTS for arm in ARMS),
)


def latency(baseline: Sequence[Trace], method: Sequence[Trace], rows: int = 1) -> dict[str, float | None]:
    """Mean wait for the first token, and the median, 95th and 99th percentile of every kind of wait, in milliseconds.

    `rows` were decoded together: where several were, their prompts share the time of a batch, and none has its own
    prefill; its own time per token only a request to a server has, which is told when its pieces come.
    """
    found = dict[str, float | None](dict.fromkeys(COLUMNS))
    for arm, traces in (("", method), ("baseline_", baseline)):
        waited, whole = (waits(traces, span) for span in (FIRST_PIECE, LAST_PIECE))
        found[f"{arm}ttft_ms"] = mean(waited) if waited else None
        prefill = [] if waited or rows > 1 else [1000 * t.prefill_seconds for t in traces if t.prefill_seconds > 0]
        steps = [per_token(t, rows) for t in traces]
        told = [1000 * step for step in steps if step is not None]
        for name, times in zip(TIMES, (waited, prefill, told, whole), strict=True):
            found |= {f"{arm}{name}_{point}_ms": value for point, value in percentiles(times).items()}
    return found


def waits(traces: Sequence[Trace], span: str) -> list[float]:
    """Milliseconds of a span, of those that have it."""
    return [1000 * trace.spans[span] for trace in traces if span in trace.spans]


def per_token(trace: Trace, rows: int) -> float | None:
    """Seconds of a token: of a request to a server from its first piece, which is one token, to its last; else of the
    decode of a prompt, where it was alone."""
    between = trace.spans.get(LAST_PIECE, 0.0) - trace.spans.get(FIRST_PIECE, 0.0)
    if LAST_PIECE in trace.spans and between > 0 and len(trace.tokens) > 1:
        return between / (len(trace.tokens) - 1)
    return trace.seconds / len(trace.tokens) if rows == 1 and trace.tokens else None


def percentiles(times: Sequence[float]) -> dict[str, float | None]:
    """Those of `POINTS`; None of nothing."""
    if not times:
        return dict.fromkeys(POINTS)
    ranks = quantiles(times, n=100, method="inclusive") if len(times) > 1 else [times[0]] * 99
    return dict(zip(POINTS, (median(times), ranks[94], ranks[98]), strict=True))
