"""What servers are asked and how their answers are read, by engine.

vLLM's answers are recordings of a real server, those of SGLang and llama.cpp follow their sources.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from specbench.audit.probes import Ask, LlamaProbe, Reply, ServerProbe, SGLangProbe
from specbench.audit.statistics import Scored
from specbench.backends.engines.dialects import DIALECTS, UNKNOWN, Dialect
from specbench.errors import ServerError

RECORDED = Path(__file__).parents[1] / "backends" / "streams"


@dataclass
class Canned:
    """A client whose answers are prepared, by path; it keeps what it was sent."""

    answers: Mapping[str, Any]
    dialect: Dialect
    url: str = "http://server"
    root: str = "http://server"
    sent: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)

    def post(self, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        self.sent.append((path, body))
        found = self.answers.get(path, (404, "no such page"))
        return found if isinstance(found, tuple) else (200, found)

    def page(self, path: str) -> Mapping[str, Any]:
        return {}

    def models(self) -> list[Mapping[str, Any]]:
        return [{"id": "m", "max_model_len": 2048}]


def client(engine: str, **answers: Any) -> Any:
    return Canned(
        {f"/{path.replace('__', '/')}": answer for path, answer in answers.items()}, DIALECTS.get(engine, UNKNOWN)
    )


def test_vllm_gets_ids_and_every_sampling_field() -> None:
    body = {"choices": [{"text": " on", "token_ids": [335], "finish_reason": "length"}],
            "usage": {"completion_tokens": 1, "prompt_tokens": 2}, "metrics": {"speculative_decoding": {
                "num_spec_steps": 3, "num_draft_tokens": 12, "num_accepted_draft_tokens": 5,
                "acceptance_histogram": [1, 0, 1, 1, 0]}}}  # fmt: skip
    found = client("vllm", v1__completions=body)
    reply = ServerProbe(found, "m").complete(Ask((1, 2), 1, {"top_k": 3, "seed": 7}))
    assert reply == Reply((335,), " on", "length", 1, 2, 12, 5, 3)
    ((path, sent),) = found.sent
    assert (path, sent["prompt"], sent["max_tokens"], sent["top_k"], sent["seed"]) == (
        "/v1/completions",
        [1, 2],
        1,
        3,
        7,
    )
    assert {name: sent[name] for name in ("temperature", "top_p", "min_p", "repetition_penalty", "ignore_eos")} == {
        "temperature": 0.0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "ignore_eos": True,
    }
    assert sent["return_token_ids"] is True


def test_vllms_prompt_log_probabilities_are_read_from_a_recording() -> None:
    recorded = json.loads((RECORDED / "vllm-draft.prompt_logprobs.json").read_text())
    rows = recorded["choices"][0]["prompt_logprobs"]
    prompt, output = [0, 1], [int(next(iter(row))) for row in rows[2:]]
    found = ServerProbe(client("vllm", v1__completions=recorded), "m").score(prompt, output)
    assert [one.token for one in found] == output
    assert all(a >= b for one in found for (_, a), (_, b) in zip(one.top, one.top[1:], strict=False))
    assert found[0].of(output[0]) == rows[2][str(output[0])]["logprob"]


def test_a_refusal_is_an_answer() -> None:
    refused = (400, {"error": {"message": "min_p is not yet supported with speculative decoding"}})
    reply = ServerProbe(client("vllm", v1__completions=refused), "m").complete(Ask((1,), 1))
    assert reply.refused == "400 min_p is not yet supported with speculative decoding"


def test_an_answer_of_another_kind_ends_the_audit() -> None:
    with pytest.raises(ServerError, match="is not usable"):
        ServerProbe(client("vllm", v1__completions={"choices": []}), "m").complete(Ask((1,), 1))


META = {
    **{"finish_reason": {"type": "length"}, "prompt_tokens": 2, "completion_tokens": 2, "spec_verify_ct": 1},
    **{"spec_num_proposed_drafts": 3, "spec_num_correct_drafts": 1, "spec_correct_drafts_histogram": [0, 1]},
}


def test_sglang_decodes_and_scores_at_its_own_endpoint() -> None:
    rows = [[[-0.1, 5, None], [-2.0, 6, None]], [[-0.2, 6, None], [-1.0, 7, None]]]
    body = {"text": "ab", "output_ids": [5, 6], "meta_info": {**META, "input_top_logprobs": [None, *rows]}}
    found = client("sglang", generate=body)
    probe = SGLangProbe(found, "m")
    assert probe.complete(Ask((1, 2), 2, {"seed": 3})) == Reply((5, 6), "ab", "length", 2, 2, 3, 1, 1)
    sent = found.sent[0][1]
    assert (sent["input_ids"], sent["sampling_params"]["sampling_seed"]) == ([1, 2], 3)
    assert [(one.token, one.lead) for one in probe.score([1, 2], [5, 6])] == [(5, 1.9), (6, 0.8)]
    assert found.sent[1][1]["logprob_start_len"] == 1


def test_llama_cpp_scores_one_token_at_a_time() -> None:
    place = {
        "id": 5,
        "token": "a",
        "logprob": -0.1,
        "top_logprobs": [{"id": 5, "logprob": -0.1}, {"id": 6, "logprob": -3}],
    }
    body = {"content": "a", "tokens": [5], "stop_type": "limit", "tokens_predicted": 1, "tokens_evaluated": 2,
            "timings": {"draft_n": 4, "draft_n_accepted": 2}, "completion_probabilities": [place]}  # fmt: skip
    found = client("llamacpp", completion=body)
    probe = LlamaProbe(found, "m")
    assert probe.complete(Ask((1, 2), 1, {"logit_bias": {"9": -100.0}})) == Reply((5,), "a", "length", 1, 2, 4, 2)
    sent = found.sent[0][1]
    assert (sent["prompt"], sent["n_predict"], sent["logit_bias"], sent["cache_prompt"]) == (
        [1, 2],
        1,
        [[9, -100.0]],
        False,
    )
    assert [one.token for one in probe.score([1, 2], [6, 5])] == [6, 5]
    assert [body["prompt"] for _, body in found.sent[1:]] == [[1, 2], [1, 2, 6]]


def test_llama_cpp_leaves_out_a_token_that_ends_within_a_character() -> None:
    def place(token: int) -> dict[str, Any]:
        return {"id": token, "top_logprobs": [{"id": token, "logprob": -0.1}]}

    @dataclass
    class Partial(Canned):
        def post(self, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
            if path == "/completion" and body["n_predict"] == 1:
                biased = {token for token, _ in body["logit_bias"]} == {81}
                self.answers = {**self.answers, path: {"completion_probabilities": [place(7)]} if biased else {}}
            return super().post(path, body)

    answer = {"tokens": [5, 218, 6], "completion_probabilities": [place(5), place(6)]}
    found = Partial({"/completion": answer, "/tokenize": {"tokens": [81]}}, DIALECTS["llamacpp"])
    probe = LlamaProbe(found, "m")  # type: ignore[arg-type]
    assert [one.token for one in probe.decoded([1, 2], 3)] == [5]
    assert probe.score([1, 2], [218]) == [Scored(218, ((7, -0.1),))]


def test_llama_cpp_names_the_tokens_that_it_forbids_and_counts_repetitions_in_the_prompt() -> None:
    answer = {"generation_settings": {"logit_bias": [{"token": 7, "bias": None}, {"token": 2, "bias": None}]}}
    found = Canned({"/completion": answer, "/tokenize": {"tokens": [81]}}, DIALECTS["llamacpp"])
    probe = LlamaProbe(found, "m")  # type: ignore[arg-type]
    assert (probe.banned(), found.sent[-1][1]["ignore_eos"]) == ({2, 7}, True)
    assert found.sent[-1][1]["repeat_last_n"] == probe.window == 64
    assert (ServerProbe(found, "m").banned(), ServerProbe(found, "m").window) == (frozenset(), 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", [ServerProbe, SGLangProbe, LlamaProbe])
def test_log_probabilities_in_another_form_are_a_line_about_the_server(engine: type[ServerProbe]) -> None:
    paths = ("/v1/completions", "/generate", "/completion", "/tokenize")
    probe = engine(Canned({path: {"choices": [{}]} for path in paths}, UNKNOWN), "m")  # type: ignore[arg-type]
    with pytest.raises(ServerError, match=r"its answer to a request for log-probabilities is not usable"):
        probe.score([1], [2])
    if engine is LlamaProbe:
        assert probe.decoded([1], 3) == []  # it leaves out tokens
        return
    with pytest.raises(ServerError, match=r"its answer with log-probabilities is not usable"):
        probe.decoded([1], 3)


@pytest.mark.parametrize(
    ("engine", "answers", "ids"),
    [
        ("vllm", {"tokenize": {"tokens": [1, 2]}}, (1, 2)),
        ("llamacpp", {"apply-template": {"prompt": "<x>"}, "tokenize": {"tokens": [3]}}, (3,)),
        ("llamacpp", {"tokenize": {"tokens": [4]}}, (4,)),
    ],
)
def test_prompts_are_rendered_by_the_server(engine: str, answers: Any, ids: tuple[int, ...]) -> None:
    kind = LlamaProbe if engine == "llamacpp" else ServerProbe
    found = client(engine, **answers)
    assert kind(found, "m").render([{"role": "user", "content": "x"}], "x") == ids
    assert kind(found, "m").context() == 2048


def test_a_fault_is_shown_by_a_command_line() -> None:
    line = ServerProbe(client("vllm"), "m").curl(Ask((1,), 4, {"stop": ["it's"]}))
    assert line.startswith("curl -s http://server/v1/completions -H 'Content-Type: application/json' -d '{")
    assert "it'\\''s" in line
