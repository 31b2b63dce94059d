"""The server that audits are tried on: its sampling is exact without a fault; `tests/audit` finds every fault."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from tests.support.faulty_server import Server
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
    body = {"model": "target", "prompt": prompt, "max_tokens": 64, "temperature": 0, **fields}
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
        for fields in ({}, FIELDS["penalties"], FIELDS["bias"], {"stop": ["7 w0"]}):
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
        model, ended, expected = server.engine.model, 0, 0.0
        for seed, prompt in enumerate(prompts(7, 200)):
            one = ask(server, prompt, temperature=1, seed=seed, max_tokens=30)
            ids = one["token_ids"]
            ended += one["finish_reason"] == "stop"
            expected += sum(law(model, {}, prompt, ids[:place])[EOS] for place in range(len(ids)))
            assert (EOS in ids[:-1], ids[-1] == EOS) == (False, one["finish_reason"] == "stop")
        assert abs(ended - expected) < 3 * expected**0.5


def test_rounding_depends_on_the_width_of_a_pass() -> None:
    plain, fast = (Server(speculative=one, noise=1e-2) for one in (False, True))
    changed = [ask(plain, one)["token_ids"] != ask(fast, one)["token_ids"] for one in prompts(9, 60)]
    assert 0 < sum(changed) < 30
    prompt = prompts(9)[0]
    answer = ask(plain, prompt, logprobs=1)
    ids, best = answer["token_ids"], answer["logprobs"]["top_logprobs"]
    scores = ask(plain, prompt + ids, max_tokens=1, prompt_logprobs=1)["prompt_logprobs"][len(prompt) :]
    apart = [abs(row[str(token)]["logprob"] - one[f"token_id:{token}"])
             for row, token, one in zip(scores, ids, best, strict=True)]  # fmt: skip
    assert 1e-3 < np.mean(apart[1:]) < 1e-1
    assert apart[0] < 1e-9  # both from a pass over the prompt


def test_requests_are_refused_as_vllm_does() -> None:
    server = Server()
    for fields in ({"min_p": 0.1}, {"logit_bias": {"3": 1}}, {"logprobs": 21}, {"max_tokens": 4096}):
        status, body = server.handle("POST", "/v1/completions", {"prompt": "a", **fields})
        assert (status, body["error"]["code"], body["error"]["type"]) == (400, 400, "BadRequestError")
    ask(Server(speculative=False), min_p=0.1, logit_bias={"3": 1})


def test_texts_and_ids_are_one_to_one() -> None:
    server = Server()
    ids = [*range(WORDS + 4), EOS]
    assert server.handle("POST", "/tokenize", {"prompt": text_of(ids)})[1]["tokens"] == ids[:-1]
    chat = {"messages": [{"role": "user", "content": "w003 w001 "}]}
    rendered = server.handle("POST", "/tokenize", chat)[1]["tokens"]
    answer = server.handle("POST", "/v1/chat/completions", {**chat, "temperature": 0, "max_tokens": 64})[1]
    assert answer["choices"][0]["token_ids"] == ask(server, rendered)["token_ids"]


def test_prompt_logprobs_are_those_of_the_definition() -> None:
    server = Server()
    found = ask(server, [5, 6, 7], prompt_logprobs=2)["prompt_logprobs"]
    p = law(server.engine.model, {}, [5], [])
    best = sorted(range(VOCAB), key=lambda one: -p[one])
    assert found[0] is None
    assert list(found[1]) == [str(one) for one in dict.fromkeys([6, *best[:2]])]
    assert found[1]["6"]["logprob"] == pytest.approx(np.log(p[6]))


@pytest.mark.parametrize("name", [name for name, one in FAULTS.items() if one.lossless])
def test_lossless_faults_are_lossless(name: str) -> None:
    assert unlikely(Server(name), {}) > 1e-3
