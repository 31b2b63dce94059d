"""What servers are sent, and what the streams of their answers hold, by engine.

A prompt is a sequence of numbers, as for every engine: the bytes of a text, or CHAT and the bytes of a JSON object with
the fields of a chat request. An answer is as many numbers as it has tokens, which hold its text.
"""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specbench.acceptance import CHOICE, PARTS, Record, counts, part, record_of
from specbench.chat import Message
from specbench.errors import ServerError, UsageError
from specbench.spec import RunSpec
from specbench.wording import clean

CHAT = 256  # before the bytes of a chat request: no byte of a text
SPLIT = "\x1e"  # between reasoning, content and tool calls of an answer
LARGEST = 1024  # bytes of a piece of text that one number holds; JSON reads no numbers that are much longer
MINIMAX = "minimax"  # its models name the switch of thinking differently
# Columns of data that go into a chat request as they are; `lora` names an adapter, as the engine writes it
COLUMNS = ("tools", "tool_choice", "response_format", "stop", "lora")


@dataclass(frozen=True)
class Dialect:
    """The fields that an engine knows in addition to OpenAI's.

    name: of the engine; None for an unknown one, which gets only the fields that the spec sets. everything: the value
    of top_k that keeps all tokens; repetition: its penalty of repeated tokens; metrics: the page of its counters; lora:
    what names an adapter. chat, text: fields that request token ids and the record of acceptance, by endpoint.
    """

    name: str | None = None
    everything: int = 0
    repetition: str = "repetition_penalty"
    metrics: str = "/metrics"
    lora: str = "model"
    chat: Mapping[str, Any] = field(default_factory=dict)
    text: Mapping[str, Any] = field(default_factory=dict)

    def sampling(self, spec: RunSpec) -> dict[str, Any]:
        """All fields that change the distribution of tokens. Omitted ones are not neutral: vLLM and SGLang take them
        from the model's generation_config.json, and llama.cpp has defaults of its own."""
        known = {"temperature": spec.temperature, "top_p": 1.0 if spec.top_p is None else spec.top_p}
        known |= {"presence_penalty": 0.0, "frequency_penalty": 0.0}
        more = {"top_k": spec.top_k, "min_p": spec.min_p, "ignore_eos": spec.ignore_eos or None}
        neutral = {"top_k": self.everything, "min_p": 0.0, "ignore_eos": False, self.repetition: 1.0}
        found = {name: value for name, value in more.items() if value is not None}
        return {**known, **(neutral if self.name else {}), **found}


REPORTING = {"return_spec_tokens_details": True}
# By `owned_by` of /v1/models. vLLM `entrypoints/openai/engine/protocol.py`, SGLang `entrypoints/openai/protocol.py`
# (return_token_ids is an error in its streamed chats), llama.cpp `tools/server`, TensorRT-LLM
# `serve/openai_protocol.py` (it refuses unknown fields)
DIALECTS = {
    "vllm": Dialect("vLLM", chat={"return_token_ids": True}, text={"return_token_ids": True}),
    "sglang": Dialect(
        "SGLang", everything=-1, lora="lora_path", text=REPORTING,
        chat={**REPORTING, "return_output_ids_in_sglext": True},
    ),
    "llamacpp": Dialect("llama.cpp", repetition="repeat_penalty"),
    "tensorrt_llm": Dialect("TensorRT-LLM", metrics="/prometheus/metrics"),
}  # fmt: skip
UNKNOWN = Dialect()


def dialect_of(model: Mapping[str, Any]) -> Dialect:
    """The dialect of a server by its entry for a model in /v1/models."""
    return DIALECTS.get(str(model.get("owned_by")).lower(), UNKNOWN)


def request_of(spec: RunSpec, prompt: Sequence[int], seed: int, dialect: Dialect = UNKNOWN) -> dict[str, Any]:
    """The body of a request, to /v1/chat/completions if it has messages, else to /v1/completions.

    Fields of --request-field replace those of the data, and those all others.
    """
    chat = bool(prompt) and prompt[0] == CHAT
    own = json.loads(text_of(prompt[1:])) if chat else {"prompt": text_of(prompt)}
    if lora := own.pop("lora", None):
        own[dialect.lora] = lora
    common = {"model": spec.target, "max_tokens": spec.max_new_tokens, "seed": seed % (1 << 31)}
    extra = dialect.chat if chat else dialect.text
    return {**common, **dialect.sampling(spec), **extra, **own, **json.loads(spec.request_field or "{}")}


SET = {  # fields of requests that follow from settings, and those settings
    "temperature": "--temperature", "top_p": "--top-p", "top_k": "--top-k", "min_p": "--min-p", "seed": "--seed",
    "max_tokens": "--max-new-tokens", "max_completion_tokens": "--max-new-tokens", "ignore_eos": "--ignore-eos",
    "chat_template_kwargs": "--chat-template-kwargs", "messages": "--dataset", "prompt": "--dataset",
    **dict.fromkeys(("stream", "stream_options", "n", "best_of"), ""),
}  # fmt: skip


def refuse_fields(spec: RunSpec) -> None:
    """UsageError for a field of --request-field that another setting decides."""
    for name in json.loads(spec.request_field or "{}"):
        if (option := SET.get(name)) is not None:
            instead = f"use {option}" if option else "answers are streamed, one for each request: leave it out"
            raise UsageError(f"--request-field {clean(name)}: {instead}")


def text_of(prompt: Sequence[int]) -> str:
    """A prompt as text, before it was encoded."""
    return bytes(prompt).decode("utf-8", "surrogatepass")


def unlike(prompt: Sequence[int]) -> list[int]:
    """A prompt of the same length, with the user's words in reverse: the server has kept nothing of it."""
    if not prompt or prompt[0] != CHAT:
        return list(backwards(text_of(prompt)).encode("utf-8", "surrogatepass"))
    fields = json.loads(text_of(prompt[1:]))
    for one in fields["messages"]:
        if one["role"] == "user" and isinstance(one["content"], str):
            one["content"] = backwards(one["content"])
    return [CHAT, *json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogatepass")]


def backwards(text: str) -> str:
    return " ".join(reversed(text.split(" ")))


@dataclass(frozen=True)
class ServedChat:
    """The chat format of a server: its own template, which it applies to messages. A `specbench.chat.Chat`."""

    model: str
    own: str = ""
    columns: tuple[str, ...] = COLUMNS
    widest: int = LARGEST

    def ids(self, template: str, messages: Sequence[Message], arguments: Mapping[str, Any]) -> list[int]:
        """CHAT and the bytes of the messages and of COLUMNS, with the other arguments for the template."""
        fields: dict[str, Any] = {"messages": [dict(one) for one in messages]}
        fields |= {name: value for name, value in arguments.items() if name in COLUMNS}
        rest = {name: value for name, value in arguments.items() if name not in COLUMNS}
        if MINIMAX in self.model.lower() and "enable_thinking" in rest:
            rest = {"thinking_mode": "enabled" if rest["enable_thinking"] else "disabled", **rest}
        if rest:
            fields["chat_template_kwargs"] = rest
        return [CHAT, *json.dumps(fields, ensure_ascii=False).encode("utf-8", "surrogatepass")]

    def text(self, ids: Sequence[int]) -> str:
        """The content of an answer, without reasoning and tool calls: what a client sends back."""
        parts = joined(ids).split(SPLIT)
        return parts[1] if len(parts) > 1 else parts[0]


# --- answers ----------------------------------------------------------------------------------------------------------

REASONING = ("reasoning_content", "reasoning")  # of a delta; mlx-vlm sends the same text under both
SPARE = 16  # events beyond the tokens: the end of a text may be a separate event


@dataclass(frozen=True)
class Answer:
    """An answer: its text and number of tokens, and the seconds from the request to each piece.

    text: of all parts, see `Stream.text`. held: seconds of these spent waiting for a free slot; None if it did not
    wait. ids: of its tokens; empty if not reported. finish: why it ended, in the server's word.
    """

    text: str
    tokens: int
    arrived: tuple[float, ...]
    held: float | None = None
    record: Record | None = None
    ids: tuple[int, ...] = ()
    finish: str = ""


@dataclass
class Stream:
    """The sum of the events of a stream: the parts of the text, token ids, and what is reported about them."""

    url: str
    reasoning: list[str] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)
    usage: Mapping[str, Any] = field(default_factory=dict)
    reported: dict[str, Any] = field(default_factory=dict)
    finish: str = ""
    ended: float = 0.0

    @property
    def text(self) -> str:
        """The content; with reasoning or tool calls all three, divided by SPLIT."""
        reasoning, content, calls = map("".join, (self.reasoning, self.content, self.calls))
        return SPLIT.join((reasoning, content, calls)) if reasoning or calls else content

    def add(self, event: Mapping[str, Any], now: float) -> None:
        """Add an event. ValueError, TypeError or AttributeError if it is not part of an answer.

        A piece has arrived if it has text or token ids: vLLM sends control tokens as ids without text.
        """
        choice: Mapping[str, Any] = next(iter(event.get("choices") or ()), {})
        delta = choice.get("delta") or {}
        reasoning = next((text for name in REASONING if (text := delta.get(name))), "")
        calls = [call.get("function") or {} for call in delta.get("tool_calls") or ()]
        called = "".join(f"{one.get('name') or ''}{one.get('arguments') or ''}" for one in calls)
        content = choice.get("text") or delta.get("content") or ""
        ids = counts(choice, "token_ids") or counts(part(event, "__verbose"), "tokens")
        for known, new in ((self.reasoning, reasoning), (self.content, content), (self.calls, called)):
            known += ["".join((new,))]  # a TypeError for anything but text
        self.ids += ids
        self.arrived += [now] if reasoning or content or called or ids else []
        if choice.get("finish_reason"):
            self.finish, self.ended = clean(choice["finish_reason"]), now
        self.usage = part(event, "usage") or self.usage
        self.reported |= {name: event[name] for name in PARTS if event.get(name)}
        self.reported |= {name: choice[name] for name in CHOICE if choice.get(name)}

    def answer(self, most: int) -> Answer:
        """The answer once its stream has ended. ServerError if its counts are impossible or missing."""
        found = part(self.reported, "sglext").get("output_ids") or [self.ids]
        ids = counts({"ids": found[0] if isinstance(found, list) else found}, "ids")
        tokens = self.usage.get("completion_tokens") if self.usage else len(ids) or None
        arrived = self.arrived or ([self.ended] if self.finish else [])  # an answer may be the end of text alone
        if tokens is None or not arrived:
            raise ServerError(f"{self.url}: the stream ended without text or the number of its tokens (usage)")
        if type(tokens) is not int or not 0 < tokens <= most:
            wrong = f"the server counts {clean(tokens)} tokens (usage) with --max-new-tokens {most}"
            raise ServerError(f"{self.url}: {wrong}")
        record, ids = record_of(self.reported, tokens), ids if len(ids) == tokens else ()
        return Answer(self.text, tokens, tuple(arrived), None, record, ids, self.finish)


def answer_of(stream: Iterator[str], began: float, url: str, most: int) -> Answer:
    """The complete answer from the data of the events of a stream, of at most `most` tokens. ServerError if it is cut
    off, has more, or is not an answer."""
    found = Stream(url)
    for data in stream:
        if data == "[DONE]":
            break
        now = time.perf_counter() - began
        try:
            event: Mapping[str, Any] = json.loads(data)
            failed = event.get("error") or (event if event.get("object") == "error" else None)
            if failed:
                raise ServerError(f"{url}: the server ended the stream: {clean(failed, 200)}")
            found.add(event, now)
        except (ValueError, TypeError, AttributeError, RecursionError):
            wrong = f"the stream holds {clean(data)!r}, which is not a completion"
            raise ServerError(f"{url}: {wrong}: is this another API?") from None
        if max(len(found.arrived) - SPARE, len(found.ids)) > most:
            more = f"the stream has more pieces than --max-new-tokens {most}"
            raise ServerError(f"{url}: {more}: see the server's log")
    else:
        if not (found.finish and found.usage):  # some servers end their streams without [DONE]
            raise ServerError(f"{url}: the stream broke off after {len(found.arrived)} pieces: see the server's log")
    try:
        return found.answer(most)
    except (ValueError, TypeError) as error:
        raise ServerError(f"{url}: an answer reports {clean(error)}: see the server's log") from None


def pieces(text: str, tokens: int) -> tuple[int, ...]:
    """As many numbers as tokens, equal for equal texts, in place of token ids; see `joined`."""
    data = text.encode("utf-8", "surrogatepass")
    ends = [len(data) * (number + 1) // tokens for number in range(tokens)]
    return tuple(named(data[a:b]) for a, b in zip([0, *ends], ends, strict=False))


def named(piece: bytes) -> int:
    """A number that holds a piece of text, after a byte 1; the digest of one that is too long, after a byte 2."""
    short = len(piece) <= LARGEST
    return int.from_bytes(b"\1" + piece if short else b"\2" + hashlib.blake2b(piece, digest_size=6).digest())


def joined(numbers: Sequence[int]) -> str:
    """The text of some pieces, without those that were too long."""
    data = [one.to_bytes((one.bit_length() + 7) // 8) for one in numbers]
    text = b"".join(piece[1:] for piece in data if piece[:1] == b"\1")
    try:
        return text.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:  # without a long piece, a letter may be cut
        return text.decode(errors="replace")
