"""A server of a toy language model with and without speculation, in the shapes of vLLM 0.32, with faults to switch on.

`Server(...).handle` answers in this process; `serving` puts a server behind a port of this machine.
"""

import json
import threading
import time
from collections import Counter
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
    TEXTS,
    Answer,
    Asked,
    Draft,
    Engine,
    Flight,
    Rows,
    advance,
    ids_of,
    model_of,
    text_of,
)

Body = dict[str, Any]
NAME = "target"
LONGEST = 4096  # tokens of a prompt and its answer
LOGPROBS = 20  # per place
WAIT = 0.001  # seconds in which requests meet, where that matters
PLAIN = {one.name for one in fields(Asked)} - {"prompt", "json"}  # fields with the names and types of requests
UNSUPPORTED = "The min_p and logit_bias sampling parameters are not yet supported with speculative decoding."


class RefusedError(Exception):
    """A request that vLLM answers with an error: the message and the status."""


class Server:
    """fault: a name of FAULTS, of the speculating server. noise: deviation of the rounding of logits, which depends on
    the prefix and the width of the pass, and with batch_noise on the number of requests in flight. k: length of the
    draft. seed: of the model; two servers of one seed have one model. draft: as the fault needs it, else greedy.
    refuses: whether min_p and logit_bias are refused under speculation, as in vLLM."""

    def __init__(
        self, fault: str | None = None, speculative: bool = True, noise: float = 0.0, k: int = 4, seed: int = 0,
        draft: Draft | None = None, refuses: bool = True, batch_noise: bool = False,
    ) -> None:  # fmt: skip
        found = FAULTS[fault] if fault else None
        if found and not speculative:
            raise ValueError(f"the fault {fault!r} is one of speculation: leave it out, or speculate")
        self.answer: type[Answer] = found.answer if found else Answer
        draft = draft or (found.draft if found else "greedy")
        self.engine = Engine(model_of(seed), k * speculative, draft, noise, batch_noise, seed)
        self.refuses, self.together = refuses, self.answer.together or batch_noise
        self.lock, self.flying, self.number = self.engine.lock, list[Flight](), 0
        self.totals: Counter[str] = Counter()
        self.accepted_at = [0] * self.engine.k

    def handle(self, method: str, path: str, body: Body | None = None) -> tuple[int, Any]:
        """The status, and a body: an object, a text for /metrics, or a list of events for a stream."""
        try:
            if method == "GET":
                return 200, self.page(path)
            return 200, self.posted(path, body or {})
        except RefusedError as error:
            message, status = error.args
            kind = {404: "NotFoundError"}.get(status, "BadRequestError")
            return status, {"error": {"message": message, "type": kind, "param": None, "code": status}}

    def page(self, path: str) -> Any:
        if path == "/v1/models":
            card = {"id": NAME, "object": "model", "owned_by": "vllm", "max_model_len": LONGEST}
            return {"object": "list", "data": [card]}
        if path == "/metrics":
            return self.metrics()
        if path == "/health":
            return ""
        raise RefusedError("Not Found", 404)

    def posted(self, path: str, body: Body) -> Any:
        if path not in ("/tokenize", "/v1/completions", "/v1/chat/completions"):
            raise RefusedError("Not Found", 404)
        if body.get("model", NAME) != NAME:
            raise RefusedError(f"The model `{body['model']}` does not exist.", 404)
        prompt = prompt_of(body)
        if path == "/tokenize":
            return {"count": len(prompt), "max_model_len": LONGEST, "tokens": prompt, "token_strs": None}
        asked = self.asked(body, prompt)
        answer = self.decoded(asked)
        said = Said(answer, body, "messages" in body, self.engine.k)
        return said.events() if body.get("stream") else said.whole()

    def asked(self, body: Body, prompt: Sequence[int]) -> Asked:
        """The fields of a request, checked as vLLM does."""
        given = {name: value for name, value in body.items() if name in PLAIN and value is not None}
        given["stop"] = (given["stop"],) if isinstance(given.get("stop"), str) else tuple(given.get("stop", ()))
        given["stop_token_ids"] = tuple(given.get("stop_token_ids", ()))
        if "messages" in body:
            given.setdefault("max_tokens", body.get("max_completion_tokens", 256))
        form = (body.get("response_format") or {}).get("type")
        asked = Asked(tuple(prompt), json=form in ("json_schema", "json_object"), **given)
        speculative = self.engine.k > 0
        top = max(body.get(name) or 0 for name in ("logprobs", "top_logprobs", "prompt_logprobs"))
        refusals = {
            UNSUPPORTED: speculative and self.refuses and bool(asked.min_p or asked.logit_bias),
            "`prompt_logprobs` are not available when `stream=True`.":
                bool(body.get("stream")) and body.get("prompt_logprobs") is not None,
            f"Requested logprobs of {top}, which is greater than max allowed: {LOGPROBS}": top > LOGPROBS,
            f"max_tokens must be at least 1, got {asked.max_tokens}.": asked.max_tokens < 1,
            "Only n = 1 is served.": body.get("n", 1) != 1,
            f"temperature must be non-negative, got {asked.temperature}.": asked.temperature < 0,
            "The prompt cannot be empty.": not prompt,
            f"This model's maximum context length is {LONGEST} tokens.": len(prompt) + asked.max_tokens > LONGEST,
        }  # fmt: skip
        for message, refused in refusals.items():
            if refused:
                raise RefusedError(message, 400)
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
            if self.together:
                time.sleep(WAIT)
            answer = self.answer(self.engine, asked, number, flight).run()
        finally:
            with self.lock:
                self.flying.remove(flight)
        self.count(answer)
        return answer

    def count(self, answer: Answer) -> None:
        with self.lock:
            self.totals["prompt_tokens"] += len(answer.prompt)
            self.totals["generation_tokens"] += len(answer.out)
            self.totals[answer.finish] += 1
            for drafted, accepted in answer.steps:
                self.totals["drafts"] += 1
                self.totals["draft_tokens"] += drafted
                self.totals["accepted_tokens"] += accepted
                for place in range(accepted):
                    self.accepted_at[place] += 1

    def metrics(self) -> str:
        with self.lock:
            totals, running, places = Counter(self.totals), len(self.flying), list(self.accepted_at)
        labels = f'engine="0",model_name="{NAME}"'
        lines = [f"vllm:num_requests_running{{{labels}}} {running}.0", f"vllm:num_requests_waiting{{{labels}}} 0.0"]
        lines += [f"vllm:{name}_total{{{labels}}} {totals[name]}.0" for name in ("prompt_tokens", "generation_tokens")]
        lines += [
            f'vllm:request_success_total{{{labels},finished_reason="{name}"}} {totals[name]}.0'
            for name in ("stop", "length")
        ]
        if self.engine.k:
            names, start = ("drafts", "draft_tokens", "accepted_tokens"), "vllm:spec_decode_num_"
            lines += [f"{start}{name}_total{{{labels}}} {totals[name]}.0" for name in names]
            lines += [
                f'{start}accepted_tokens_per_pos_total{{{labels},position="{place}"}} {many}.0'
                for place, many in enumerate(places)
            ]
        return "\n".join(lines) + "\n"


class Said:
    """An answer as vLLM's two endpoints give it."""

    def __init__(self, answer: Answer, body: Body, chat: bool, k: int) -> None:
        self.answer, self.body, self.chat, self.k = answer, body, chat, k
        kind = "chat.completion" if chat else "text_completion"
        self.head = {"id": f"cmpl-{answer.number}", "object": kind, "created": 0, "model": NAME}
        self.ids = bool(body.get("return_token_ids"))
        self.hidden = answer.hidden()

    def whole(self) -> Body:
        answer, text, ids = self.answer, self.answer.text(), self.ids
        chosen = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        places = range(len(answer.out))
        end = {"finish_reason": answer.finish, "stop_reason": answer.reason, "token_ids": answer.out if ids else None}
        prompt = {
            "prompt_logprobs": self.prompt_logprobs(),
            "prompt_token_ids": answer.prompt if ids else None,
        }
        choice = {"index": 0, **chosen, "logprobs": self.logprobs(places), **end, **({} if self.chat else prompt)}
        tail = {"usage": self.usage(), "metrics": {"speculative_decoding": self.record()}}
        return {**self.head, "choices": [choice], **(prompt if self.chat else {}), **tail}

    def events(self) -> list[Body]:
        """One for every round, and the last one with the usage."""
        answer, text, sent, begun = self.answer, self.answer.text(), 0, 0
        head = {**self.head, "object": "chat.completion.chunk"} if self.chat else self.head
        prompt = {"prompt_token_ids": answer.prompt if self.ids else None}
        found: list[Body] = []
        if self.chat:
            role = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
            found.append({**head, "choices": [role], **prompt})
        held = max(map(len, answer.asked.stop), default=1) - 1  # letters that may begin a stop string
        for number, run in enumerate(answer.runs, 1):
            places, last = range(begun, begun + len(run)), number == len(answer.runs)
            begun += len(run)
            until = len(text) if last else max(min(len(text), len(text_of(answer.out[:begun])) - held), sent)
            piece, sent = text[sent:until], until
            choice: Body = {"index": 0, **({"delta": {"content": piece}} if self.chat else {"text": piece})}
            choice |= {"logprobs": self.logprobs(places), "finish_reason": answer.finish if last else None}
            choice |= {"stop_reason": answer.reason} if last else {}
            choice |= prompt if number == 1 and not self.chat else {}
            choice |= {"token_ids": run} if self.ids else {}
            found.append({**head, "choices": [choice]})
        if (self.body.get("stream_options") or {}).get("include_usage"):
            tail = {"usage": self.usage(), "metrics": {"speculative_decoding": self.record()}}
            found.append({**head, "choices": [], **tail})
        return found

    def usage(self) -> Body:
        prompt, new = len(self.answer.prompt), self.answer.completion_tokens()
        return {"prompt_tokens": prompt, "total_tokens": prompt + new, "completion_tokens": new}

    def record(self) -> Body | None:
        """Null without a draft; the lists of single rounds are null without rounds."""
        if not self.k:
            return None
        drafted = [one for one, _ in self.answer.steps]
        accepted = [one for _, one in self.answer.steps]
        rounds = len(drafted)
        return {
            "mean_acceptance_length": 1 + sum(accepted) / max(rounds, 1),
            "draft_acceptance_rate": sum(accepted) / max(sum(drafted), 1),
            "acceptance_histogram": [accepted.count(j) for j in range(self.k + 1)],
            "num_spec_steps": rounds, "num_accepted_draft_tokens": sum(accepted), "num_draft_tokens": sum(drafted),
            "num_spec_tokens": self.k, "per_step_accepted": accepted or None, "per_step_drafted": drafted or None,
        }  # fmt: skip

    def prompt_logprobs(self) -> list[Any] | None:
        """Of every token of the prompt but the first: raw, with the most likely ones; as a pass over the prompt."""
        top = self.body.get("prompt_logprobs")
        if top is None:
            return None
        engine, prompt = self.answer.engine, self.answer.prompt
        found, order = ranked(scored(engine, prompt[:-1]), top) if len(prompt) > 1 else (np.empty((0, 0)), [])
        listed: list[Any] = [None]
        for row, best, token in zip(found, order, prompt[1:], strict=True):
            rank = int((row >= row[token]).sum())
            ranks = {token: rank} | {one: place for place, one in enumerate(best, 1)}
            values = row[list(ranks)].tolist()
            listed.append({
                str(one): {"logprob": value, "rank": place, "decoded_token": TEXTS[one]}
                for (one, place), value in zip(ranks.items(), values, strict=True)
            })  # fmt: skip
        return listed

    def logprobs(self, places: range) -> Body | None:
        asked = self.body.get("logprobs")
        top = int((self.body.get("top_logprobs") if self.chat else asked) or 0)
        if asked is None or asked is False:
            return None
        tokens, found, order = [self.answer.out[one] for one in places], np.empty((0, 0)), list[list[int]]()
        if tokens:
            found, order = ranked(np.stack([self.answer.logits[one] for one in places]), top)
        values, tops = [], []
        for place, token, row, best in zip(places, tokens, found, order, strict=True):
            zero = place in self.hidden
            values.append(0.0 if zero else float(row[token]))
            tops.append({} if zero else {self.named(one): float(row[one]) for one in best})
        names = list(map(self.named, tokens))
        if self.chat:
            rows = zip(names, values, tops, strict=True)
            return {"content": [
                {**entry(name, value), "top_logprobs": [entry(*one) for one in best.items()]}
                for name, value, best in rows
            ]}  # fmt: skip
        starts = [len(text_of(self.answer.out[:one])) for one in places]
        return {"text_offset": starts, "token_logprobs": values, "tokens": names, "top_logprobs": tops}

    def named(self, token: int) -> str:
        return f"token_id:{token}" if self.body.get("return_tokens_as_token_ids") else TEXTS[token]


def entry(name: str, value: float) -> Body:
    return {"token": name, "logprob": value, "bytes": list(name.encode())}


def ranked(logits: Rows, top: int) -> tuple[Rows, list[list[int]]]:
    """Log-probabilities [n, VOCAB], and the most likely tokens of every row in order."""
    most = logits.max(-1, keepdims=True)
    found = logits - most - np.log(np.exp(logits - most).sum(-1, keepdims=True))
    if not top:
        return found, [[] for _ in found]
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
        kind, text = "application/json", body if isinstance(body, str) else json.dumps(body)
        if isinstance(body, list):
            parts = [*map(json.dumps, body), "[DONE]"]
            kind, text = "text/event-stream; charset=utf-8", "".join(f"data: {one}\n\n" for one in parts)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text.encode())


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
