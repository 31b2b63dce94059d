"""The server that audits are tried on: its sampling is exact without a fault, and every fault does what it says."""

from typing import Any

import pytest

from specbench.backends.engines.client import Client
from specbench.backends.engines.dialects import dialect_of
from tests.support.faulty_server import Server, serving
from tests.support.toy_engine import Draft

DRAFTS: list[Draft] = ["greedy", "probabilistic", "ngram"]


def ask(server: Server, prompt: Any = "the cat sat on the mat", **fields: Any) -> dict[str, Any]:
    """The answer, its choice among its fields."""
    body = {"model": "target", "prompt": prompt, "max_tokens": 64, "temperature": 0, "return_token_ids": True, **fields}
    status, found = server.handle("POST", "/v1/completions", body)
    assert status == 200, found
    return {**found, **found["choices"][0]}


@pytest.mark.parametrize("draft", DRAFTS)
def test_greedy_answers_are_those_without_a_draft(draft: Draft) -> None:
    plain, fast = Server(speculative=False), Server(draft=draft)
    for number in range(20):
        texts = [ask(one, f"this is number {number}") for one in (plain, fast)]
        assert texts[0]["token_ids"] == texts[1]["token_ids"]
        assert texts[0]["finish_reason"] == texts[1]["finish_reason"]
    assert texts[1]["metrics"]["speculative_decoding"]["num_spec_steps"]


def test_specbench_reads_it_as_vllm() -> None:
    with serving(Server()) as url:
        (card,) = Client(url).models()
        client = Client(url, dialect_of(card))
        request = {"model": "target", "max_tokens": 24, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        texts = [client.complete({**request, "prompt": "the cat sat"})]
        texts.append(client.complete({**request, "messages": [{"role": "user", "content": "the cat sat"}]}))
        found = client.drained()
    assert [one.tokens for one in texts] == [24, 24]
    records = [one.record for one in texts]
    assert all(one and one.rounds and one.wrong(24) is None for one in records)
    assert found is not None
    assert (found.drafts, found.accepted) == (
        sum(one.rounds or 0 for one in records if one), sum(one.accepted for one in records if one)
    )  # fmt: skip
    assert (found.requests, found.tokens, found.running, len(found.by_position)) == (2, 48, 0, 4)
