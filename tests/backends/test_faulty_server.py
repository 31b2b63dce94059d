"""The server that audits are tried on: its sampling is exact without a fault, and every fault does what it says."""

import json
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from specbench.backends.engines.client import Client
from specbench.backends.engines.dialects import dialect_of
from specbench.errors import ServerError
from tests.support.faulty_server import Server, serving
from tests.support.server_faults import FAULTS
from tests.support.toy_engine import EOS, VOCAB, WORDS, Draft, Model, Rows, state_of, text_of

DRAFTS: list[Draft] = ["greedy", "probabilistic", "ngram"]
FIELDS: dict[str, dict[str, Any]] = {
    "neutral": {},
    "temperature": {"temperature": 0.6},
    "top-k": {"top_k": 5},
    "top-p": {"top_p": 0.8},
    "min-p": {"min_p": 0.1},
    "penalties": {"repetition_penalty": 1.2, "frequency_penalty": 0.7, "presence_penalty": 0.5},
    "bias": {"logit_bias": {str(one): 4.0 for one in range(10)}},
    "all": {"temperature": 0.8, "min_p": 0.01, "top_k": 20, "top_p": 0.9, "frequency_penalty": 0.3},
}


def ask(server: Server, prompt: Any = "the cat sat on the mat", **fields: Any) -> dict[str, Any]:
    """The answer to a prompt, greedy unless stated otherwise, with the fields of its choice among its own."""
    body = {"model": "target", "prompt": prompt, "max_tokens": 64, "temperature": 0, "return_token_ids": True, **fields}
    status, found = server.handle("POST", "/v1/completions", body)
    assert status == 200, found
    return {**found, **found["choices"][0]}


def prompts(length: int, many: int = 8) -> list[list[int]]:
    source = random.Random(length)
    return [[source.randrange(WORDS) for _ in range(length)] for _ in range(many)]


def law(model: Model, fields: dict[str, Any], prompt: Sequence[int], out: Sequence[int]) -> Rows:
    """The probabilities [VOCAB] of the next token of an answer, by the definitions of the fields."""
    logits = np.array(model.row(state_of([*prompt, *out])))
    for token, bias in fields.get("logit_bias", {}).items():
        logits[int(token)] += bias
    for token in {*prompt, *out}:
        factor = fields.get("repetition_penalty", 1.0)
        logits[token] *= factor if logits[token] < 0 else 1 / factor
    for token in set(out):
        logits[token] -= fields.get("presence_penalty", 0) + fields.get("frequency_penalty", 0) * out.count(token)
    p = np.exp((logits - logits.max()) / fields.get("temperature", 1.0))
    order = np.argsort(-p)
    p[p < fields.get("min_p", 0) * p.max()] = 0
    p[order[fields.get("top_k", VOCAB) :]] = 0
    p /= p.sum()
    p[order[1:][np.cumsum(p[order])[:-1] >= fields.get("top_p", 1.1)]] = 0
    found: Rows = p / p.sum()
    return found


def unlikely(server: Server, fields: dict[str, Any], requests: int = 50) -> float:
    """The p-value of sampled answers: where every token is, in the order of probability, must be uniform, whether the
    most likely token is or is not more likely than all others."""
    source, bins = random.Random(1), np.zeros((2, 12))
    for seed, prompt in enumerate(prompts(7, requests)):
        out = ask(server, prompt, ignore_eos=True, seed=seed, max_tokens=40, **{"temperature": 1, **fields})[
            "token_ids"
        ]
        for place, token in enumerate(out):
            p = law(server.engine.model, fields, prompt, out[:place])
            if not p[token]:
                return 0.0
            found = p[p > p[token]].sum() + source.random() * p[token]
            bins[int(p.max() > 0.5), int(12 * found * (1 - 1e-9))] += 1
    return 2 * min(float(chisquare(one).pvalue) for one in bins)


# --- without a fault --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draft", DRAFTS)
def test_greedy_answers_are_those_without_a_draft(draft: Draft) -> None:
    plain, fast = Server(speculative=False), Server(draft=draft, refuses=False)
    for prompt in prompts(9, 20):
        for fields in ({}, FIELDS["penalties"], FIELDS["bias"], {"min_tokens": 30, "stop": "7 w0"}):
            texts = [ask(one, prompt, **fields) for one in (plain, fast)]
            assert texts[0]["choices"] == texts[1]["choices"]
    assert texts[1]["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"]


@pytest.mark.parametrize("draft", [*DRAFTS, None])
@pytest.mark.parametrize("fields", FIELDS)
def test_sampling_is_exact(draft: Draft | None, fields: str) -> None:
    server = Server(speculative=draft is not None, draft=draft, refuses=False)
    assert unlikely(server, FIELDS[fields]) > 1e-3


def test_lengths_are_those_without_a_draft() -> None:
    """Answers end by EOS as often as its probability says."""
    for server in (Server(speculative=False), Server()):
        found = [ask(server, one, temperature=1, seed=seed, max_tokens=30) for seed, one in enumerate(prompts(7, 200))]
        model, ended, expected = server.engine.model, 0, 0.0
        for one in found:
            ids, prompt = one["token_ids"], one["prompt_token_ids"]
            ended += one["finish_reason"] == "stop"
            expected += sum(law(model, {}, prompt, ids[:place])[EOS] for place in range(len(ids)))
            assert (EOS in ids[:-1], ids[-1] == EOS) == (False, one["finish_reason"] == "stop")
        assert abs(ended - expected) < 3 * expected**0.5


def test_rounding_depends_on_the_width_of_a_pass() -> None:
    plain, fast = (Server(speculative=one, noise=1e-2) for one in (False, True))
    assert 0 < changed((plain, fast), prompts(9, 60)) < 0.5
    answer = ask(plain, logprobs=1)
    prompt, ids = answer["prompt_token_ids"], answer["token_ids"]
    scores = ask(plain, prompt + ids, max_tokens=1, prompt_logprobs=0)["prompt_logprobs"][len(prompt) :]
    apart = [abs(row[str(token)]["logprob"] - value) for row, token, value in
             zip(scores, ids, answer["logprobs"]["token_logprobs"], strict=True)]  # fmt: skip
    assert 1e-3 < np.mean(apart[1:]) < 1e-1
    assert apart[0] < 1e-9  # both from a pass over the prompt


def test_requests_are_refused_as_vllm_does() -> None:
    server = Server()
    for fields in ({"min_p": 0.1}, {"logit_bias": {"3": 1}}, {"prompt_logprobs": 1, "stream": True}, {"logprobs": 21}):
        status, body = server.handle("POST", "/v1/completions", {"prompt": "a", **fields})
        assert (status, body["error"]["code"], body["error"]["type"]) == (400, 400, "BadRequestError")
    assert server.handle("POST", "/v1/completions", {"model": "other", "prompt": "a"})[0] == 404
    ask(Server(speculative=False), min_p=0.1, logit_bias={"3": 1})


def test_texts_and_ids_are_one_to_one() -> None:
    server = Server()
    ids = [*range(WORDS + 4), EOS]
    body = {"prompt": text_of(ids)}
    assert server.handle("POST", "/tokenize", body)[1]["tokens"] == ids[:-1]
    chat = {"messages": [{"role": "user", "content": "w003 w001 "}]}
    rendered = server.handle("POST", "/tokenize", chat)[1]["tokens"]
    answers = [server.handle("POST", "/v1/chat/completions", {**chat, "temperature": 0, "return_token_ids": True})[1]]
    answers.append(ask(server, rendered, max_tokens=256))
    assert answers[0]["prompt_token_ids"] == rendered
    assert answers[0]["choices"][0]["token_ids"] == answers[1]["token_ids"]


def test_prompt_logprobs_have_vllms_shape() -> None:
    server = Server()
    found = ask(server, [5, 6, 7], prompt_logprobs=2)["prompt_logprobs"]
    assert found[0] is None
    p = law(server.engine.model, {}, [5], [])
    best = sorted(range(VOCAB), key=lambda one: -p[one])
    assert list(found[1]) == [str(one) for one in dict.fromkeys([6, *best[:2]])]
    assert found[1]["6"]["rank"] == best.index(6) + 1
    assert found[1]["6"]["logprob"] == pytest.approx(np.log(p[6]))
    assert found[1][str(best[0])]["decoded_token"] == text_of([best[0]])


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_streams_are_the_whole_answer(path: str) -> None:
    own = {"prompt": "a b c"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "a b c"}]}
    body = {**own, "temperature": 0, "max_tokens": 40, "stop": ["5 w0"], "return_token_ids": True, "logprobs": 1}
    _, whole = Server().handle("POST", path, body)
    _, events = Server().handle("POST", path, {**body, "stream": True, "stream_options": {"include_usage": True}})
    choices = [one["choices"][0] for one in events[:-1]]
    told = whole["choices"][0]
    pieces = [one.get("text", one.get("delta", {}).get("content")) for one in choices]
    assert "".join(pieces) == told.get("text", told.get("message", {}).get("content"))
    assert sum((one.get("token_ids", []) for one in choices), []) == told["token_ids"]  # noqa: RUF017
    assert (events[-1]["usage"], events[-1]["metrics"]) == (whole["usage"], whole["metrics"])
    assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == (told["finish_reason"], told["stop_reason"])


def test_specbench_reads_it_as_vllm() -> None:
    with serving(Server()) as url:
        (card,) = Client(url).models()
        client = Client(url, dialect_of(card))
        request = {"model": "target", "max_tokens": 24, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        answers = [client.complete({**request, "prompt": "the cat sat"})]
        answers.append(client.complete({**request, "messages": [{"role": "user", "content": "the cat sat"}]}))
        found = client.drained()
        with pytest.raises(ServerError, match="min_p and logit_bias"):
            client.complete({**request, "prompt": "the cat sat", "min_p": 0.1})
    assert [len(one.ids) for one in answers] == [24, 24]
    records = [one.record for one in answers if one.record]
    assert all(one.rounds and one.wrong(24) is None for one in records)
    assert found is not None
    assert found.drafts == sum(one.rounds or 0 for one in records)
    assert found.accepted == sum(one.accepted for one in records) > 0
    assert (found.requests, found.tokens, found.running, len(found.by_position)) == (2, 48, 0, 4)


# --- faults -----------------------------------------------------------------------------------------------------------

Pair = tuple[Server, Server]


def changed(pair: Pair, asked: Sequence[Any], **fields: Any) -> float:
    """The share of prompts whose greedy answers differ in tokens, text or reason."""
    found: list[list[dict[str, Any]]] = [[ask(one, prompt, **fields) for one in pair] for prompt in asked]
    names = ("token_ids", "text", "finish_reason")
    return sum(any(a[name] != b[name] for name in names) for a, b in found) / len(asked)


def at_once(server: Server, asked: Sequence[Any], **fields: Any) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda prompt: ask(server, prompt, **fields), asked))


def changed_at_once(pair: Pair, asked: Sequence[Any], **fields: Any) -> float:
    plain = [ask(pair[0], prompt, **fields) for prompt in asked]
    pairs = zip(plain, at_once(pair[1], asked, **fields), strict=True)
    return sum(bool(a["token_ids"] != b["token_ids"]) for a, b in pairs) / len(asked)


def corrupt(pair: Pair, share: float) -> bool:
    return (
        changed(pair, prompts(9, 50)) == 0 and 0.3 < changed_at_once(pair, prompts(9, 600), max_tokens=10) / share < 2
    )


def valid(server: Server, seed: int) -> bool:
    text = ask(server, temperature=1, seed=seed, response_format={"type": "json_object"}, max_tokens=200)["text"]
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def lengths(pair: Pair, fields: dict[str, Any] = {}) -> set[int]:  # noqa: B006
    """By how many tokens greedy answers are longer than those without a draft."""
    found = [[len(ask(one, prompt, **fields)["token_ids"]) for one in pair] for prompt in prompts(9, 60)]
    return {fast - plain for plain, fast in found}


def sampled(**fields: Any) -> Callable[[Pair], bool]:
    """A wrong distribution, at a temperature only."""
    return lambda pair: unlikely(pair[1], fields, 100) < 1e-5 and changed(pair, prompts(9)) == 0


def record(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = ask(server)["metrics"]["speculative_decoding"]
    return found


STOPS = {"stop": ["5 w0", "3 w1"]}
SHOWN: dict[str, Callable[[Pair], bool]] = {
    "padded-rows": lambda pair: changed(pair, prompts(5)) == 0 and changed(pair, prompts(3), max_tokens=1) > 0.5,
    "block-boundary": lambda pair: changed(pair, prompts(33)) == 0 and changed(pair, prompts(32)) > 0.5,
    "warm-prefix": lambda pair: changed(pair, prompts(20)) == 0 and changed(pair, prompts(20)) > 0.5,
    "truncated": lambda pair: (
        changed(pair, prompts(24)) == 0 and ask(pair[1], prompts(30)[0])["usage"]["prompt_tokens"] == 24
    ),
    "chunked-prefill": lambda pair: (
        changed(pair, prompts(65)) == 0 == changed_at_once(pair, prompts(9, 40))
        and changed_at_once(pair, [*prompts(9, 40), *prompts(65)] * 2) > 0.05
    ),
    "state-column": lambda pair: changed(pair, prompts(9, 60)) > 0.1,
    "corrupt-0.5": lambda pair: corrupt(pair, 0.005),
    "corrupt-2": lambda pair: corrupt(pair, 0.02),
    "corrupt-5": lambda pair: corrupt(pair, 0.05),
    "drift": lambda pair: changed(pair, prompts(9, 10), max_tokens=8) < 0.3 < changed(pair, prompts(9, 200)),
    "late-stop": lambda pair: changed(pair, prompts(9)) == 0 and max(lengths(pair, STOPS)) > 0,
    "after-eos": lambda pair: changed(pair, prompts(9), ignore_eos=True) == 0 and max(lengths(pair)) > 0,
    "length-first": lambda pair: any(
        changed(pair, [prompt], max_tokens=len(ask(pair[0], prompt)["token_ids"]) + 1) for prompt in prompts(9, 60)
    ),
    "too-long": lambda pair: lengths(pair) == {0, 1, 2, 3, 4},
    "too-short": lambda pair: min(lengths(pair)) < 0 == max(lengths(pair)),
    "lost-brace": lambda pair: (
        changed(pair, prompts(9)) == 0 and all(valid(pair[0], one) for one in range(20))
        and not all(valid(pair[1], one) for one in range(20))
    ),
    "argmax": sampled(),
    "cooler": sampled(temperature=1.6),
    "min-p-on-bonus": sampled(min_p=0.1),
    "unfiltered": sampled(top_k=5),
    "stale-penalties": lambda pair: (
        changed(pair, prompts(9)) == 0 and changed(pair, prompts(9, 20), **FIELDS["penalties"]) > 0.3
    ),
    "bias-on-bonus": lambda pair: changed(pair, prompts(9)) == 0 and changed(pair, prompts(9), **FIELDS["bias"]) > 0.5,
    "seed-42": lambda pair: (
        [len({tuple(ask(one, temperature=1, seed=seed)["token_ids"]) for seed in range(5)}) for one in pair] == [5, 1]
    ),
    "generous": sampled(),
    "residual": sampled(),
    "uninitialised": sampled(),
    "garbage": sampled(),
    "wrong-head": lambda pair: changed(pair, prompts(9)) == 0 and record(pair[1])["mean_acceptance_length"] < 1.1,
    "no-draft": lambda pair: changed(pair, prompts(9)) == 0 and record(pair[1])["num_spec_steps"] == 0,
    "zero-logprobs": lambda pair: (
        [0.0 in ask(one, logprobs=1)["logprobs"]["token_logprobs"] for one in pair] == [False, True]
    ),
    "usage": lambda pair: (
        changed(pair, prompts(9)) == 0
        and any(one["usage"]["completion_tokens"] > len(one["token_ids"])
                for one in at_once(pair[1], prompts(9)))
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_does_what_it_says(name: str) -> None:
    assert SHOWN[name]((Server(speculative=False), Server(name, refuses=False)))


@pytest.mark.parametrize("name", [name for name, one in FAULTS.items() if one.lossless])
def test_lossless_faults_are_lossless(name: str) -> None:
    assert unlikely(Server(name), {}) > 1e-3
