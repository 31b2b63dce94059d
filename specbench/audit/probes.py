"""The requests of an audit: decode a prompt of token ids, and score known tokens, in the words of each engine.

vLLM 0.32 `entrypoints/openai/completion`, SGLang 0.5 `srt/entrypoints` (/generate), llama.cpp `tools/server`
(/completion). Log-probabilities are those of a server without a draft only: speculating ones return zeros or none.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from http import HTTPStatus
from itertools import takewhile
from typing import Any, Protocol

from specbench.acceptance import counts, part, record_of
from specbench.audit.statistics import KNOWN, Scored
from specbench.backends.engines.client import Client
from specbench.backends.engines.dialects import Dialect, dialect_of
from specbench.errors import ServerError
from specbench.spec import RunSpec
from specbench.wording import clean

NEUTRAL: Mapping[str, Any] = {"temperature": 0.0, "ignore_eos": True}
CHAT = "/v1/chat/completions"
UNLIMITED = 1 << 20  # tokens
FORCED = 1000.0  # a logit bias that decides the next token


@dataclass(frozen=True)
class Ask:
    """A request: a prompt as token ids, or chat messages with `new` tokens to decode at most and further fields.

    fields: those of /v1/completions; they replace greedy decoding without an end, which is the default.
    """

    prompt: tuple[int, ...] = ()
    new: int = 64
    fields: Mapping[str, Any] = field(default_factory=dict)
    messages: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Reply:
    """An answer. ids: of its tokens, empty if unknown; tokens, prompt: their numbers as the server counts them.

    drafted, accepted, rounds: of the speculation, None if unknown. refused: why the server answered with an error.
    """

    ids: tuple[int, ...] = ()
    text: str = ""
    finish: str = ""
    tokens: int | None = None
    prompt: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    rounds: int | None = None
    refused: str = ""


class Probe(Protocol):
    """Something that decodes, and scores tokens by the log-probabilities of its model if `scores` says so."""

    @property
    def name(self) -> str:
        """For the user, such as an URL."""
        ...

    @property
    def scores(self) -> bool:
        """Whether it gives log-probabilities of known tokens."""
        ...

    def render(self, messages: Sequence[Mapping[str, Any]], text: str) -> tuple[int, ...]:
        """The ids of messages in the model's chat format, or of the text where it has none."""
        ...

    def complete(self, ask: Ask) -> Reply:
        """Decode. An error of the server is an answer; a lost connection raises ServerError."""
        ...

    def score(self, prompt: Sequence[int], output: Sequence[int]) -> list[Scored]:
        """The model's best tokens at every position of an output, all at once if it can."""
        ...

    def decoded(self, prompt: Sequence[int], new: int) -> list[Scored]:
        """Decode greedily, one token at a time, with the best tokens of every position."""
        ...

    def banned(self) -> frozenset[int]:
        """Tokens that are not drawn where ends of texts are ignored, whatever their log-probabilities."""
        return frozenset()

    @property
    def window(self) -> int:
        """Of how many last tokens, with those of the prompt, penalties count repetitions; 0 if of the whole answer."""
        return 0

    def curl(self, ask: Ask) -> str:
        """The request as a command line."""
        ...


@dataclass(frozen=True)
class ServerProbe(Probe):
    """A server of an engine. `of` makes one, after looking at what it serves."""

    client: Client
    model: str

    @classmethod
    def of(cls, url: str, model: str) -> "ServerProbe":
        """The probe of a server. ServerError if none is there, or it does not serve the model."""
        served = {str(one.get("id")): one for one in Client(url).models()}
        if model not in served:
            names = clean(", ".join(served) or "no model", 300)
            raise ServerError(f"{url}: it serves {names}, not {clean(model)}: name one of them with --target")
        kinds = {"sglang": SGLangProbe, "llamacpp": LlamaProbe}
        kind = kinds.get(str(served[model].get("owned_by")).lower(), cls)
        return kind(Client(url, dialect_of(served[model])), model)

    @property
    def name(self) -> str:
        return self.client.url

    @property
    def dialect(self) -> Dialect:
        return self.client.dialect

    @property
    def scores(self) -> bool:
        return self.dialect.name == "vLLM"

    def context(self) -> int:
        """The most tokens of a sequence, prompt and answer, as far as the server says."""
        served = {str(one.get("id")): one for one in self.client.models()}.get(self.model, {})
        said = served.get("max_model_len") or part(served, "meta").get("n_ctx")
        return said if type(said) is int and said > 0 else UNLIMITED

    def request(self, ask: Ask) -> tuple[str, dict[str, Any]]:
        """The path and the body of a request. All sampling fields are sent, as omitted ones are not neutral."""
        sampling = self.dialect.sampling(RunSpec(target=self.model))
        fields = {"model": self.model, "max_tokens": ask.new, **sampling, **NEUTRAL, **ask.fields}
        if self.scores:
            fields |= {"return_token_ids": True}
        if ask.messages:
            return CHAT, {**fields, "messages": list(ask.messages)}
        return "/v1/completions", {**fields, "prompt": list(ask.prompt)}

    def curl(self, ask: Ask) -> str:
        path, body = self.request(ask)
        text = json.dumps(body).replace("'", "'\\''")
        return f"curl -s {self.client.root}{path} -H 'Content-Type: application/json' -d '{text}'"

    def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """The body of an answer. ServerError for an error."""
        status, found = self.client.post(path, body)
        if status != HTTPStatus.OK or not isinstance(found, dict):
            raise ServerError(f"{self.name}: it answered {status} to {path} ({clean(found, 200)})")
        return found

    def complete(self, ask: Ask) -> Reply:
        path, body = self.request(ask)
        status, found = self.client.post(path, body)
        if status != HTTPStatus.OK or not isinstance(found, dict):
            return Reply(refused=f"{status} {clean(message_of(found), 200)}")
        with usable(f"{self.name}: its answer to {path}"):
            return self.reply(found)

    def reply(self, found: Mapping[str, Any]) -> Reply:
        """An answer of /v1/completions or /v1/chat/completions."""
        choice = part({"choice": found["choices"][0]}, "choice")
        message, usage = part(choice, "message"), part(found, "usage")
        calls = [part(one, "function") for one in message.get("tool_calls") or ()]
        text = choice.get("text") or message.get("content") or ""
        text += "".join(f"{call.get('name')}({call.get('arguments')})" for call in calls)
        ids = counts(choice, "token_ids")
        tokens = usage.get("completion_tokens", len(ids) or None)
        record = record_of({**found, **choice}, tokens or 0)
        made = (record.drafted, record.accepted, record.rounds) if record else (None, None, None)
        return Reply(ids, text, str(choice.get("finish_reason") or ""), tokens, usage.get("prompt_tokens"), *made)

    def render(self, messages: Sequence[Mapping[str, Any]], text: str) -> tuple[int, ...]:
        chat = {"model": self.model, "messages": list(messages), "add_generation_prompt": True}
        status, found = self.client.post("/tokenize", chat)
        if status != HTTPStatus.OK:  # a model without a chat template
            found = self.post("/tokenize", {"model": self.model, "prompt": text})
        return counts(found, "tokens")

    def score(self, prompt: Sequence[int], output: Sequence[int]) -> list[Scored]:
        with usable(f"{self.name}: its answer to a request for log-probabilities"):
            return self.known(prompt, output)

    def decoded(self, prompt: Sequence[int], new: int) -> list[Scored]:
        with usable(f"{self.name}: its answer with log-probabilities"):
            return self.reported(prompt, new)

    def known(self, prompt: Sequence[int], output: Sequence[int]) -> list[Scored]:
        """See `Probe.score`, in the words of the engine."""
        body = {"model": self.model, "prompt": [*prompt, *output], "max_tokens": 1, "temperature": 0.0,
                "prompt_logprobs": KNOWN}  # fmt: skip
        rows = self.post("/v1/completions", body)["choices"][0]["prompt_logprobs"][len(prompt) :]
        return [scored(token, [(int(key), one["logprob"]) for key, one in row.items()])
                for token, row in zip(output, rows, strict=True)]  # fmt: skip

    def reported(self, prompt: Sequence[int], new: int) -> list[Scored]:
        """See `Probe.decoded`, in the words of the engine."""
        _, body = self.request(Ask(tuple(prompt), new, {"logprobs": KNOWN, "return_tokens_as_token_ids": True}))
        found = self.post("/v1/completions", body)["choices"][0]["logprobs"]
        ids = [int(name.partition(":")[2]) for name in found["tokens"]]
        return [scored(token, [(int(name.partition(":")[2]), value) for name, value in row.items()])
                for token, row in zip(ids, found["top_logprobs"], strict=True)]  # fmt: skip


@dataclass(frozen=True)
class SGLangProbe(ServerProbe):
    """A server of SGLang: its own endpoint has ids and log-probabilities."""

    @property
    def scores(self) -> bool:
        return True

    def request(self, ask: Ask) -> tuple[str, dict[str, Any]]:
        if ask.messages:
            path, body = super().request(ask)
            return path, {name: value for name, value in body.items() if name != "return_token_ids"}
        sampling = {"temperature": 0.0, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "ignore_eos": True, **ask.fields}
        sampling["sampling_seed"] = sampling.pop("seed", None)
        return "/generate", {"input_ids": list(ask.prompt), "sampling_params": {"max_new_tokens": ask.new, **sampling}}

    def reply(self, found: Mapping[str, Any]) -> Reply:
        if "choices" in found:
            return super().reply(found)
        meta = part(found, "meta_info")
        record = record_of({"sglext": {"spec_tokens_details": meta}}, meta["completion_tokens"])
        made = (record.drafted, record.accepted, record.rounds) if record else (None, None, None)
        finish = str(part(meta, "finish_reason").get("type") or "")
        return Reply(
            counts(found, "output_ids"), found["text"], finish, meta["completion_tokens"], meta["prompt_tokens"], *made
        )

    def known(self, prompt: Sequence[int], output: Sequence[int]) -> list[Scored]:
        body: dict[str, Any] = {"input_ids": [*prompt, *output], "return_logprob": True, "top_logprobs_num": KNOWN}
        body |= {"logprob_start_len": max(len(prompt) - 1, 0), "sampling_params": {"max_new_tokens": 0}}
        rows = self.post("/generate", body)["meta_info"]["input_top_logprobs"][-len(output) :]
        return [
            scored(token, [(other, value) for value, other, *_ in row]) for token, row in zip(output, rows, strict=True)
        ]

    def reported(self, prompt: Sequence[int], new: int) -> list[Scored]:
        _, body = self.request(Ask(tuple(prompt), new))
        found = self.post("/generate", {**body, "return_logprob": True, "top_logprobs_num": KNOWN})
        rows = found["meta_info"]["output_top_logprobs"]
        return [scored(token, [(other, value) for value, other, *_ in row])
                for token, row in zip(found["output_ids"], rows, strict=True)]  # fmt: skip


@dataclass(frozen=True)
class LlamaProbe(ServerProbe):
    """A server of llama.cpp, which scores no prompts: known tokens are scored one request at a time."""

    @property
    def scores(self) -> bool:
        return True

    def request(self, ask: Ask) -> tuple[str, dict[str, Any]]:
        path, body = super().request(ask)
        if ask.messages:
            return path, {**body, "cache_prompt": False}
        body = {name: value for name, value in body.items() if name not in ("model", "return_token_ids", "max_tokens")}
        bias = [[int(token), value] for token, value in (body.pop("logit_bias", None) or {}).items()]
        own = {"n_predict": ask.new, "return_tokens": True, "cache_prompt": False, "logit_bias": bias,
               "repeat_last_n": self.window}  # fmt: skip
        return "/completion", {**own, **body}

    def banned(self) -> frozenset[int]:
        """The server ignores ends by a bias of −∞, which its answers name, and its log-probabilities do not have."""
        _, body = self.request(Ask((self.whole,), 1))
        with usable(f"{self.name}: its answer to /completion"):
            found = part(self.post("/completion", body), "generation_settings").get("logit_bias") or ()
            return frozenset(int(one["token"]) for one in found)

    @property
    def window(self) -> int:
        return 64

    def context(self) -> int:
        said = part(self.client.page("/props"), "default_generation_settings").get("n_ctx")
        return said if type(said) is int and said > 0 else super().context()

    def reply(self, found: Mapping[str, Any]) -> Reply:
        if "choices" in found:
            return super().reply(found)
        record = record_of(found, found["tokens_predicted"])
        made = (record.drafted, record.accepted, record.rounds) if record else (None, None, None)
        finish = "length" if found.get("stop_type") == "limit" else "stop"
        ids = counts(found, "tokens")
        return Reply(ids, found["content"], finish, found["tokens_predicted"], found["tokens_evaluated"], *made)

    def render(self, messages: Sequence[Mapping[str, Any]], text: str) -> tuple[int, ...]:
        status, found = self.client.post("/apply-template", {"messages": list(messages)})
        prompt = found["prompt"] if status == HTTPStatus.OK and isinstance(found, dict) else text
        return counts(self.post("/tokenize", {"content": prompt, "add_special": True, "parse_special": True}), "tokens")

    def known(self, prompt: Sequence[int], output: Sequence[int]) -> list[Scored]:
        found = []
        for at, token in enumerate(output):
            fields = {"n_probs": KNOWN, "cache_prompt": len(output) > 1}  # so that each costs one token
            _, body = self.request(Ask((*prompt, *output[:at]), 1, fields))
            place = self.positions(self.post("/completion", body)) or self.positions(
                self.post("/completion", {**body, "logit_bias": [[self.whole, FORCED]]})
            )
            found.append(replace(place[0], token=token))
        return found

    @cached_property
    def whole(self) -> int:
        """A token that is a whole character.

        The server leaves out the log-probabilities of a token that ends within a character. They are those before any
        bias, so a bias on this token gives them.
        """
        return counts(self.post("/tokenize", {"content": "a"}), "tokens")[0]

    def reported(self, prompt: Sequence[int], new: int) -> list[Scored]:
        _, body = self.request(Ask(tuple(prompt), new, {"n_probs": KNOWN}))
        found = self.post("/completion", body)
        pairs = zip(self.positions(found), counts(found, "tokens"), strict=False)
        return [place for place, _ in takewhile(lambda pair: pair[0].token == pair[1], pairs)]  # see `whole`

    @staticmethod
    def positions(found: Mapping[str, Any]) -> list[Scored]:
        return [scored(row["id"], [(one["id"], one["logprob"]) for one in row["top_logprobs"]])
                for row in found.get("completion_probabilities", [])]  # fmt: skip


@contextmanager
def usable(what: str) -> Iterator[None]:
    """Raise a ServerError about `what` a server answered if it has another form."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise ServerError(f"{what} is not usable ({type(error).__name__}: {clean(error)})") from None


def scored(token: int, entries: Sequence[tuple[int, float]]) -> Scored:
    """A position from its log-probabilities in any order: the best KNOWN of them."""
    best = sorted(entries, key=lambda one: (-one[1], one[0]))[:KNOWN]
    return Scored(token, tuple(best))


def message_of(found: Any) -> str:
    """The message of an error body."""
    inner = found.get("error", found) if isinstance(found, dict) else found
    return str(inner.get("message", inner) if isinstance(inner, dict) else inner)
