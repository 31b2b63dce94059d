"""What an audit tries, from cheap to dear: cells of requests that both arms get, by causes of faults that were found.

Every cell names threads in which such a fault was reported. Later cells build on the baseline's greedy answers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle, islice
from typing import Any, Literal

from specbench.audit.probes import Ask, Reply
from specbench.audit.statistics import Sampler

Kind = Literal["greedy", "sampled", "texts"]  # judged by forks, by the distribution of tokens, by the form of texts
FIRST, UNDER_LOAD, ARRIVING, NEUTRAL_CELL = "greedy", "concurrent", "long prompts arriving", "temperature 1"
NEUTRAL = (32, 64)  # requests of that cell and their tokens, usually
FULL = 256  # tokens of the longest common prefix of prompts that are decoded together


def share_of(requests: int) -> float:
    """The share of the usual requests that every cell has in an audit of at most `requests` requests."""
    return min(1.0, max(requests / 500, 0.1))


@dataclass(frozen=True)
class Plan:
    """What cells are made of.

    prompts: token ids. k: the longest draft. context: the most tokens of a prompt. at_once: requests in flight under
    load. share: of the usual number of requests. chat: messages, empty for a model without a chat format.
    """

    prompts: Sequence[tuple[int, ...]]
    k: int = 4
    context: int = 1024
    at_once: int = 8
    share: float = 1.0
    chat: Sequence[tuple[Mapping[str, Any], ...]] = ()

    def some(self, usual: int, start: int = 0) -> list[tuple[int, ...]]:
        """As many prompts as a cell takes, from the `start`-th on, repeated if there are fewer."""
        return list(islice(cycle(self.prompts), start, start + max(round(usual * self.share), 2)))


@dataclass(frozen=True)
class Cell:
    """Requests of one kind. at_once: in flight; passes: how often all are sent (cold and warm caches); about: what may
    go wrong there, and where it did."""

    name: str
    about: str
    asks: tuple[Ask, ...]
    kind: Kind = "greedy"
    at_once: int = 1
    passes: int = 1
    sampler: Sampler = field(default_factory=Sampler)


Answers = Sequence[tuple[Ask, Reply]]  # of the baseline in the first cell


def plain(plan: Plan, answers: Answers) -> Cell:
    return Cell(FIRST, "answers of common prompts, one at a time", tuple(map(Ask, plan.some(32))))


def lengths(plan: Plan, answers: Answers) -> Cell:
    """Prompts about as long as a draft: their tokens may be taken for those of a round."""
    text, counts = longest(plan), range(1, plan.k + 3)
    asks = [Ask(text[at : at + count], 16) for count in counts for at in range(0, 3 * 7, 7)]
    return Cell("short prompts", "rows padded to 1 + K (vLLM PR 54028, vllm-ascend 5583)", tuple(asks))


def edges(plan: Plan, answers: Answers) -> Cell:
    """Prompts around the size of blocks of the cache: 16 of vLLM on GPUs, 128 on CPUs, 64 and 32 of others."""
    text = longest(plan)
    counts = [n for b in (16, 32, 64, 128, 256) for n in (b - 1, b, b + 1) if n <= len(text)]
    asks = [Ask(text[at : at + count], 24) for count in counts for at in (0, 5) if at + count <= len(text)]
    return Cell("block boundaries", "a wrong block where a prompt fills one (vLLM 53505, 43996)", tuple(asks))


def budgets(plan: Plan, answers: Answers) -> Cell:
    """Answers that end within a draft, by their number of tokens."""
    counts = (1, 2, plan.k, plan.k + 1, plan.k + 2, 2 * plan.k + 1)
    asks = [Ask(prompt, new) for new in counts for prompt in plan.some(4, new)]
    return Cell("short answers", "accepted tokens beyond max_tokens (SGLang 31599)", tuple(asks))


def together(plan: Plan, answers: Answers) -> Cell:
    """Prompts with common prefixes, several at once, with a cold and a warm cache."""
    shared = longest(plan)[:FULL]
    prompts = [(*shared[: 8 * (n % 8)], *prompt) for n, prompt in enumerate(plan.some(32))]
    about = "rows that mix, races, prefixes from the cache (vLLM 53912, 43559)"
    return Cell(UNDER_LOAD, about, tuple(Ask(one[-plan.context :], 48) for one in prompts), "greedy", plan.at_once, 2)


def arriving(plan: Plan, answers: Answers) -> Cell:
    """Long prompts that arrive while others are decoded."""
    text = longest(plan)
    long = tuple(islice(cycle(text), plan.context))
    asks = []
    for number, prompt in enumerate(plan.some(24)):
        asks += [Ask(prompt, 64)] if number % 3 else [Ask((*long[number:], *prompt)[-plan.context :], 8)]
    about = "a decoding row next to the chunks of a long prompt (vLLM 55894)"
    return Cell(ARRIVING, about, tuple(asks), "greedy", plan.at_once)


def stops(plan: Plan, answers: Answers) -> Cell:
    """Stop strings within the expected text."""
    asks = []
    for at, (ask, reply) in enumerate(answers[: max(round(16 * plan.share), 4)]):
        words = [word for word in reply.text.split(" ") if word.strip()][3 + at % 5 :]
        asks += [replace(ask, fields={**ask.fields, "stop": [" " + words[0]]})] if words else []
    return Cell("stop strings", "text after a stop within an accepted run (SGLang 31599)", tuple(asks))


def stop_ids(plan: Plan, answers: Answers) -> Cell:
    """Stop tokens within the expected text, as the end of a text is one; half of them within the run that reaches
    max_tokens."""
    asks = []
    for at, (ask, reply) in enumerate(answers[: max(round(16 * plan.share), 4)]):
        if len(reply.ids) > 12:
            stop = reply.ids[6 + at % 7]
            new = reply.ids.index(stop) + 1 + at // 2 % plan.k if at % 2 else ask.new
            asks.append(replace(ask, new=new, fields={**ask.fields, "stop_token_ids": [stop]}))
    return Cell("stop tokens", "tokens after an end within an accepted run (transformers 47912)", tuple(asks))


def ends(plan: Plan, answers: Answers) -> Cell:
    asks = tuple(Ask(prompt, 128, {"ignore_eos": False}) for prompt in plan.some(16))
    return Cell("ends of texts", "tokens after the end of a text (koboldcpp 1276)", asks)


def again(plan: Plan, answers: Answers) -> Cell:
    asks = tuple(map(Ask, plan.some(16)))
    return Cell("greedy, again at the end", "answers that become worse from request to request (vLLM 36872)", asks)


def sampled(name: str, about: str, usual: int, new: int, sampler: Sampler, **fields: Any) -> "Builder":
    """Builds a cell of sampled answers; the seeds of equal prompts differ."""

    def build(plan: Plan, answers: Answers) -> Cell:
        own = {"temperature": sampler.temperature, **fields}
        distinct = plan.some(usual)[: max(len(plan.prompts) // 2, 1)]
        prompts = islice(cycle(distinct), max(round(usual * plan.share), 2))
        asks = tuple(Ask(prompt, new, {**own, "seed": 1000 + at}) for at, prompt in enumerate(prompts))
        return Cell(name, about, asks, "sampled", plan.at_once, 1, sampler)

    return build


def biased(plan: Plan, answers: Answers) -> Cell:
    """Common tokens, forbidden: each that comes nevertheless is a proof."""
    tokens = [token for _, reply in answers for token in reply.ids]
    common = sorted(set(tokens), key=lambda one: (-tokens.count(one), one))[:5]
    bias = dict.fromkeys(common, -100.0)
    sent = {str(token): value for token, value in bias.items()}
    about = "a bias for some tokens of a round only"
    return sampled("logit bias", about, 16, 32, Sampler(bias=bias), logit_bias=sent)(plan, answers)


SCHEMA = {
    "type": "object", "required": ["name", "age", "tags"], "additionalProperties": False,
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 120},
                   "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 3}},
}  # fmt: skip
TOOL = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}}  # fmt: skip
PEOPLE = ("Describe Ada, 36, as JSON with name, age and tags.", "Invent a person as JSON with name, age and tags.")


def structured(plan: Plan, answers: Answers) -> Cell:
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    fields = {"response_format": form, "ignore_eos": False}
    asks = [Ask((), 96, {**fields, "seed": n}, ({"role": "user", "content": f"{text} Number {n}."},))
            for n in range(4) for text in PEOPLE] if plan.chat else []  # fmt: skip
    return Cell("JSON schema", "grammars and drafts (SGLang PR 21723)", tuple(asks), "texts")


def tools(plan: Plan, answers: Answers) -> Cell:
    cities = ("Berlin", "Lima", "Osaka", "Accra", "Oslo", "Quito", "Perth", "Delhi")
    fields = {"tools": [TOOL], "tool_choice": "auto", "ignore_eos": False}
    asks = [Ask((), 64, fields, ({"role": "user", "content": f"What is the weather in {city}?"},))
            for city in cities] if plan.chat else []  # fmt: skip
    return Cell("tool calls", "mangled arguments (vLLM 40875, 56077)", tuple(asks), "texts")


def thinking(plan: Plan, answers: Answers) -> Cell:
    asks = [Ask((), 48, {"chat_template_kwargs": {"enable_thinking": on}}, messages)
            for messages in plan.chat[:4] for on in (True, False)]  # fmt: skip
    return Cell("thinking on and off", "templates that change the text", tuple(asks), "texts")


Builder = Callable[[Plan, Answers], Cell]
BUILDERS: tuple[Builder, ...] = (
    plain, lengths, edges, budgets, stops, stop_ids, ends, together, arriving,
    sampled(NEUTRAL_CELL, "the wrong distribution (vLLM 55005, SGLang 10617)", *NEUTRAL, Sampler()),
    sampled("temperature 0.7", "a temperature that verification ignores", 16, 32, Sampler(0.7)),
    sampled("top-k 10", "a field that verification ignores (vLLM 18902)", 16, 32, Sampler(top_k=10), top_k=10),
    sampled("top-p 0.8", "a field that verification ignores", 16, 32, Sampler(top_p=0.8), top_p=0.8),
    sampled("min-p 0.1", "min-p of bonus tokens only (vLLM 42744)", 16, 32, Sampler(min_p=0.1), min_p=0.1),
    sampled("presence penalty", "those of the start of a round", 16, 64, Sampler(presence=2.0), presence_penalty=2.0),
    sampled("frequency penalty", "the same", 16, 64, Sampler(frequency=2.0), frequency_penalty=2.0),
    biased, structured, tools, thinking, again,
)  # fmt: skip


def longest(plan: Plan) -> tuple[int, ...]:
    """One text of all prompts, as long as the context."""
    return tuple(islice((token for prompt in plan.prompts for token in prompt), plan.context))


def more_together(plan: Plan, answers: Answers, count: int, start: int) -> Cell:
    """Further requests under load: prompts with parts of their answers."""
    asks = []
    for number in range(start, start + count):
        ask, reply = answers[number % len(answers)]
        part = 1 + number // len(answers) % max(len(reply.ids) - 1, 1)
        asks.append(Ask((*ask.prompt, *reply.ids[:part])[-plan.context :], 24))
    return Cell(UNDER_LOAD, "", tuple(asks), "greedy", plan.at_once)
