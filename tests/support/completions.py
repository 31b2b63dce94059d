"""A server of chats and completions on this machine: OpenAI's API as vLLM and llama.cpp speak it, and its faults.

A chat answers with the text of its last message, over and over.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

Fault = Literal["429", "500", "stall", "garbage", "death", "short", "error", "no usage", ""]


@dataclass
class Model:
    """What is served, and how it drafts: K tokens a round, of which so many are accepted, round after round.

    reports: what it says of that; pieces: whether a round comes as one piece, or every token by itself. fault: what
    goes wrong with completions from the `after`-th on. together: nothing is answered before so many are in flight.
    raw: the bytes that are sent instead of an answer, by path, piece by piece. says: more of the last event. owner: the
    engine, as it names itself. refuses: a field of requests that, unless it is 0, is answered with 400 and `refusal`.
    reasons: the first round of a chat is reasoning.
    """

    name: str = "tiny"
    owner: str = ""
    refuses: str = ""
    refusal: str = ""
    reasons: bool = False
    k: int = 0
    accepted: Sequence[int] = (2, 0, 1)
    reports: Literal["counters", "positions", "timings", "record", ""] = ""
    pieces: bool = True
    fault: Fault = ""
    after: int = 1
    together: threading.Barrier | None = None
    raw: Mapping[str, Callable[[], Iterable[bytes]]] = field(default_factory=dict)
    says: Mapping[str, Any] = field(default_factory=dict)
    posted: list[str] = field(default_factory=list)  # paths of every request for an answer
    paths: list[str] = field(default_factory=list)  # of every request so far
    requests: list[dict[str, Any]] = field(default_factory=list)
    drafts: list[int] = field(default_factory=list)  # accepted tokens of every round so far
    most: int = 0  # requests in flight at once
    flying: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def card(self) -> dict[str, str]:
        """Its entry in the list of models."""
        return {"id": self.name, **({"owned_by": self.owner} if self.owner else {})}

    def rounds(self, new: int) -> list[int]:
        """The tokens of every round: the first one comes with the prompt."""
        found, number = [1], 0
        while sum(found) < new:
            accepted = self.accepted[number % len(self.accepted)] if self.k else 0
            emitted = min(accepted + 1, new - sum(found))
            if self.k:
                self.drafts.append(emitted - 1)
            found, number = [*found, emitted], number + 1
        return found

    def metrics(self) -> str:
        if self.reports not in ("counters", "positions"):
            return "process_cpu_seconds_total 3.5\n"
        name = "vllm:spec_decode_num_"
        totals = {
            "drafts": len(self.drafts),
            "draft_tokens": self.k * len(self.drafts),
            "accepted_tokens": sum(self.drafts),
        }
        lines = [f'{name}{key}_total{{model_name="{self.name}"}} {value}.0' for key, value in totals.items()]
        if self.reports == "positions":
            places = [sum(one > place for one in self.drafts) for place in range(self.k)]
            lines += [f'{name}accepted_tokens_per_pos_total{{position="{i}"}} {n}.0' for i, n in enumerate(places)]
        return "\n".join(lines) + "\n"


class Handler(BaseHTTPRequestHandler):
    @property
    def model(self) -> Model:
        return self.server.model  # type: ignore[attr-defined, no-any-return]

    def log_message(self, *_: Any) -> None:
        return

    def do_GET(self) -> None:
        self.model.paths.append(self.path)
        if self.path in self.model.raw:
            self.send_raw()
            return
        known = {"/v1/models": json.dumps({"data": [self.model.card]}), "/metrics": self.model.metrics()}
        self.answer(200 if self.path in known else 404, known.get(self.path, "no such page"))

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        model = self.model
        with model.lock:
            self.flies = True
            model.requests.append(request)
            model.posted.append(self.path)
            model.flying += 1
            model.most = max(model.most, model.flying)
            fault = model.fault if len(model.requests) >= model.after else ""
        try:
            if model.together is not None:
                model.together.wait(60)
            self.complete(request, fault)
        except OSError:
            pass  # whoever asked has hung up
        finally:
            self.land()

    def send_raw(self) -> None:
        """Until there is no more, or whoever asked has hung up."""
        try:
            for part in self.model.raw[self.path]():
                self.wfile.write(part)
                if self.server.released.is_set():  # type: ignore[attr-defined]
                    return
        except OSError:
            pass

    def land(self) -> None:
        """The request is in flight no more: before its last line is sent, as the next request may come with it."""
        with self.model.lock:
            self.model.flying -= self.flies
            self.flies = False

    def complete(self, request: dict[str, Any], fault: str) -> None:
        if self.path in self.model.raw:
            self.send_raw()
            return
        if request.get(self.model.refuses):
            self.answer(400, json.dumps({"error": {"message": self.model.refusal, "code": 400}}))
            return
        if fault in ("429", "500"):
            self.answer(int(fault), '{"error": {"message": "no\\u001b[31m place"}}', {"Retry-After": "7"})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        if fault == "stall":
            self.server.released.wait(60)  # type: ignore[attr-defined]
            return
        chat, new = "messages" in request, request["max_tokens"]
        text = text_of(request["messages"][-1]["content"] if chat else request["prompt"], new)
        with self.model.lock:
            sizes = self.model.rounds(new)
        sizes = sizes if self.model.pieces else [1] * new
        begun = 0
        if chat:
            self.event(json.dumps({"choices": [{"delta": {"role": "assistant", "content": None}}]}))
        for number, size in enumerate(sizes):
            if fault == "garbage" and number == 1:
                self.event("<html>nginx</html>")
            if fault == "error" and number == 1:
                self.event(json.dumps({"error": {"message": "out of cache"}}))
            if fault in ("death", "short") and number == 1:
                return
            said = "".join(text[begun : begun + size])
            part = "reasoning_content" if self.model.reasons and number == 0 else "content"
            self.event(json.dumps({"choices": [{"delta": {part: said}} if chat else {"text": said}]}))
            begun += size
        usage = {} if fault == "no usage" else {"usage": {"completion_tokens": new}}
        accepted = sum(size - 1 for size in sizes[1:])
        timings = {"draft_n": self.model.k * (len(sizes) - 1), "draft_n_accepted": accepted}
        more = {"timings": timings} if self.model.reports == "timings" else {}
        if self.model.reports == "record":
            found = [sum(size - 1 == j for size in sizes[1:]) for j in range(self.model.k + 1)]
            record = {
                "num_spec_steps": len(sizes) - 1, "num_draft_tokens": timings["draft_n"], "acceptance_histogram": found,
                "num_accepted_draft_tokens": accepted,
            }  # fmt: skip
            more = {"metrics": {"speculative_decoding": record}}
        self.event(json.dumps({"choices": [], **usage, **more, **self.model.says}))
        self.land()
        self.event("[DONE]")

    def event(self, data: str) -> None:
        self.wfile.write(f"data: {data}\n\n".encode())
        self.wfile.flush()
        time.sleep(0.0005)  # so that pieces arrive one after the other

    def answer(self, status: int, body: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body.encode())


def text_of(prompt: str, new: int) -> list[str]:
    """What the model writes: its prompt, over and over, a character a token."""
    return [prompt[number % len(prompt)] for number in range(new)]


class Patient(ThreadingHTTPServer):
    """Lets as many wait as a test asks at once: five, which is usual, and a busy machine resets the others."""

    request_queue_size = 256


@contextmanager
def serving(model: Model) -> Iterator[str]:
    """The URL of a server of that model, while it runs."""
    server = Patient(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.model, server.released = model, threading.Event()  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.released.set()  # type: ignore[attr-defined]
        server.shutdown()
        server.server_close()
        thread.join()
