"""How long readers waited: for the first token, for the prompt to be read, and for every further token, as columns.

The wait for a first token is that of requests to a server and empty of engines in this process, where it is the time to
read the prompt and one round. Knows traces and the name of a span; must not know servers.
"""

from collections.abc import Sequence
from statistics import mean, median, quantiles

from specbench.metrics import FIRST_PIECE, Trace

ARMS = ("", "baseline_")
TIMES = ("ttft", "prefill", "per_token")  # of which there are percentiles, over requests or prompts
COLUMNS = (
    "ttft_ms",
    "baseline_ttft_ms",
    *(f"{arm}{t}_{p}_ms" for t in TIMES for p in ("median", "p95") for arm in ARMS),
)


def latency(baseline: Sequence[Trace], method: Sequence[Trace], rows: int = 1) -> dict[str, float | None]:
    """Mean wait for the first token, and the median and 95th percentile of every kind of wait, in milliseconds.

    `rows` were decoded together: where several were, their prompts share the time of a batch, and none has its own
    prefill or time per token.
    """
    found = dict[str, float | None](dict.fromkeys(COLUMNS))
    for arm, traces in (("", method), ("baseline_", baseline)):
        waited = [1000 * t.spans[FIRST_PIECE] for t in traces if FIRST_PIECE in t.spans]
        found[f"{arm}ttft_ms"] = mean(waited) if waited else None
        alone = [] if rows > 1 else traces
        prefill = [] if waited else [1000 * t.prefill_seconds for t in alone if t.prefill_seconds > 0]
        per_token = [1000 * t.seconds / len(t.tokens) for t in alone if t.tokens]
        for name, times in zip(TIMES, (waited, prefill, per_token), strict=True):
            found |= {f"{arm}{name}_{point}_ms": value for point, value in percentiles(times).items()}
    return found


def percentiles(times: Sequence[float]) -> dict[str, float | None]:
    """Median and 95th percentile; None of nothing."""
    if not times:
        return {"median": None, "p95": None}
    worst = quantiles(times, n=20, method="inclusive")[-1] if len(times) > 1 else times[0]
    return {"median": median(times), "p95": worst}
