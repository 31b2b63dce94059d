"""What servers got done, as columns: tokens and requests a second over whole turns, prompts and waits included.

Empty of engines in this process. Knows traces and the names of spans; must not know servers.
"""

import math
from collections.abc import Sequence

from specbench.metrics import HELD, TURN_PART, Trace
from specbench.results.latency import ARMS

NAMES = ("served_tokens_per_second", "served_requests_per_second", "requests_held")
COLUMNS = tuple(f"{arm}{name}" for name in NAMES for arm in ARMS)


def served(baseline: Sequence[Trace], method: Sequence[Trace]) -> dict[str, float | None]:
    """Of both arms: throughput from when the first request of a turn came to the end of its last answer, and how many
    requests waited for a place among those that may be under way."""
    found = dict[str, float | None](dict.fromkeys(COLUMNS))
    for arm, traces in (("", method), ("baseline_", baseline)):
        requests = [trace for trace in traces if trace.spans.get(TURN_PART, 0.0) > 0]
        if not requests:
            continue
        seconds = math.fsum(trace.spans[TURN_PART] for trace in requests)
        held = sum(HELD in trace.spans for trace in requests)
        numbers = (sum(len(trace.tokens) for trace in requests) / seconds, len(requests) / seconds, held)
        found |= {f"{arm}{name}": number for name, number in zip(NAMES, numbers, strict=True)}
    return found
