"""Acceptance as servers report it: recorded streams and counters, others after the sources of engines, the checks."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specbench.acceptance import (
    COUNTERS,
    MEAN,
    SGLANG,
    TENSORRT,
    TIMINGS,
    TOTALS,
    VLLM,
    Counters,
    Record,
    counters_in,
    divided,
    drafts,
    fitted,
    record_of,
)
from specbench.backends.engines.dialects import SPLIT, Answer, answer_of
from specbench.errors import ServerError

STREAMS = Path(__file__).parent / "streams"


def recorded(name: str) -> Iterator[str]:
    """The data of the events of a recorded stream."""
    lines = (STREAMS / name).read_text(encoding="utf-8").splitlines()
    return (line.removeprefix("data: ") for line in lines if line.startswith("data: "))


def answer(events: list[dict[str, Any]], most: int = 64, *end: str) -> Answer:
    return answer_of(iter([*map(json.dumps, events), *(end or ("[DONE]",))]), 0.0, "http://a", most)


def counters(name: str) -> Counters:
    found = counters_in((STREAMS / name).read_text())
    assert found is not None
    return found


# --- recorded ---------------------------------------------------------------------------------------------------------

NGRAM = Record(VLLM, 19, 76, 6, (15, 2, 2), tuple((4, n) for n in [0] * 7 + [1, 0, 2, 2, 1] + [0] * 7))
DRAFT = Record(VLLM, 16, 48, 48, (0, 0, 0, 16), ((3, 3),) * 16)
LESS = Record(VLLM, 12, 36, 36, (0, 0, 0, 12), ((3, 3),) * 12)


@pytest.mark.parametrize(
    ("name", "tokens", "ids", "pieces", "record"),
    [
        ("vllm-ngram.chat.sse", 64, 64, 58, NGRAM),  # a piece for every pass: 64 tokens, and 6 were accepted
        ("vllm-draft.chat.sse", 64, 64, 17, DRAFT),
        ("vllm-draft.completion.sse", 48, 48, 13, LESS),
        ("llama-ngram.chat.sse", 64, 0, 64, Record(TOTALS, None, 71, 18)),  # a piece for every token
    ],
)
def test_recorded_streams_are_read_whole(name: str, tokens: int, ids: int, pieces: int, record: Record) -> None:
    found = answer_of(recorded(name), 0.0, "http://a", 64)
    assert (found.tokens, len(found.ids), len(found.arrived), found.finish) == (tokens, ids, pieces, "length")
    assert found.record == record
    assert record.wrong(66) is None
    rounds = fitted(record.each(3, tokens), tokens)
    assert sum(one.emitted for one in rounds) == tokens
    assert sum(one.drafted for one in rounds) == record.drafted
    assert sum(one.accepted for one in rounds) == record.accepted


def test_a_stream_and_the_answer_in_one_piece_are_the_same_text_and_without_usage_its_tokens_unknown() -> None:
    whole = json.loads((STREAMS / "vllm-draft.chat.json").read_text())
    text = whole["choices"][0]["message"]["content"]
    streamed = answer_of(recorded("vllm-draft.chat.sse"), 0.0, "http://a", 64).text
    assert streamed.startswith(text)
    assert text
    record = record_of(whole, 32)
    assert record is not None
    assert (record.rounds, record.drafted, record.accepted) == (8, 24, 24)
    with pytest.raises(ServerError, match="without text or the number of its tokens"):
        answer_of(recorded("vllm-draft.chat_no_usage.sse"), 0.0, "http://a", 64)


def test_recorded_counters_agree_with_the_record_of_the_request_between_them() -> None:
    found = counters("vllm-ngram.metrics_after.txt").since(counters("vllm-ngram.metrics_before.txt")).record(1)
    assert found == Record(COUNTERS, NGRAM.rounds, NGRAM.drafted, NGRAM.accepted, NGRAM.histogram)


def test_counters_know_the_rounds_that_timings_do_not() -> None:
    found = counters("llama-ngram.metrics_after.txt").since(counters("llama-ngram.metrics_before.txt")).record(1)
    assert found == Record(COUNTERS, 9, 71, 18, (4, 2, 0, 0, 1, 1, 0, 1))
    (rounds,) = divided(found, [64], 8)
    drafted = [one for one in rounds if one.drafted]
    assert (len(drafted), sum(one.drafted for one in drafted), sum(one.accepted for one in drafted)) == (9, 71, 18)
    assert sum(one.emitted for one in rounds) == 64


# --- after the sources of engines -------------------------------------------------------------------------------------

# SGLang srt/entrypoints/openai/protocol.py (SpecTokensDetails): the list is for n > 1
SGL = {"spec_accept_rate": 0.5, "spec_accept_length": 2.5, "spec_num_correct_drafts": 6, "spec_num_proposed_drafts": 12,
       "spec_verify_ct": 4, "spec_correct_drafts_histogram": [1, 1, 1, 1]}  # fmt: skip
# TensorRT-LLM pull request 19311, on the choice
TRT = {"acceptance_rate": 0.5, "total_accepted_draft_tokens": 6, "total_draft_tokens": 12, "num_spec_steps": 4,
       "acceptance_histogram": [1, 1, 1, 1], "num_spec_tokens": 3}  # fmt: skip


@pytest.mark.parametrize(
    ("reported", "record"),
    [
        ({"sglext": {"spec_tokens_details": SGL}}, Record(SGLANG, 4, 12, 6, (1, 1, 1, 1))),
        ({"sglext": {"spec_tokens_details": [SGL]}}, Record(SGLANG, 4, 12, 6, (1, 1, 1, 1))),
        ({"speculative_decoding": TRT}, Record(TENSORRT, 4, 12, 6, (1, 1, 1, 1))),
        ({"avg_decoded_tokens_per_iter": 2.5}, Record(MEAN, 4, None, 6)),  # its openai_protocol.py
        ({"avg_decoded_tokens_per_iter": 1.0}, None),
        # mlx-vlm server/schemas.py
        ({"timings": {"draft_rounds": 4, "draft_n": 12, "draft_n_accepted": 6}}, Record(TIMINGS, 4, 12, 6)),
        ({"timings": {"predicted_n": 10}}, None),
        ({"metrics": {"speculative_decoding": None}, "timings": None}, None),
        ({"metrics": "none"}, None),
        ({}, None),
    ],
)
def test_every_engine_has_one_normal_form(reported: dict[str, Any], record: Record | None) -> None:
    assert record_of(reported, 10) == record
    if record:
        rounds = fitted(record.each(3, 10), 10)
        assert [sum(column) for column in zip(*((r.drafted, r.accepted) for r in rounds), strict=True)] == [12, 6]


@pytest.mark.parametrize(
    "fields",
    [{"draft_n": -1, "draft_n_accepted": 0}, {"draft_n": "7", "draft_n_accepted": 0}, {"draft_n_accepted": 1},
     {"draft_n": True, "draft_n_accepted": 0}, {"draft_n": 3, "draft_n_accepted": 1.0}],
)  # fmt: skip
def test_what_is_no_count_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="draft_n"):
        record_of({"timings": fields}, 10)


def test_single_rounds_of_two_lengths_are_refused() -> None:
    fields = {"num_accepted_draft_tokens": 1, "per_step_accepted": [1], "per_step_drafted": [2, 2]}
    with pytest.raises(ValueError, match="of 2 and 1 rounds"):
        record_of({"metrics": {"speculative_decoding": {"num_spec_steps": 1, "num_draft_tokens": 2, **fields}}}, 4)


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (Record("", 11, 33, 4), "11 rounds, 33 drafted and 4 accepted tokens for at most 10"),
        (Record("", 4, 12, 13), "12 drafted and 13 accepted"),
        (Record("", 4, 4 * 1025, 0), "4100 drafted"),
        (Record("", 4, 12, 6, (1, 1, 1)), "a histogram of 3 rounds and 3 tokens"),
        (Record("", 4, 12, 6, (2, 1, 1)), "a histogram of 4 rounds and 3 tokens"),
        (Record("", 2, 6, 3, (), ((3, 2),)), "1 single rounds of 3 drafted and 2 accepted"),
        (Record("", 2, 6, 4, (), ((2, 3), (4, 1))), "accepted more than it drafted"),
        (Record("", None, 10**9, 0), "drafted and 0 accepted tokens for at most 10"),
    ],
)
def test_counts_that_contradict_each_other_are_found(record: Record, line: str) -> None:
    assert line in str(record.wrong(10))
    assert Record("", 4, 12, 6, (1, 1, 1, 1), ((3, 0), (3, 1), (3, 2), (3, 3))).wrong(10) is None


@pytest.mark.parametrize(
    ("total", "accepted", "found"),
    [
        (12, [0, 1, 2, 3], [3, 3, 3, 3]),
        (9, [0, 4, 0], [2, 5, 2]),
        (8, [4, 0], [5, 3]),
        (4, [4], [4]),
        (5, [4, 0], [4, 1]),
    ],
)
def test_drafted_tokens_of_rounds_have_their_sum_and_hold_the_accepted(
    total: int, accepted: list[int], found: list[int]
) -> None:
    given = drafts(total, accepted)
    assert sum(given) == total
    assert all(one >= least for one, least in zip(given, accepted, strict=True))
    assert len(given) == len(found)


# SGLang srt/observability/metrics_collector.py: every rank has its own series
PAGES = {
    "sglang": (
        'sglang:spec_verify_calls_total{{tp_rank="0"}} {}\nsglang:generation_tokens_total{{tp_rank="0"}} {}\n'
        'sglang:spec_verify_calls_total{{tp_rank="1"}} {}\nsglang:num_running_reqs{{tp_rank="0"}} 0.0\n'
        'sglang:spec_accept_length{{tp_rank="0"}} 2.7\n'
    ),
    # TensorRT-LLM tensorrt_llm/metrics/collector.py
    "tensorrt": (
        'trtllm_spec_decode_drafted_tokens_total{{token_position="0"}} {0}\n'
        'trtllm_spec_decode_drafted_tokens_total{{token_position="1"}} {0}\n'
        'trtllm_spec_decode_accepted_tokens_total{{token_position="0"}} {1}\n'
        'trtllm_spec_decode_accepted_tokens_total{{token_position="1"}} {2}\n'
        "trtllm_spec_decode_acceptance_length 2.3\n"
    ),
}


def page(name: str, *values: float) -> Counters:
    found = counters_in(PAGES[name].format(*values))
    assert found is not None
    return found


def test_counters_of_sglang_give_rounds_and_accepted_tokens_and_those_of_tensorrt_a_histogram() -> None:
    found = page("sglang", 30, 200, 30).since(page("sglang", 20, 100, 20))
    assert found.record(2) == Record(COUNTERS, 10, None, 100 - 2 - 10)
    found = page("tensorrt", 30, 20, 10).since(page("tensorrt", 20, 13, 6))
    assert found.record(1) == Record(COUNTERS, 10, 20, 11, (3, 3, 4))


LOAD = "vllm:spec_decode_num_drafts_total 1\nvllm:request_success_total{{finished_reason=\"stop\"}} {}\n" \
    "vllm:request_success_total{{finished_reason=\"length\"}} {}\nvllm:generation_tokens_total {}\n" \
    "vllm:num_requests_running 0\nvllm:num_requests_waiting {}\n"  # fmt: skip


@pytest.mark.parametrize(
    ("after", "line"),
    [
        ((3, 1, 100, 0), None),
        ((4, 1, 100, 0), "it ended 5 requests, and 4 are ours"),
        ((3, 1, 150, 0), "it decoded 150 tokens, and 100 are ours"),
        ((3, 1, 100, 2), "2 requests were under way"),
    ],
)
def test_counters_of_a_server_that_others_used_are_not_used(after: tuple[int, ...], line: str | None) -> None:
    then, now = (counters_in(LOAD.format(*one)) for one in ((0, 0, 0, 0), after))
    assert then is not None
    assert now is not None
    assert now.since(then).foreign(4, 100) == line or (line and line in str(now.since(then).foreign(4, 100)))
    assert then.since(now).fell or after == (0, 0, 0, 0)


# --- streams ----------------------------------------------------------------------------------------------------------


def delta(index: int = 0, finish: str | None = None, ids: list[int] | None = None, **said: Any) -> dict[str, Any]:
    return {"choices": [{"index": index, "delta": said, "finish_reason": finish, "token_ids": ids}]}


USAGE: dict[str, Any] = {"choices": [], "usage": {"completion_tokens": 4}}
CALL = {"index": 0, "id": "a", "type": "function", "function": {"name": "area", "arguments": ""}}
MORE = {"index": 0, "function": {"arguments": '{"r": 1}'}}


@pytest.mark.parametrize(
    ("events", "text", "pieces"),
    [
        ([delta(role="assistant", content=None), delta(content="ab"), delta(), delta("stop")], "ab", 1),
        ([delta(reasoning="hm"), delta(content="a")], f"hm{SPLIT}a{SPLIT}", 2),
        ([delta(reasoning_content="hm", reasoning="hm"), delta(content="a")], f"hm{SPLIT}a{SPLIT}", 2),
        ([delta(tool_calls=[CALL]), delta(tool_calls=[MORE])], f'{SPLIT}{SPLIT}area{{"r": 1}}', 2),
        ([delta(ids=[7]), delta(content="a", ids=[8, 9])], "a", 2),  # control tokens come as ids without text
        ([delta(content="a"), delta(content="", finish="stop")], "a", 1),
        ([delta(finish="stop")], "", 1),  # the end of text alone
        ([{"choices": [{"text": "ab"}]}], "ab", 1),
        ([delta(content="a"), {"choices": None}, {"id": "x"}], "a", 1),
    ],
)
def test_every_part_of_an_answer_counts(events: list[dict[str, Any]], text: str, pieces: int) -> None:
    found = answer([*events, USAGE])
    assert (found.text, len(found.arrived)) == (text, pieces)


def test_ids_are_kept_only_where_they_are_all_there_and_a_stream_may_end_without_its_last_word_alone() -> None:
    assert answer([delta(content="ab", ids=[1, 2]), delta(content="c", ids=[3, 4]), USAGE]).ids == (1, 2, 3, 4)
    assert answer([delta(content="ab", ids=[1, 2]), USAGE]).ids == ()
    ids = {"choices": [], "sglext": {"output_ids": [[5, 6, 7, 8]], "spec_tokens_details": SGL}}
    found = answer([delta(content="ab"), ids, USAGE])
    assert (found.ids, found.record) == ((5, 6, 7, 8), Record(SGLANG, 4, 12, 6, (1, 1, 1, 1)))
    whole = [delta(content="ab", finish="stop"), USAGE]
    assert answer_of(map(json.dumps, whole), 0.0, "http://a", 8).text == "ab"
    for part in (whole[:1], whole[1:]):
        with pytest.raises(ServerError, match="broke off"):
            answer_of(map(json.dumps, part), 0.0, "http://a", 8)


@pytest.mark.parametrize(
    ("event", "line"),
    [
        ({"error": {"message": "out of cache", "code": 500}}, "ended the stream: .*out of cache"),
        ({"object": "error", "message": "bad", "code": 400}, "ended the stream: .*bad"),
        (delta(content=["a"]), "not a completion"),
        (delta(content=7), "not a completion"),
        (delta(tool_calls=[7]), "not a completion"),
        (delta(ids=[-1]), "not a completion"),
        ([1], "not a completion"),
        ({"choices": [7]}, "not a completion"),
        ({"choices": [], "timings": {"draft_n": -1, "draft_n_accepted": 0}}, "draft_n of -1 instead of a count"),
        ({"choices": [], "sglext": {"output_ids": [["a"]]}}, "instead of a count"),
        ({"choices": [], "sglext": {"output_ids": 7}}, "instead of counts"),
    ],
)
def test_a_stream_that_is_no_answer_is_one_line(event: Any, line: str) -> None:
    with pytest.raises(ServerError, match=line) as refused:
        answer([delta(content="a"), event, USAGE])
    assert "\n" not in str(refused.value)
