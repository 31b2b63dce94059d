"""What servers are sent: messages or a text, every sampling field as the engine names it, and fields of the user."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from specbench import acceptance, metrics
from specbench.backends.engines.dialects import (
    DIALECTS,
    LARGEST,
    SPLIT,
    UNKNOWN,
    ServedChat,
    dialect_of,
    joined,
    pieces,
    refuse_fields,
    request_of,
    unlike,
)
from specbench.errors import UsageError
from specbench.spec import RunSpec
from tests.support.completions import Model, serving, text_of
from tests.support.frontdoor import Command

HELLO = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "thé?"}]
STREAMS = Path(__file__).parent / "streams"


def spec_of(**more: Any) -> RunSpec:
    return RunSpec.model_validate({"backend": "openai", "target": "tiny", "url": "http://a", **more})


def chat_request(owner: str = "", model: str = "tiny", arguments: Any = None, **more: Any) -> dict[str, Any]:
    ids = ServedChat(model).ids("", HELLO, arguments or {})
    return request_of(spec_of(**more), ids, 5, DIALECTS.get(owner, UNKNOWN))


# --- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("owner", "neutral"),
    [
        ("", {}),
        ("vllm", {"top_k": 0, "min_p": 0.0, "ignore_eos": False, "repetition_penalty": 1.0}),
        ("sglang", {"top_k": -1, "min_p": 0.0, "ignore_eos": False, "repetition_penalty": 1.0}),
        ("llamacpp", {"top_k": 0, "min_p": 0.0, "ignore_eos": False, "repeat_penalty": 1.0}),
        ("tensorrt_llm", {"top_k": 0, "min_p": 0.0, "ignore_eos": False, "repetition_penalty": 1.0}),
    ],
)
def test_every_sampling_field_is_sent_neutral_where_it_is_not_set(owner: str, neutral: dict[str, Any]) -> None:
    common = {"temperature": 0.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    dialect = dialect_of({"owned_by": owner}) if owner else dialect_of({})
    assert dialect.sampling(spec_of()) == {**common, **neutral}
    law = {"top_k": 20, "min_p": 0.1, "top_p": 0.9, "temperature": 0.5, "ignore_eos": True}
    assert dialect.sampling(spec_of(**law)) == {**common, **neutral, **law}


@pytest.mark.parametrize(
    ("owner", "chat", "text"),
    [
        ("", set(), set()),
        ("vllm", {"return_token_ids"}, {"return_token_ids"}),
        # its streamed chats refuse return_token_ids
        ("sglang", {"return_spec_tokens_details", "return_output_ids_in_sglext"}, {"return_spec_tokens_details"}),
        ("llamacpp", set(), set()),
        ("tensorrt_llm", set(), set()),  # it refuses fields that it does not know
    ],
)
def test_only_fields_that_an_engine_knows_are_sent(owner: str, chat: set[str], text: set[str]) -> None:
    dialect = DIALECTS.get(owner, UNKNOWN)
    both = {"model", "max_tokens", "seed", *dialect.sampling(spec_of())}
    assert set(chat_request(owner)) == {*both, "messages", *chat}
    assert set(request_of(spec_of(), list(b"once"), 5, dialect)) == {*both, "prompt", *text}


def test_a_chat_is_messages_and_a_text_is_a_prompt() -> None:
    assert chat_request()["messages"] == HELLO
    found = request_of(spec_of(max_new_tokens=9), tuple("thé".encode()), (1 << 31) + 5)
    assert (found["prompt"], found["max_tokens"], found["seed"], found["model"]) == ("thé", 9, 5, "tiny")


@pytest.mark.parametrize(
    ("model", "arguments", "sent"),
    [
        ("qwen", {"enable_thinking": False, "thinking": False}, {"enable_thinking": False, "thinking": False}),
        ("qwen", {"reasoning_effort": "high"}, {"reasoning_effort": "high"}),
        (
            "MiniMaxAI/MiniMax-M3",
            {"enable_thinking": True, "thinking": True},
            {"enable_thinking": True, "thinking": True, "thinking_mode": "enabled"},
        ),
    ],
)
def test_thinking_is_switched_by_the_names_of_every_family(model: str, arguments: Any, sent: Any) -> None:
    assert chat_request(model=model, arguments=arguments)["chat_template_kwargs"] == sent
    assert "chat_template_kwargs" not in chat_request()


def test_a_warm_up_has_the_words_of_the_user_in_another_order() -> None:
    talk = [HELLO[0], {"role": "user", "content": "un deux  trois"}]
    sent = [
        request_of(RunSpec(), unlike(prompt), 0) for prompt in (ServedChat("tiny").ids("", talk, {}), list(b"one two"))
    ]
    assert sent[0]["messages"] == [HELLO[0], {"role": "user", "content": "trois  deux un"}]
    assert sent[1]["prompt"] == "two one"


def test_columns_of_the_data_are_fields_and_an_adapter_is_named_as_the_engine_does() -> None:
    row = {"tools": [{"type": "function"}], "response_format": {"type": "json_object"}, "stop": ["END"], "lora": "sql"}
    for owner, name in {"vllm": "model", "sglang": "lora_path"}.items():
        found = chat_request(owner, arguments=row)
        assert {key: found[key] for key in ("tools", "response_format", "stop", name)} == {
            **{key: row[key] for key in ("tools", "response_format", "stop")},
            name: "sql",
        }
        assert "lora" not in found
        assert "chat_template_kwargs" not in found


def test_fields_of_the_user_replace_all_others() -> None:
    found = chat_request("vllm", arguments={"stop": ["END"]}, request_field=['stop=["X"]', "repetition_penalty=1.1"])
    assert (found["stop"], found["repetition_penalty"]) == (["X"], 1.1)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (["stop=END", "min_tokens=8"], '{"min_tokens": 8, "stop": "END"}'),
        ('{"stop": ["a,b"], "priority": 1}', '{"priority": 1, "stop": ["a,b"]}'),
        ('["a=1", "b=x=y"]', '{"a": 1, "b": "x=y"}'),
        ({"a": {"b": None}}, '{"a": {"b": null}}'),
        ("a=1", '{"a": 1}'),
        ([], None),
        ("{}", None),
        (None, None),
    ],
)
def test_fields_are_read_from_every_notation(given: Any, read: str | None) -> None:
    spec = spec_of(request_field=given, chat_template_kwargs=given)
    assert spec.request_field == spec.chat_template_kwargs == read
    assert RunSpec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize("given", ["stop", ["=1"], "[1]", "{", 7, ["a=1", "b"]])
def test_what_is_no_field_is_refused(given: Any) -> None:
    with pytest.raises((ValidationError, TypeError)):
        spec_of(request_field=given)


@pytest.mark.parametrize(
    ("name", "line"),
    [("temperature", "use --temperature"), ("max_tokens", "use --max-new-tokens"), ("n", "leave it out")],
)
def test_fields_that_settings_decide_are_refused(name: str, line: str) -> None:
    with pytest.raises(UsageError, match=f"--request-field {name}: .*{line}"):
        refuse_fields(spec_of(request_field=f"{name}=1"))


# --- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "a", "\0\1 thé", "x" * 5000, "日本語 " * 40, "\ud800 alone"])
@pytest.mark.parametrize("tokens", [1, 7, 300])
def test_the_numbers_of_an_answer_hold_its_text(text: str, tokens: int) -> None:
    numbers = pieces(text, tokens)
    assert len(numbers) == tokens
    fits = -(-len(text.encode("utf-8", "surrogatepass")) // tokens) <= LARGEST
    assert joined(numbers) == (text if fits else "")
    assert json.loads(json.dumps(numbers)) == list(numbers)  # as the journal writes them
    assert pieces(text + "!", tokens) != numbers


def test_a_client_sends_back_the_content_of_an_answer_alone() -> None:
    chat = ServedChat("tiny")
    assert chat.text(pieces("plain", 3)) == "plain"
    assert chat.text(pieces(f"hm{SPLIT}yes{SPLIT}area", 3)) == "yes"


# --- runs -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def run(command: Command, stack: ExitStack, data: Path, *words: object, **models: Model) -> Any:
    urls = [stack.enter_context(serving(models[name])) for name in ("drafting", "plain")]
    return command("run", "--backend", "openai", "--target", "tiny", "--url", urls[0], "--baseline-url", urls[1],
                   "--dataset", f"jsonl:{data}", "--max-new-tokens", 8, "--warmup", 0, "--k", 3, *words)  # fmt: skip


@pytest.fixture
def talks(tmp_path: Path) -> Path:
    path = tmp_path / "talks.jsonl"
    rows = [{"id": f"t{n}", "turns": [f"first {n}", f"second {n}"], "stop": ["END"]} for n in range(3)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_a_conversation_goes_on_with_the_answers_of_the_baseline(
    command: Command, stack: ExitStack, talks: Path
) -> None:
    drafting, plain = Model(k=3, reports="record", owner="vllm", reasons=True), Model(owner="vllm", reasons=True)
    words = ("--system", "Be brief.", "--chat-template-kwargs", "thinking=false", "--request-field", "min_tokens=2")
    row = run(command, stack, talks, *words, drafting=drafting, plain=plain).row()
    assert (row["turns"], row["turns_cut"], row["lossless"]) == ("6", "0", "identical")
    assert row["chat_template_resolved"] == "own"
    for model in (drafting, plain):
        asked = {json.dumps(one["messages"]): one for one in model.requests}
        assert len(asked) == 6
        for number in range(3):
            first = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"first {number}"}]
            content = "".join(text_of(f"first {number}", 8))[1:]  # the first token was reasoning
            then = [*first, {"role": "assistant", "content": content}, {"role": "user", "content": f"second {number}"}]
            for one in (asked[json.dumps(first)], asked[json.dumps(then)]):
                assert (one["stop"], one["min_tokens"], one["return_token_ids"]) == (["END"], 2, True)
                assert one["chat_template_kwargs"] == {"enable_thinking": False, "thinking": False}
        assert set(model.posted) == {"/v1/chat/completions"}


@pytest.mark.parametrize(
    ("tells", "source", "length"), [("record", acceptance.VLLM, "1.75"), ("", metrics.UNREPORTED, "")]
)
def test_a_row_says_where_acceptance_comes_from(
    command: Command, stack: ExitStack, talks: Path, tells: Any, source: str, length: str
) -> None:
    row = run(command, stack, talks, drafting=Model(k=3, reports=tells), plain=Model()).row()
    assert row["acceptance_from"] == source
    assert row["acceptance_length"][:4] == length
    assert bool(row["tokens_per_round"]) == bool(row["rounds"]) == bool(length)
    assert float(row["speedup"]) > 0


@pytest.mark.parametrize(
    ("endpoint", "page"), [("chat", "/v1/chat/completions"), ("completions", "/v1/completions"), ("auto", "")]
)
def test_the_endpoint_can_be_chosen(
    command: Command, stack: ExitStack, tmp_path: Path, endpoint: str, page: str
) -> None:
    data = tmp_path / "texts.jsonl"
    data.write_text('{"prompt": "def area"}\n{"prompt": "def side"}\n')
    drafting, plain = Model(k=3, reports="record"), Model()
    run(command, stack, data, "--endpoint", endpoint, drafting=drafting, plain=plain).ok()
    assert {*drafting.posted, *plain.posted} == {page or "/v1/completions"}


def test_what_an_engine_refuses_is_an_outcome_of_its_cell(command: Command, stack: ExitStack, talks: Path) -> None:
    line = json.loads((STREAMS / "vllm-draft.min_p.json").read_text())["error"]["message"]
    drafting, plain = Model(k=3, owner="vllm", refuses="min_p", refusal=line), Model(owner="vllm")
    found = run(command, stack, talks, "--min-p", 0.1, drafting=drafting, plain=plain)
    assert found.code == 6
    (row,) = found.table()
    assert row["status"] == "error"
    assert "the server answered 400" in row["error"]
    assert "min_p and logit_bias sampling parameters are not yet supported" in row["error"]
