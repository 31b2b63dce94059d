"""Latency (first token, prompt, per further token, whole answer), throughput, and requests within limits of latency.

First-token and whole-answer latency are measured for server requests and blank for in-process engines, where
a reader waits for the prompt and one round; so is the throughput over whole turns.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median, quantiles

from specbench.acceptance import Record
from specbench.errors import UsageError
from specbench.metrics import FIRST_PIECE, HELD, LAST_PIECE, TURN_PART, Trace
from specbench.wording import clean

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


# --- requests ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """One request of a load generator; times in seconds.

    key: the prompt, and the turn if it has several; equal in another file for the same one. draw: the prompt or the
    conversation, whose requests depend on each other. began: when it was sent, on a clock that all requests of a file
    share. first, last: from then to the first and the last piece of its answer. tokens: of the answer, by the usage
    that the server reports where it does. pieces: of the stream. text: a digest of the answer, empty if not recorded.
    A failed request has neither times nor tokens.
    """

    key: str
    draw: str
    began: float
    first: float = 0.0
    last: float = 0.0
    tokens: int = 0
    pieces: int = 0
    text: str = ""
    acceptance: Record | None = None
    failed: bool = False

    @property
    def decoding(self) -> float:
        """Seconds from the first piece to the last one."""
        return self.last - self.first

    @property
    def tpot(self) -> float:
        """Seconds per token after the first; 0 if there is none, as `vllm bench serve --goodput` has it."""
        return self.decoding / (self.tokens - 1) if self.tokens > 1 else 0.0

    @property
    def step(self) -> float | None:
        """Mean seconds between two pieces. A piece holds all tokens of a round, so this is not per token."""
        return self.decoding / (self.pieces - 1) if self.pieces > 1 else None


LIMITS = {"ttft": "first", "tpot": "tpot", "e2e": "last"}  # by the time of a request
LIMIT = re.compile(r"(\w+) ?[=:] ?(\d{1,9}(?:\.\d{1,9})?) ?(ms|s)", re.ASCII)


def limits_of(text: str) -> dict[str, float]:
    """Parse `ttft=500ms,tpot=30ms,e2e=2s` into seconds. UsageError if it is another text."""
    found: dict[str, float] = {}
    for part in text.split(","):
        match = LIMIT.fullmatch(part.strip())
        if match is None or match[1] not in LIMITS or match[1] in found or not float(match[2]):
            raise UsageError(
                f"cannot read {clean(part.strip(), 60)!r} in --slo: write ttft, tpot and e2e, each at most once, with "
                "ms or s, such as ttft=500ms,tpot=30ms,e2e=2s"
            )
        found[match[1]] = float(match[2]) * (0.001 if match[3] == "ms" else 1)
    return found


def within(request: Request, limits: Mapping[str, float]) -> bool:
    """Whether a request meets every limit; a failed one meets none."""
    return not request.failed and all(getattr(request, LIMITS[name]) <= most for name, most in limits.items())


def seconds_over(requests: Iterable[Request]) -> float:
    """From when the first request was sent to the last piece of an answer."""
    all_of_them = list(requests)
    return max(one.began + one.last for one in all_of_them) - min(one.began for one in all_of_them)
