"""A server of completions as an engine: two of them, with a draft and without, asked for the same prompts.

Knows how a spec becomes requests; must not know checkpoints, statistics or files of results.
"""

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from specbench.backends.base import Backend, Decode, Held, Loading, unseen
from specbench.backends.server import counts
from specbench.backends.server.arrivals import Sent, arrival_times, sent_at
from specbench.backends.server.client import Answer, Client, Counters
from specbench.errors import ServerError, UsageError
from specbench.metrics import FIRST_PIECE, HELD, LAST_PIECE, TURN_PART, RoundCounts, Trace
from specbench.seeds import seed_from
from specbench.spec import BASELINE, RunSpec
from specbench.theory.memory import Demand
from specbench.wording import clean

NAME = "openai"
UNLIMITED = 1 << 30  # tokens of a context that the server does not tell
NOTES = (
    "lengths of prompts are in bytes, and the server's own tokenizer reads them; outputs are compared as texts",
    "time to the first token holds the network, the queue and the prompt; of it, what a later piece takes counts as "
    "decoding",
)
TOGETHER = "seconds of requests in flight together are those of the whole turn, prompts included, in equal parts"
OPEN = (
    "requests come at random times, the same for baseline and method, and each has seconds of its own: the speedup is "
    "that of answers under this load, and waits count from when a request came"
)


def open_pair(specs: Sequence[RunSpec]) -> "Server":
    """The servers of some specs, which must be there. Raises UsageError or ServerError."""
    for spec in specs:
        refuse_settings(spec)
    found = Server(specs)
    for url in dict.fromkeys(address(spec) for spec in (*specs, *(one.baseline for one in specs))):
        found.check(Client(url), specs[0].target)
    return found


def refuse_settings(spec: RunSpec) -> None:
    """UsageError for settings that are the server's own."""
    if spec.url is None:
        raise UsageError("--backend openai: name the server with --url http://localhost:8000")
    if spec.method != BASELINE and spec.baseline_url is None:
        raise UsageError(
            "--backend openai: name a server of the same model without a draft with --baseline-url, which the speedup "
            "is over; or measure one server alone with --method baseline"
        )
    if spec.arrivals is not None and spec.batch == 1:
        raise UsageError(
            "--arrivals sends requests whether or not others have ended, and --batch 1 lets one under way: leave it "
            "out, or say how many may be under way at most"
        )
    unable = {
        "--schedule": spec.schedule != "constant", "--acceptance": spec.acceptance is not None,
        "--eta": spec.eta is not None, "--quantize": spec.quantize is not None,
        "--tensor-parallel": spec.tensor_parallel is not None, "--draft-device": spec.draft_device is not None,
        "--chat-template": spec.chat_template not in (None, "none"),
    }  # fmt: skip
    if wrong := [option for option, given in unable.items() if given]:
        raise UsageError(
            f"--backend openai: {wrong[0]} is for the server to decide: leave it out, or start it with that"
        )


def address(spec: RunSpec) -> str:
    """The server that decodes a spec."""
    return (spec.baseline_url if spec.method == BASELINE else None) or spec.url or ""


def request_of(spec: RunSpec, prompt: Sequence[int], seed: int) -> dict[str, Any]:
    """A completion as it is asked for. What only some servers know is named only where it is set."""
    law = {"top_p": spec.top_p, "top_k": spec.top_k, "min_p": spec.min_p, "ignore_eos": spec.ignore_eos or None}
    known = {"model": spec.target, "prompt": text_of(prompt), "max_tokens": spec.max_new_tokens}
    known |= {"temperature": spec.temperature, "seed": seed % (1 << 31)}
    return {**known, **{name: value for name, value in law.items() if value is not None}}


def text_of(prompt: Sequence[int]) -> str:
    """A prompt as it was before it was encoded."""
    return bytes(prompt).decode("utf-8", "surrogatepass")


@dataclass(eq=False)
class Server:
    """The servers that some specs name. Token ids are the bytes of texts: its tokens are the server's affair."""

    specs: Sequence[RunSpec]
    name: ClassVar[str] = NAME
    context: int = UNLIMITED
    scores: None = None
    networks: None = None
    chat: None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    warnings: tuple[str, ...] = ()
    mute: set[str] = field(default_factory=set)  # URLs of servers whose counters did not come

    @property
    def execution(self) -> str:
        urls = dict.fromkeys(address(one) for spec in self.specs for one in (spec.baseline, spec))
        return f"tier server: asked over HTTP, {', '.join(urls)}; where it runs on this machine, its load is ours"

    def check(self, client: Client, model: str) -> None:
        """ServerError where the server serves no such model."""
        served = [name for one in client.models() if isinstance(name := one.get("id"), str)]
        if model not in served:
            raise ServerError(
                f"{client.url}: it serves {clean(', '.join(served) or 'no model', 300)}, not {clean(model)}: name one "
                "of them with --target"
            )

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8", "surrogatepass"))

    def describe(self) -> dict[str, Any]:
        return {"target_source": address(self.specs[0]), "tier_resolved": "server", "dtype_resolved": "the server's"}

    def notes(self, spec: RunSpec) -> Sequence[str]:
        return (*NOTES, *([OPEN] if spec.arrivals is not None else [TOGETHER] if spec.batch > 1 else []))

    def demand(self, held: Sequence[Held]) -> Demand | None:
        return None

    def frugal(self) -> Backend | None:
        return None

    def judge(self) -> None:
        return None

    def load(self, longest: int = 0, watch: Loading = unseen) -> None:
        return

    def unload(self) -> None:
        return

    def keep(self, specs: Sequence[RunSpec]) -> None:
        return

    def prepare(self, spec: RunSpec, longest: int) -> Decode:
        def run(prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Trace]:
            client = Client(address(spec), self.mute)
            requests = [request_of(spec, *one) for one in zip(prompts, seeds, strict=True)]
            before = client.counters()
            began = time.perf_counter()
            answers = answered(client, requests, spec)
            part = (time.perf_counter() - began) / len(answers)
            after = client.counters()
            found = after.since(before) if before is not None and after is not None else None
            shared = spec.batch > 1 and spec.arrivals is None
            rounds = self.rounds(spec, answers, found)
            return [trace_of(*one, part, shared) for one in zip(answers, rounds, strict=True)]

        return run

    def rounds(
        self, spec: RunSpec, answers: Sequence[Answer], found: Counters | None
    ) -> Sequence[tuple[RoundCounts, ...]]:
        """The rounds of some answers, by the best that there is to tell them by. ServerError for impossible counts."""
        most = spec.max_new_tokens * len(answers) + 2 * spec.batch  # the counters' last rounds may come after an answer
        if wrong := counts.impossible(found, answers, most):
            raise ServerError(f"{address(spec)}: {wrong}")
        drafted = found is not None and found.drafts > 0
        totals = [counts.from_totals(answer) for answer in answers]
        if spec.method == BASELINE:
            if spec.baseline_url and (drafted or any(one is not None for one in totals)):
                raise UsageError(f"--baseline-url {spec.baseline_url}: it drafts as well: start it without a draft")
            return list(map(steps, answers))
        if found is not None and drafted:
            return self.said(counts.FROM_COUNTERS, counts.from_counters(found, answers))
        streams = [counts.from_pieces(answer, spec.k) for answer in answers]
        for source, told in ((counts.FROM_TOTALS, totals), (counts.FROM_PIECES, streams)):
            if any(one is not None for one in told):
                return self.said(source, [one or steps(a) for one, a in zip(told, answers, strict=True)])
        return self.said(counts.UNKNOWN, list(map(steps, answers)))

    def said(self, source: str, found: Sequence[tuple[RoundCounts, ...]]) -> Sequence[tuple[RoundCounts, ...]]:
        """Say once where acceptance comes from."""
        self.warnings += () if source in self.warnings else (source,)
        return found


def steps(answer: Answer) -> tuple[RoundCounts, ...]:
    """Every token as a round by itself."""
    return (counts.STEP,) * answer.tokens


def answered(client: Client, requests: Sequence[Mapping[str, Any]], spec: RunSpec) -> list[Answer]:
    """The answers, with so many requests in flight: as one ends, the next begins; or each at a time of its own."""
    if spec.batch == 1:
        return [client.complete(request) for request in requests]
    times = [0.0] * len(requests) if spec.arrivals is None else times_of(spec, requests)
    found = sent_at(times, lambda number: client.complete(requests[number]), spec.batch, hang_up=client.lines.hang_up)
    return [one.answer for one in found] if spec.arrivals is None else list(map(as_it_came, found))


def times_of(spec: RunSpec, requests: Sequence[Mapping[str, Any]]) -> list[float]:
    """When the requests of a turn come: made of their prompts and the seed, so that it is the same for every arm."""
    assert spec.arrivals is not None
    seed = seed_from("arrivals", spec.seed, *(request["prompt"] for request in requests))
    return arrival_times(spec.arrivals, len(requests), seed)


def as_it_came(one: Sent[Answer]) -> Answer:
    """An answer whose pieces are counted from when its request came."""
    arrived = tuple(one.late + seconds for seconds in one.answer.arrived)
    return replace(one.answer, arrived=arrived, held=one.late if one.held else None)


def trace_of(answer: Answer, rounds: Sequence[RoundCounts], part: float, shared: bool) -> Trace:
    """One request as a decode; `part` is its equal part of the seconds of its turn, which are all that it has where it
    was one of several in flight that share them. Of one that comes in one piece nobody can tell what decoding took."""
    first, last = answer.arrived[0], answer.arrived[-1]
    step = (last - first) / (len(answer.arrived) - 1) if len(answer.arrived) > 1 else 0.0
    prefill = 0.0 if shared or len(answer.arrived) == 1 else max(first - step, 0.0)
    seconds = part if shared else last - prefill
    spans = {FIRST_PIECE: first, LAST_PIECE: last, TURN_PART: part}
    spans |= {} if answer.held is None else {HELD: answer.held}
    return Trace(pieces(answer.text, answer.tokens), tuple(rounds), seconds, prefill, spans)


def pieces(text: str, tokens: int) -> tuple[int, ...]:
    """So many numbers that are equal for equal texts of as many tokens, in the place of ids that nobody tells."""
    data = text.encode("utf-8", "surrogatepass")
    ends = [len(data) * (number + 1) // tokens for number in range(tokens)]
    return tuple(named(data[a:b]) for a, b in zip([0, *ends], ends, strict=False))


def named(piece: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(piece, digest_size=6).digest())
