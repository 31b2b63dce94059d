"""Requests of servers, and latency of all engines: first token, prompt, per token, per step, whole answer; throughput,
and requests within limits of latency.

First-token and whole-answer latency are measured for server requests and blank for in-process engines, where
a reader waits for the prompt and one round; so is the throughput over whole turns.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median, quantiles
from typing import Any

from specbench.acceptance import Record
from specbench.metrics import FIRST_PIECE, HELD, LAST_PIECE, PIECE_GAP, TURN_PART, Trace, limits_of
from specbench.results.statistics import Interval, bounds, difference_of_shares, share_of

ARMS = ("", "baseline_")
TIMES = ("ttft", "prefill", "per_token", "per_step", "latency")  # these have percentiles, over requests or prompts
POINTS = ("median", "p90", "p95", "p99")
LATENCY = ("ttft_ms", "baseline_ttft_ms", *(f"{arm}{t}_{p}_ms" for t in TIMES for p in POINTS for arm in ARMS))


@dataclass(frozen=True)
class Request:
    """One request to a server; times in seconds.

    key: the prompt, and the turn if it has several; equal in another file for the same one. draw: the prompt or the
    conversation, whose requests depend on each other. began: when it was sent, on a clock that all requests of a file
    share. first, last: from then to the first and the last piece of its answer. tokens: of the answer, by the usage
    that the server reports where it does. step: mean time between two pieces of the stream, None if there is one. A
    piece holds all tokens of a round, so this is not per token. text: a digest of the answer, empty if not recorded.
    A failed request has neither times nor tokens.
    """

    key: str
    draw: str
    began: float
    first: float = 0.0
    last: float = 0.0
    tokens: int = 0
    step: float | None = None
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


def requests_of(traces: Iterable[Trace]) -> list[Request]:
    """The requests among some traces, on a clock of their own."""
    return [
        Request("", "", 0.0, spans[FIRST_PIECE], spans[LAST_PIECE], len(trace.tokens), spans.get(PIECE_GAP))
        for trace in traces
        if LAST_PIECE in (spans := trace.spans)
    ]


def latency(baseline: Sequence[Trace], method: Sequence[Trace], rows: int = 1) -> dict[str, float | None]:
    """Mean time to first token, and the percentiles of every latency, in milliseconds.

    `rows` were decoded together: if several, their prompts share the time of a batch and have no separate
    prefill; only server requests, whose pieces have times, then have their own time per token.
    """
    found = dict[str, float | None](dict.fromkeys(LATENCY))
    for arm, traces in (("", method), ("baseline_", baseline)):
        requests = requests_of(traces)
        times = times_of(requests) if requests else {}
        if not requests and rows == 1:
            times["prefill"] = [trace.prefill_seconds for trace in traces if trace.prefill_seconds > 0]
            times["per_token"] = [trace.seconds / len(trace.tokens) for trace in traces if trace.tokens]
        found[f"{arm}ttft_ms"] = 1000 * mean(times["ttft"]) if requests else None
        found |= in_milliseconds(arm, times)
    return found


def times_of(requests: Sequence[Request]) -> dict[str, list[float]]:
    """The seconds of some requests by the names in `TIMES`, without those that an answer in one piece does not have."""
    return {
        "ttft": [one.first for one in requests],
        "per_token": [one.tpot for one in requests if one.tokens > 1 and one.decoding > 0],
        "per_step": [one.step for one in requests if one.step is not None],
        "latency": [one.last for one in requests],
    }


def in_milliseconds(arm: str, times: Mapping[str, Sequence[float]]) -> dict[str, float | None]:
    """The percentiles `POINTS` of some seconds as columns of an arm; None without values."""
    found: dict[str, float | None] = {}
    for name, seconds in times.items():
        ranks = quantiles(seconds, n=100, method="inclusive") if len(seconds) > 1 else [*seconds] * 99
        values = (median(seconds), ranks[89], ranks[94], ranks[98]) if seconds else (None,) * 4
        columns = (f"{arm}{name}_{point}_ms" for point in POINTS)
        found |= {column: value and 1000 * value for column, value in zip(columns, values, strict=True)}
    return found


# --- throughput -------------------------------------------------------------------------------------------------------

PER_SECOND = ("tokens_per_second_per_user", "served_tokens_per_second", "served_requests_per_second")
SERVED = tuple(f"{arm}{name}" for name in (*PER_SECOND, "requests_held") for arm in ARMS)


def served(baseline: Sequence[Trace], method: Sequence[Trace]) -> dict[str, float | None]:
    """Throughput of both arms from the first request of a turn to its last answer, and the queued requests."""
    found = dict[str, float | None](dict.fromkeys(SERVED))
    for arm, traces in (("", method), ("baseline_", baseline)):
        if requests := requests_of(traces):
            found |= throughput(arm, requests, seconds_of(traces))
            found[f"{arm}requests_held"] = sum(HELD in trace.spans for trace in traces)
    return found


def seconds_of(traces: Iterable[Trace]) -> float:
    """The seconds of whole turns, of which every request has an equal part."""
    return math.fsum(trace.spans.get(TURN_PART, 0.0) for trace in traces)


def throughput(arm: str, requests: Sequence[Request], seconds: float) -> dict[str, float | None]:
    """The columns `PER_SECOND` of answered requests: of a user after the first piece, and in all over `seconds`."""
    tokens, (whole, later) = sum(one.tokens for one in requests), decoded(requests)
    numbers = (later / whole if whole else None, *(n / seconds if seconds else None for n in (tokens, len(requests))))
    return {f"{arm}{name}": number for name, number in zip(PER_SECOND, numbers, strict=True)}


def decoded(requests: Iterable[Request]) -> tuple[float, int]:
    """Seconds and tokens after the first piece."""
    some = list(requests)
    return math.fsum(one.decoding for one in some), sum(max(one.tokens - 1, 0) for one in some)


def seconds_over(requests: Iterable[Request]) -> float:
    """From when the first request was sent to the last piece of an answer."""
    all_of_them = list(requests)
    return max(one.began + one.last for one in all_of_them) - min(one.began for one in all_of_them)


# --- limits of latency ------------------------------------------------------------------------------------------------

LIMITED = {"ttft": "first", "tpot": "tpot", "e2e": "last"}  # the time of a request, by the name of its limit
WITHIN = tuple(
    f"{name}{end}"
    for name in (*(f"{arm}{name}" for name in ("slo_share", "goodput") for arm in ARMS), "slo_share_difference")
    for end in ("", "_low", "_high")
)


def within(request: Request, limits: Mapping[str, float]) -> bool:
    """Whether a request meets every limit; a failed one meets none."""
    return not request.failed and all(getattr(request, LIMITED[name]) <= most for name, most in limits.items())


def goodput(
    arm: str, requests: Sequence[Request], draws: int, seconds: float, limits: Mapping[str, float]
) -> dict[str, float | None]:
    """The share of some requests within all limits, and how many do a second, as columns with intervals."""
    share = share_of(sum(within(one, limits) for one in requests), len(requests), draws)
    rate = [value * len(requests) / seconds if seconds else math.nan for value in vars(share).values()]
    return {**bounds(f"{arm}slo_share", share), **bounds(f"{arm}goodput", Interval(*rate))}


def goodput_difference(
    pairs: Iterable[tuple[Request, Request]], draws: int, limits: Mapping[str, float]
) -> dict[str, float | None]:
    """The share of the second requests of some pairs within all limits, less that of the first ones."""
    met = [(within(one, limits), within(other, limits)) for one, other in pairs]
    return bounds("slo_share_difference", difference_of_shares(met, draws))


def goodputs(baseline: Sequence[Trace], method: Sequence[Trace], draws: int, slo: str | None) -> dict[str, Any]:
    """The columns `WITHIN` of a cell; None without limits, or if these were no requests."""
    arms = {"baseline_": baseline, "": method}
    requests = {arm: requests_of(traces) for arm, traces in arms.items()}
    if slo is None or not all(len(requests[arm]) == len(traces) > 0 for arm, traces in arms.items()):
        return dict.fromkeys(WITHIN)
    limits, pairs = limits_of(slo), zip(*requests.values(), strict=True)
    shares = [goodput(arm, requests[arm], draws, seconds_of(traces), limits) for arm, traces in arms.items()]
    return {**shares[0], **shares[1], **goodput_difference(pairs, draws, limits)}
