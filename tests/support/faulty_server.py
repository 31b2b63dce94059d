"""A server of a toy language model with and without speculation, in the shapes of vLLM 0.32, with faults to switch on.

It has what an audit sends: lists of models, tokens, and answers as a whole.

`Server(...).handle` answers in this process; `serving` puts a server behind a port of this machine.
"""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from http.server import BaseHTTPRequestHandler
from typing import Any

import numpy as np

from tests.support.completions import Patient
from tests.support.server_faults import FAULTS
from tests.support.toy_engine import (
    EMPTY,
    IDS,
    PROMPT,
    Answer,
    Asked,
    Draft,
    Engine,
    Flight,
    Rows,
    advance,
    ids_of,
    model_of,
)

Body = dict[str, Any]
NAME = "target"
LONGEST = 4096  # tokens of a prompt and its answer
LOGPROBS = 20  # per place
WAIT = 0.001  # seconds in which requests meet, where that matters
PLAIN = {one.name for one in fields(Asked)} - {"prompt", "json"}  # fields with the names and types of requests
UNSUPPORTED = "The min_p and logit_bias sampling parameters are not yet supported with speculative decoding."


class RefusedError(Exception):
    """A request that vLLM refuses."""


class Server:
    """fault: a name of FAULTS, of the speculating server. noise: deviation of the rounding of logits, which depends on
    the prefix and the width of the pass. k: length of the draft. seed: of the model; two servers of one seed have one
    model. draft: as the fault needs it, else greedy. refuses: whether min_p and logit_bias are refused under
    speculation, as in vLLM."""

    def __init__(
        self, fault: str | None = None, speculative: bool = True, noise: float = 0.0, k: int = 4, seed: int = 0,
        draft: Draft | None = None, refuses: bool = True,
    ) -> None:  # fmt: skip
        found = FAULTS[fault] if fault else None
        if found and not speculative:
            raise ValueError(f"the fault {fault!r} is one of speculation: leave it out, or speculate")
        self.answer: type[Answer] = found.answer if found else Answer
        draft = draft or (found.draft if found else "greedy")
        self.engine = Engine(model_of(seed), k * speculative, draft, noise, seed)
        self.refuses = refuses
        self.lock, self.flying, self.number = self.engine.lock, list[Flight](), 0

    def handle(self, method: str, path: str, body: Body | None = None) -> tuple[int, Any]:
        """The status and the body."""
        try:
            if (method, path) == ("GET", "/v1/models"):
                card = {"id": NAME, "object": "model", "owned_by": "vllm", "max_model_len": LONGEST}
                return 200, {"object": "list", "data": [card]}
            return 200, self.posted(path, body or {})
        except RefusedError as error:
            return 400, {"error": {"message": str(error), "type": "BadRequestError", "param": None, "code": 400}}

    def posted(self, path: str, body: Body) -> Any:
        prompt = prompt_of(body)
        if path == "/tokenize":
            return {"tokens": prompt}
        return Said(self.decoded(self.asked(body, prompt)), body, self.engine.k).whole()

    def asked(self, body: Body, prompt: Sequence[int]) -> Asked:
        """The fields of a request, checked as vLLM does."""
        given = {name: value for name, value in body.items() if name in PLAIN and value is not None}
        given |= {name: tuple(given.get(name, ())) for name in ("stop", "stop_token_ids")}
        form = (body.get("response_format") or {}).get("type")
        asked = Asked(tuple(prompt), json=form == "json_schema", **given)
        if self.engine.k and self.refuses and (asked.min_p or asked.logit_bias):
            raise RefusedError(UNSUPPORTED)
        top = max(body.get(name) or 0 for name in ("logprobs", "prompt_logprobs"))
        if top > LOGPROBS:
            raise RefusedError(f"Requested logprobs of {top}, which is greater than max allowed: {LOGPROBS}")
        if len(prompt) + asked.max_tokens > LONGEST:
            raise RefusedError(f"This model's maximum context length is {LONGEST} tokens.")
        return asked

    def decoded(self, asked: Asked) -> Answer:
        flight = Flight(len(asked.prompt))
        with self.lock:
            number, self.number = self.number, self.number + 1
            self.flying.append(flight)
            for one in self.flying:
                others = [other.length for other in self.flying if other is not one]
                one.most, one.beside = max(one.most, len(self.flying)), max(one.beside, *others, 0)
        try:
            if self.answer.together:
                time.sleep(WAIT)
            answer = self.answer(self.engine, asked, number, flight).run()
        finally:
            with self.lock:
                self.flying.remove(flight)
        return answer


class Said:
    """An answer as vLLM's two endpoints give it."""

    def __init__(self, answer: Answer, body: Body, k: int) -> None:
        self.answer, self.body, self.k = answer, body, k

    def whole(self) -> Body:
        answer, text = self.answer, self.answer.text()
        chosen = {"message": {"role": "assistant", "content": text}} if "messages" in self.body else {"text": text}
        end = {"finish_reason": answer.finish, "stop_reason": answer.reason, "token_ids": answer.out}
        scores = {"logprobs": self.logprobs(), "prompt_logprobs": self.prompt_logprobs()}
        usage = {"prompt_tokens": len(answer.prompt), "completion_tokens": answer.completion_tokens()}
        choice = {"index": 0, **chosen, **scores, **end}
        return {"choices": [choice], "usage": usage, "metrics": {"speculative_decoding": self.record()}}

    def record(self) -> Body | None:
        """Null without a draft."""
        if not self.k:
            return None
        drafted = [one for one, _ in self.answer.steps]
        accepted = [one for _, one in self.answer.steps]
        return {
            "acceptance_histogram": [accepted.count(j) for j in range(self.k + 1)], "num_spec_steps": len(drafted),
            "num_accepted_draft_tokens": sum(accepted), "num_draft_tokens": sum(drafted),
        }  # fmt: skip

    def prompt_logprobs(self) -> list[Any] | None:
        """Of every token of the prompt but the first: raw, with the most likely ones; as a pass over the prompt."""
        top = self.body.get("prompt_logprobs")
        if top is None:
            return None
        engine, prompt = self.answer.engine, self.answer.prompt
        found, order = ranked(scored(engine, prompt[:-1]), top)
        listed: list[Any] = [None]
        for row, best, token in zip(found, order, prompt[1:], strict=True):
            listed.append({str(one): {"logprob": float(row[one])} for one in (token, *best)})
        return listed

    def logprobs(self) -> Body | None:
        """With ids for tokens, as audits ask for them."""
        top, out = self.body.get("logprobs"), self.answer.out
        if top is None:
            return None
        hidden, tops = self.answer.hidden(), []
        for place, (row, best) in enumerate(zip(*ranked(np.stack(self.answer.logits), top), strict=True)):
            tops.append({} if place in hidden else {f"token_id:{one}": float(row[one]) for one in best})
        return {"tokens": [f"token_id:{one}" for one in out], "top_logprobs": tops}


def ranked(logits: Rows, top: int) -> tuple[Rows, list[list[int]]]:
    """Log-probabilities [n, VOCAB], and the most likely tokens of every row in order."""
    most = logits.max(-1, keepdims=True)
    found = logits - most - np.log(np.exp(logits - most).sum(-1, keepdims=True))
    best = np.argpartition(-found, top - 1)[:, :top]
    inner = np.argsort(-np.take_along_axis(found, best, -1))
    return found, np.take_along_axis(best, inner, -1).tolist()


def scored(engine: Engine, prompt: Sequence[int]) -> Rows:
    """Raw logits [n, VOCAB] of what follows every token of a prompt, from one pass."""
    states = []
    state = EMPTY
    for token in prompt:
        state = advance(state, token)
        states.append(state)
    return engine.model.rounded(states, engine.noise, PROMPT)


def prompt_of(body: Body) -> list[int]:
    """The tokens of a prompt or of rendered messages."""
    if "messages" not in body:
        prompt = body.get("prompt", "")
        return ids_of(prompt) if isinstance(prompt, str) else list(prompt)
    found = []
    for message in body["messages"]:
        found += [IDS[f"<|{message['role']}|>"], *ids_of(message["content"]), IDS["<|end|>"]]
    return [*found, IDS["<|assistant|>"]] if body.get("add_generation_prompt", True) else found


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        return

    def do_GET(self) -> None:
        self.send(*self.server.served.handle("GET", self.path))  # type: ignore[attr-defined]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send(*self.server.served.handle("POST", self.path, body))  # type: ignore[attr-defined]

    def send(self, status: int, body: Any) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())


@contextmanager
def serving(server: Server) -> Iterator[str]:
    """The URL of a server, while it runs."""
    http = Patient(("127.0.0.1", 0), Handler)
    http.daemon_threads = True
    http.served = server  # type: ignore[attr-defined]
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}"
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
