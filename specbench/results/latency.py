"""How long requests to a server waited for their first token, as columns; empty of engines in this process.

Knows traces and the name of a span; must not know servers.
"""

from collections.abc import Sequence
from statistics import mean, median, quantiles

from specbench.metrics import FIRST_PIECE, Trace

COLUMNS = ("ttft_ms", "ttft_median_ms", "ttft_p95_ms", "baseline_ttft_ms")


def latency(baseline: Sequence[Trace], method: Sequence[Trace]) -> dict[str, float | None]:
    """Mean, median and 95th percentile over requests."""
    waited, before = (
        [1000 * trace.spans[FIRST_PIECE] for trace in traces if FIRST_PIECE in trace.spans]
        for traces in (method, baseline)
    )
    if not waited:
        return dict.fromkeys(COLUMNS)
    worst = quantiles(waited, n=20, method="inclusive")[-1] if len(waited) > 1 else waited[0]
    return {
        "ttft_ms": mean(waited), "ttft_median_ms": median(waited), "ttft_p95_ms": worst,
        "baseline_ttft_ms": mean(before) if before else None,
    }  # fmt: skip
