"""Acceptance as servers and load generators report it, in one normal form: of a request, or between two readings of
counters. Pure: every layer may import it.

The normal form and its checks are those of AIPerf's `SpecDecodeAcceptanceRecord`. Field names of engines: vLLM
`entrypoints/generate/base/protocol.py`, SGLang `srt/entrypoints/openai/protocol.py`, llama.cpp
`tools/server/server-task.cpp`, mlx-vlm `server/schemas.py`, TensorRT-LLM `serve/openai_protocol.py`.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from typing import Any

from specbench.metrics import STEP, RoundCounts, outcome
from specbench.wording import clean

MOST = 10**10  # of any count
WIDEST = 1024  # maximum tokens of a draft: more than any engine drafts per round
SPARE = 2  # rounds of a request beyond its tokens: an engine that schedules ahead may run some after the last token


@dataclass(frozen=True)
class Record:
    """The rounds with a draft of one request or of several: their number, and the drafted and accepted tokens in them.

    source: where it comes from. rounds: None where only tokens are reported (llama.cpp); drafted: None where only
    rounds and accepted tokens are. histogram[j]: rounds that accepted exactly j tokens; steps: (drafted, accepted) of
    each round in order; both are empty where not reported.
    """

    source: str
    rounds: int | None
    drafted: int | None
    accepted: int
    histogram: tuple[int, ...] = ()
    steps: tuple[tuple[int, int], ...] = ()

    def wrong(self, most: int) -> str | None:
        """Why these counts cannot be those of requests for at most `most` tokens, SPARE included; None if they can."""
        rounds = most if self.rounds is None else self.rounds
        drafted = rounds * WIDEST if self.drafted is None else self.drafted
        found = f"{clean(drafted)} drafted and {clean(self.accepted)} accepted tokens"
        found = found if self.rounds is None else f"{clean(rounds)} rounds, {found}"
        if rounds > most or not 0 <= self.accepted <= drafted <= rounds * WIDEST:
            return f"{found} for at most {most:,} new ones"
        total, tokens = sum(self.histogram), sum(j * number for j, number in enumerate(self.histogram))
        if self.histogram and (total, tokens) != (rounds, self.accepted):
            return f"{found}, but a histogram of {total} rounds and {tokens} tokens"
        sums = (len(self.steps), *map(sum, zip(*self.steps, strict=True)))
        if self.steps and sums != (rounds, drafted, self.accepted):
            return f"{found}, but {sums[0]} single rounds of {sums[1]} drafted and {sums[2]} accepted tokens"
        if any(accepted > drafted for drafted, accepted in self.steps):
            return f"{found}, but a single round that accepted more than it drafted"
        return None

    def each(self, k: int, tokens: int = 0) -> list[RoundCounts]:
        """The rounds, in order where that is reported.

        Without a histogram tokens are divided equally. Where drafted tokens are not reported they are K a round; where
        rounds are not, every one of `tokens` but the first that was not accepted is a round.
        """
        if self.steps:
            steps: Iterable[tuple[int, int]] = self.steps
        else:
            rounds = max(tokens - 1 - self.accepted, min(self.drafted or 0, 1)) if self.rounds is None else self.rounds
            known = [j for j, number in enumerate(self.histogram) for _ in range(number)]
            accepted = known or spread(self.accepted, rounds)
            drafted = drafts(rounds * k if self.drafted is None else self.drafted, accepted)
            steps = zip(drafted, accepted, strict=True)
        return [outcome(drafted, accepted, accepted + 1, drafted) for drafted, accepted in steps]


def spread(total: int, parts: int) -> list[int]:
    """A total divided into `parts` numbers that differ by at most 1."""
    return [total // parts + (number < total % parts) for number in range(parts)] if parts else []


def drafts(total: int, accepted: Sequence[int]) -> list[int]:
    """The drafted tokens of rounds whose accepted ones are known: equal, where none drafts less than it accepts."""
    found = [max(pair) for pair in zip(spread(total, len(accepted)), accepted, strict=True)]
    for spare in (1, 0):  # the rejected token of a round is the last one to be taken away
        for number, least in enumerate(accepted):
            found[number] -= min(max(sum(found) - total, 0), max(found[number] - least - spare, 0))
    return found


def fitted(rounds: Sequence[RoundCounts], tokens: int) -> tuple[RoundCounts, ...]:
    """The first token, the rounds up to `tokens`, and rounds without a draft for the remaining ones."""
    found, left = [STEP], tokens - 1
    for one in rounds:
        emitted = min(one.emitted, left)
        left -= emitted
        found += [replace(one, accepted=min(one.accepted, emitted), emitted=emitted)] if emitted else []
    return (*found, *[STEP] * left)


# --- of a request -----------------------------------------------------------------------------------------------------

VLLM = "each request (metrics.speculative_decoding)"
SGLANG = "each request (sglext.spec_tokens_details)"
TENSORRT = "each request (speculative_decoding of its choice)"
TIMINGS = "each request (timings)"
BENCH = "the counters that vllm bench serve saves"
TOTALS = "the totals of each request (timings): without rounds, so that by position it is a mean"
MEAN = "the mean of each request (avg_decoded_tokens_per_iter), with the K of --k"
PARTS = ("metrics", "sglext", "timings")  # of an event, which may hold a record
CHOICE = ("speculative_decoding", "avg_decoded_tokens_per_iter")  # of its choice
# By source, the fields of rounds, drafted and accepted tokens, and the histogram
FIELDS = {
    VLLM: ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens", "acceptance_histogram"),
    SGLANG: ("spec_verify_ct", "spec_num_proposed_drafts", "spec_num_correct_drafts", "spec_correct_drafts_histogram"),
    TENSORRT: ("num_spec_steps", "total_draft_tokens", "total_accepted_draft_tokens", "acceptance_histogram"),
    TIMINGS: ("draft_rounds", "draft_n", "draft_n_accepted", ""),
    BENCH: ("spec_decode_num_drafts", "spec_decode_draft_tokens", "spec_decode_accepted_tokens", ""),
}
SINGLE = ("per_step_drafted", "per_step_accepted")


def record_of(reported: Mapping[str, Any], tokens: int) -> Record | None:
    """The record of an answer of `tokens` tokens, from the PARTS and CHOICE of its events; None without a record.
    ValueError, with what was found, for a malformed one."""
    one = part(reported, "sglext").get("spec_tokens_details")
    one = one[0] if isinstance(one, list) and one else one  # SGLang has one for every choice of a request
    found = {
        VLLM: part(part(reported, "metrics"), "speculative_decoding"),
        SGLANG: one if isinstance(one, Mapping) else {},
        TENSORRT: part(reported, "speculative_decoding"),
        TIMINGS: part(reported, "timings"),
    }
    for source, fields in found.items():
        if FIELDS[source][2] in fields:
            return record_in(fields, source)
    mean = reported.get("avg_decoded_tokens_per_iter")  # rounds without a draft included
    if not isinstance(mean, int | float):
        return None
    if not 1 <= mean <= WIDEST:
        raise ValueError(f"avg_decoded_tokens_per_iter of {clean(mean)}")
    rounds = round(tokens / mean)
    return Record(MEAN, rounds, None, tokens - rounds) if 0 < rounds < tokens else None


def record_in(fields: Mapping[str, Any], source: str) -> Record:
    """The record in the fields of a source. ValueError, with what was found, for a malformed one."""
    rounds, drafted, accepted, histogram = FIELDS[source]
    totals = source == TIMINGS and rounds not in fields
    some = None if totals else count(fields.get(rounds), rounds)
    single = [counts(fields, name) for name in SINGLE]
    if len(single[0]) != len(single[1]):
        raise ValueError(f"{' and '.join(SINGLE)} of {len(single[0])} and {len(single[1])} rounds")
    return Record(
        TOTALS if totals else source, some, count(fields.get(drafted), drafted), count(fields.get(accepted), accepted),
        trimmed(counts(fields, histogram)), tuple(zip(*single, strict=True)),
    )  # fmt: skip


def part(whole: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """An object inside another; empty if it is missing or null."""
    found = whole.get(name)
    return found if isinstance(found, Mapping) else {}


def count(found: object, name: str) -> int:
    """A whole number from 0 to `MOST`. ValueError, with its name, for anything else."""
    if type(found) is not int or not 0 <= found <= MOST:
        raise ValueError(f"{name} of {clean(found, 40)} instead of a count")
    return found


def counts(fields: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """A list of whole numbers, or a mapping of places to them (AIPerf); empty if it is missing or null."""
    found = fields.get(name) or ()
    if isinstance(found, Mapping):
        return along(Counter({count_in(place, WIDEST): count(one, name) for place, one in found.items()}))
    if not isinstance(found, list | tuple):
        raise ValueError(f"{name} of {clean(found)} instead of counts")
    return tuple(count(one, name) for one in found)


def trimmed(histogram: Sequence[int]) -> tuple[int, ...]:
    """A histogram without the zeros at its end, which say how long a draft could have been."""
    return tuple(histogram[: max((j + 1 for j, rounds in enumerate(histogram) if rounds), default=0)])


# --- counters ---------------------------------------------------------------------------------------------------------

COUNTERS = "the server's counters (/metrics) while nothing else ran"
# The counters of vLLM, llama.cpp and those that follow them, of SGLang, and of TensorRT-LLM, without their prefix
NAMES = {
    "spec_decode_num_drafts": "rounds", "spec_decode_num_draft_tokens": "drafted",
    "spec_decode_num_accepted_tokens": "accepted", "spec_decode_num_accepted_tokens_per_pos": "accepted_at",
    "spec_decode_drafted_tokens": "drafted_at", "spec_decode_accepted_tokens": "accepted_at",
    "spec_verify_calls": "verified", "generation_tokens": "tokens", "tokens_predicted": "tokens",
    "request_success": "requests", "num_requests_running": "running", "num_requests_waiting": "running",
    "requests_processing": "running", "requests_deferred": "running", "num_running_reqs": "running",
    "num_queue_reqs": "running",
}  # fmt: skip
SERIES = re.compile(
    rf"^(?:\w+:|trtllm_)(?P<name>{'|'.join(sorted(NAMES, key=len, reverse=True))})(?:_total)?"
    r"(?:\{(?P<labels>[^}\n]*)\})? +(?P<value>\S+)",
    re.MULTILINE,
)
POSITION = re.compile(r'(?:^|,)(?:token_)?position="(\d+)"')
FOLLOWER = re.compile(r'\b(?:tp|pp)_rank="[1-9]')  # SGLang: other ranks repeat the counts of the first


@dataclass(frozen=True)
class Counters:
    """Totals of a server since its start: rounds with a draft, drafted and accepted tokens, and those by position.

    requests, tokens: ended requests and decoded tokens; running: requests under way; None where not reported.
    verified: rounds of SGLang, which has no counters of drafted or accepted tokens.
    """

    drafts: int
    drafted: int
    accepted: int
    by_position: tuple[int, ...] = ()
    requests: int | None = None
    tokens: int | None = None
    running: int | None = None
    verified: int | None = None

    def since(self, before: "Counters") -> "Counters":
        """The difference to an earlier reading; below 0 if the server was restarted in between."""
        places = tuple(a - b for a, b in zip_longest(self.by_position, before.by_position, fillvalue=0))
        now, then = vars(self), vars(before)
        most = max((one for one in (self.running, before.running) if one is not None), default=None)
        rest: dict[str, Any] = {name: None if None in (now[name], then[name]) else now[name] - then[name]
                for name in now if name not in ("by_position", "running")}  # fmt: skip
        return Counters(by_position=places, running=most, **rest)

    @property
    def fell(self) -> bool:
        """Whether a difference shows that the server was restarted in between."""
        rest = [one for one in (self.requests, self.tokens, self.verified) if one is not None]
        return min(self.drafts, self.drafted, self.accepted, *self.by_position, *rest) < 0

    def foreign(self, requests: int, tokens: int) -> str | None:
        """How a difference shows that the server did more than these requests with their tokens; None if it did not."""
        if self.running:
            return f"{self.running} requests were under way before or after ours"
        if self.requests is not None and self.requests != requests:
            return f"it ended {self.requests} requests, and {requests} are ours"
        if self.tokens is not None and abs(self.tokens - tokens) > max(requests, tokens // 100):
            return f"it decoded {self.tokens} tokens, and {tokens} are ours"
        return None

    def record(self, requests: int) -> Record | None:
        """A difference, over `requests` requests, in the normal form; None without rounds with a draft.

        SGLang: a verifying pass emits one token besides the accepted ones, and the first token of a request has none.
        """
        if self.verified and self.tokens is not None:
            return Record(COUNTERS, self.verified, None, max(self.tokens - requests - self.verified, 0))
        if not self.drafts:
            return None
        reached = (self.drafts, *self.by_position, 0)
        histogram = tuple(a - b for a, b in pairwise(reached)) if self.by_position else ()
        return Record(COUNTERS, self.drafts, self.drafted, self.accepted, trimmed(histogram))


def counters_in(text: str) -> Counters | None:
    """The counters of speculation in Prometheus text; None if it has none.
    ValueError, naming the value, for an impossible one."""
    totals: Counter[str] = Counter()
    places: dict[str, Counter[int]] = {"accepted_at": Counter(), "drafted_at": Counter()}
    for found in SERIES.finditer(text):
        name, labels = NAMES[found["name"]], found["labels"] or ""
        value = count_in(found["value"], math.inf)
        if FOLLOWER.search(labels):
            continue
        if name not in places:
            totals[name] += value
        elif position := POSITION.search(labels):
            places[name][count_in(position[1], WIDEST)] += value
    accepted, drafted = map(along, places.values())
    if not {"rounds", "verified"} & set(totals) and not drafted:
        return None
    rounds = totals["rounds"] or (drafted[0] if drafted else 0)
    more = (totals.get(name) for name in ("requests", "tokens", "running", "verified"))
    totals["accepted"] = sum(accepted) or totals["accepted"]  # exact: llama.cpp prints six digits of the others
    return Counters(rounds, totals["drafted"] or sum(drafted), totals["accepted"], accepted, *more)


def along(places: Counter[int]) -> tuple[int, ...]:
    """Counts by position, from the first on."""
    return tuple(places[i] for i in range(max(places, default=-1) + 1))


def count_in(text: str, end: float) -> int:
    """A whole number below `end`, which may be written as 16.0. ValueError for anything else."""
    try:
        value = float(text)
        if 0 <= value < end and value.is_integer():
            return int(value)
    except ValueError:
        pass
    raise ValueError(f"{clean(text)!r} instead of a count")


def divided(record: Record, tokens: Sequence[int], k: int) -> list[tuple[RoundCounts, ...]]:
    """The rounds of each answer, `tokens` of their lengths, from the record of all together: divided equally."""
    rounds = record.each(k)
    return [fitted(rounds[number :: len(tokens)], one) for number, one in enumerate(tokens)]
