"""Servers as engines: what is counted of their answers, and the one line that everything that goes wrong costs."""

import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import chain, repeat
from pathlib import Path
from threading import Barrier
from typing import Any

import httpcore2
import pytest

from specbench import acceptance
from specbench.acceptance import Counters, counters_in
from specbench.backends import choose
from specbench.backends.engines import client, server
from specbench.backends.engines.client import Client
from specbench.backends.engines.dialects import Answer, answer_of, pieces
from specbench.errors import ServerError, UsageError
from specbench.metrics import FIRST_PIECE, LAST_PIECE, TURN_PART, Trace
from specbench.spec import RunSpec
from tests.support.completions import Model, serving, text_of
from tests.support.frontdoor import Command, Outcome

NEW = 12
PROMPTS = ["once upon", "a thé"]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def spec_of(stack: ExitStack, drafting: Model, plain: Model | None = None, **more: Any) -> RunSpec:
    urls = {
        "url": stack.enter_context(serving(drafting)),
        "baseline_url": stack.enter_context(serving(plain or Model())),
    }
    given = {"backend": "openai", "target": "tiny", "max_new_tokens": NEW, "k": 3, **urls, **more}
    return RunSpec.model_validate(given)


def decoded(spec: RunSpec) -> list[Trace]:
    engine = choose.backend_for([spec])
    return engine.prepare(spec, 9)([engine.encode(text) for text in PROMPTS], [5, 6])


def shape(trace: Trace) -> list[tuple[int, int, int]]:
    return sorted((one.drafted, one.accepted, one.emitted) for one in trace.rounds)


# --- what is counted --------------------------------------------------------------------------------------------------


def test_a_request_says_what_the_spec_says_and_no_more_is_timed_and_its_text_kept(stack: ExitStack) -> None:
    drafting = Model(k=3)
    traces = decoded(spec_of(stack, drafting, temperature=0.5, top_p=0.9, ignore_eos=True))
    common = {"model": "tiny", "max_tokens": NEW, "temperature": 0.5, "top_p": 0.9, "ignore_eos": True, "stream": True}
    common |= {"stream_options": {"include_usage": True}, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    assert drafting.requests == [{**common, "prompt": p, "seed": s} for p, s in zip(PROMPTS, (5, 6), strict=True)]
    for text, trace in zip(PROMPTS, traces, strict=True):
        assert trace.tokens == pieces("".join(text_of(text, NEW)), NEW)
        assert len(trace.tokens) == NEW
        assert trace.seconds > 0
        assert 0 <= trace.prefill_seconds <= trace.spans[FIRST_PIECE]


@pytest.mark.parametrize("tells", ["positions", "counters", "timings", "record"])
def test_rounds_come_from_what_the_server_tells(stack: ExitStack, tells: Any) -> None:
    spec = spec_of(stack, Model(k=3, reports=tells))
    engine = choose.backend_for([spec])
    traces = [engine.prepare(spec, 9)([engine.encode(text)], [5])[0] for text in PROMPTS]
    # of 12 tokens the first comes with the prompt, the others in rounds of 3, 1, 2, 3, 1 and 1 (the end)
    for trace in traces:
        assert sum(one.emitted for one in trace.rounds) == NEW
        assert len(trace.rounds) == 7
        assert sum(one.accepted for one in trace.rounds) == 5
        assert sum(one.drafted for one in trace.rounds) == 18
    sources = {"timings": acceptance.TOTALS, "record": acceptance.VLLM}
    source = sources.get(tells, acceptance.COUNTERS)
    assert list(engine.warnings) == [f"acceptance from {source}"]
    assert {trace.source for trace in traces} == {source}
    if tells in ("positions", "record"):
        exact = [(0, 0, 1), (3, 0, 1), (3, 0, 1), (3, 0, 1), (3, 1, 2), (3, 2, 3), (3, 2, 3)]
        assert [shape(trace) for trace in traces] == [exact, exact]


@pytest.mark.parametrize("pieces", [False, True])
def test_pieces_of_a_stream_are_never_taken_for_rounds(stack: ExitStack, pieces: bool) -> None:
    spec = spec_of(stack, Model(k=3, pieces=pieces))
    engine = choose.backend_for([spec])
    (trace,) = engine.prepare(spec, 9)([engine.encode("once")], [0])
    assert list(engine.warnings) == [server.NOT_REPORTED]
    assert trace.source == server.UNREPORTED
    assert trace.rounds == (server.STEP,) * NEW


def test_requests_fly_together_and_each_has_the_time_of_its_slot(stack: ExitStack) -> None:
    drafting = Model(k=3, reports="counters", together=Barrier(4))
    spec = spec_of(stack, drafting, batch=4)
    engine = choose.backend_for([spec])
    traces = engine.prepare(spec, 9)([engine.encode("once upon a time")] * 8, list(range(8)))
    assert drafting.most == 4
    assert all(trace.seconds == trace.spans[LAST_PIECE] / 4 for trace in traces)
    assert len({trace.spans[TURN_PART] for trace in traces}) == 1
    assert all(trace.prefill_seconds == 0 for trace in traces)
    assert sum(one.drafted for trace in traces for one in trace.rounds) == 3 * len(drafting.drafts)


def test_counters_are_read_by_either_prefix_and_what_is_left_of_an_answer_is_decoded_without_a_draft() -> None:
    text = (
        "# TYPE llamacpp:spec_decode_num_drafts_total counter\nllamacpp:spec_decode_num_drafts_total 4\n"
        "llamacpp:spec_decode_num_draft_tokens_total 16\nllamacpp:spec_decode_num_accepted_tokens_total 7\n"
        'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 3\n'
        'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 4\n'
    )
    assert counters_in(text) == Counters(4, 16, 7, (4, 3))
    assert Counters(4, 16, 7, (4, 3)).since(Counters(1, 4, 1, (1,))) == Counters(3, 12, 6, (3, 3))
    assert counters_in("vllm:num_requests 3\n") is None
    record = Counters(1, 3, 1, (1, 0, 0)).record(1)
    assert record is not None
    (found,) = acceptance.divided(record, [6], 3)
    assert [(one.drafted, one.accepted, one.emitted) for one in found] == [(0, 0, 1), (3, 1, 2), *[(0, 0, 1)] * 3]


def test_texts_are_compared_as_texts() -> None:
    assert pieces("the same", 5) == pieces("the same", 5) != pieces("the sbme", 5)
    assert pieces("a long token, its end", 2) != pieces("a long token, its enD", 2)
    assert len(pieces("é", 4)) == 4


# --- what goes wrong --------------------------------------------------------------------------------------------------

LINES = {
    "429": 'the server answered 429 ({"error": {"message": "no\\u001b[31m place"}}); it requests a wait of 7 seconds: '
    "lower --batch",
    "500": "the server answered 500",
    "stall": "the server has been silent for 0.2 seconds",
    "garbage": "the stream holds '<html>nginx</html>', which is not a completion",
    "death": "the stream broke off after 1 pieces",
    "error": "the server ended the stream: {'message': 'out of cache'}",
    "no usage": "the stream ended without text or the number of its tokens",
}


@pytest.mark.parametrize("fault", LINES)
def test_what_a_server_does_wrong_is_one_line(stack: ExitStack, monkeypatch: pytest.MonkeyPatch, fault: Any) -> None:
    if fault == "stall":
        monkeypatch.setattr(client, "STALL", 0.2)  # a busy machine may take as long for an answer
    spec = spec_of(stack, Model(k=3, fault=fault))
    with pytest.raises(ServerError) as refused:
        decoded(spec)
    assert LINES[fault] in str(refused.value)
    assert "\n" not in str(refused.value)


OK = b"HTTP/1.1 200 OK\r\n"
STREAM = OK + b"Content-Type: text/event-stream\r\n\r\n"
CHUNKED = OK + b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
PIECE = b'data: {"choices": [{"text": "a"}]}\n\n'


def drip(begin: bytes, part: bytes) -> Iterator[bytes]:
    yield begin
    while True:
        time.sleep(0.01)
        yield part


def flood(begin: bytes, part: bytes) -> Iterator[bytes]:
    return chain([begin], repeat(part))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that a test can wait for."""
    small = {"STALL": 0.4, "SLOWEST": 0.01, "PAGE_SECONDS": 0.4, "PAGE": 1 << 16, "LONGEST": 1 << 16}
    for name, limit in small.items():
        monkeypatch.setattr(client, name, limit)


@pytest.mark.parametrize(
    "answer",
    [
        lambda: drip(STREAM, b"x"),
        lambda: drip(OK, b"X-Name: value\r\n"),
        lambda: drip(OK + b"X-Name: ", b"x"),
        lambda: drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        lambda: drip(CHUNKED, b"1\r\nx\r\n"),
        lambda: drip(b"", b""),
    ],
    ids=["body", "headers", "header", "continue", "chunks", "nothing"],
)
@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions"])
@pytest.mark.usefixtures("quick")
def test_an_answer_that_does_not_end_is_given_up(path: str, answer: Any) -> None:
    line = {"/v1/models": "has not ended its answer in 0.4 seconds", "/v1/completions": "silent for 0.4 seconds"}[path]
    with serving(Model(raw={path: answer})) as url, pytest.raises(ServerError, match=line):
        ask_for(path, url)


def ask_for(path: str, url: str) -> object:
    request = {"model": "tiny", "prompt": "once", "max_tokens": 4}
    return Client(url).models() if path == "/v1/models" else Client(url).complete(request)


@pytest.mark.parametrize(
    ("path", "answer", "line"),
    [
        ("/v1/models", lambda: flood(OK + b"\r\n", b"x" * 65536), "answer is longer than 65536 bytes"),
        ("/v1/models", lambda: flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 999), "answer is longer than 65536"),
        ("/v1/models", lambda: [OK + b"\r\n" + b"[" * 50_000], "the server answered 200"),
        ("/v1/models", lambda: [OK + b"Content-Length: 99999999999999999999999\r\n\r\n?"], "the connection was lost"),
        ("/v1/models", lambda: [CHUNKED + b"-5\r\nx"], "the connection was lost"),
        ("/v1/completions", lambda: drip(STREAM, b": ping\n\n"), "silent for 0.4 seconds"),
        ("/v1/completions", lambda: drip(STREAM + b"data: ", b"a"), "silent for 0.4 seconds"),
        ("/v1/completions", lambda: drip(STREAM, b"data: {}\n\n"), "has not ended its answer in 0.44 seconds"),
        ("/v1/completions", lambda: flood(STREAM, b": ping\n\n" * 999), "answer is longer than 81920 bytes"),
        ("/v1/completions", lambda: flood(STREAM, b"a" * 65536), "answer is longer than 81920 bytes"),
        ("/v1/completions", lambda: flood(STREAM, PIECE), "more pieces than --max-new-tokens 4"),
        ("/v1/completions", lambda: [STREAM + b"data: " + b"[" * 50_000 + b"\n\n"], "which is not a completion"),
        ("/v1/completions", lambda: [CHUNKED + b"f" * 30 + b"\r\n" + PIECE], "the connection was lost"),
        ("/v1/completions", lambda: [CHUNKED + b"-5\r\n" + PIECE], "the connection was lost"),
    ],
)
@pytest.mark.usefixtures("quick")
def test_an_answer_that_no_server_means_is_one_line(path: str, answer: Any, line: str) -> None:
    with serving(Model(raw={path: answer})) as url, pytest.raises(ServerError, match=line) as refused:
        ask_for(path, url)
    assert "\n" not in str(refused.value)


def test_a_slow_server_has_time_as_long_as_pieces_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "STALL", 1.0)

    def pieces() -> Iterator[bytes]:
        yield STREAM
        for _ in range(4):
            time.sleep(0.3)
            yield PIECE
        yield b'data: {"choices": [], "usage": {"completion_tokens": 4}}\n\ndata: [DONE]\n\n'

    with serving(Model(raw={"/v1/completions": pieces})) as url:
        answer = ask_for("/v1/completions", url)
    assert isinstance(answer, Answer)
    assert answer.arrived[-1] > 1.0


@pytest.mark.parametrize("metrics", [lambda: drip(OK, b"X-Name: value\r\n"), lambda: flood(OK + b"\r\n", b"x" * 65536)])
def test_counters_that_do_not_come_are_waited_for_once(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch, metrics: Any
) -> None:
    drafting = Model(k=3, reports="timings", raw={"/metrics": metrics})
    spec = spec_of(stack, drafting)
    engine = choose.backend_for([spec])
    monkeypatch.setattr(client, "PAGE_SECONDS", 0.4)
    for _ in range(2):
        engine.prepare(spec, 9)([engine.encode("once")], [5])
    assert drafting.paths.count("/metrics") == 1
    assert list(engine.warnings) == [f"acceptance from {acceptance.TOTALS}"]


def totals(drafts: float, drafted: float, accepted: float) -> str:
    names = {"drafts": drafts, "draft_tokens": drafted, "accepted_tokens": accepted}
    return "\n".join(f"vllm:spec_decode_num_{name}_total {value}" for name, value in names.items())


NO_COUNTS = ("1e999", "-inf", "nan", "-3", "1.5", "1.2.3", "e+e", "9" * 5000)
PAGES: list[tuple[list[str], str]] = [
    *(([f"vllm:spec_decode_num_drafts_total {value}\n"], r"its counters \(/metrics\) have '.*' instead of a count")
      for value in NO_COUNTS),
    ([totals(9, 27, 9), totals(3, 9, 3)], "decreased: it was restarted"),
    ([totals(0, 0, 0), totals(1e308, 1e308, 0)], "rose by 1[0-9]{79} rounds"),
    ([totals(0, 0, 0), totals(1e15, 1e15, 0)],
     "rose by 10{15} rounds, 10{15} drafted and 0 accepted tokens for at most 28"),
    ([totals(0, 0, 0), totals(4, 1e15, 0)], "rose by 4 rounds, 10{15} drafted"),
    ([totals(0, 0, 0), totals(4, 12, 13)], "12 drafted and 13 accepted"),
]  # fmt: skip


@pytest.mark.whole
@pytest.mark.parametrize(("pages", "line"), PAGES, ids=range(len(PAGES)))
def test_counters_that_are_no_counts_or_cannot_rise_so_are_one_line(
    stack: ExitStack, pages: list[str], line: str
) -> None:
    left = iter([*pages, pages[-1]])
    drafting = Model(k=3, raw={"/metrics": lambda: [OK + b"\r\n" + next(left).encode()]})
    with pytest.raises(ServerError, match=line):
        decoded(spec_of(stack, drafting))


def test_a_place_in_a_draft_that_no_engine_has_is_refused_and_labels_without_an_end_cost_little() -> None:
    for place in ("1024", "99999999999", "9" * 5000):
        text = f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{place}"}} 1.0\n'
        with pytest.raises(ValueError, match="instead of a count"):
            counters_in("vllm:spec_decode_num_drafts_total 1.0\n" + text)
    began = time.monotonic()
    assert counters_in("vllm:spec_decode_num_drafts{\n" * 20_000) is None
    assert time.monotonic() - began < 2  # over a minute where labels may go on over lines


IMPOSSIBLE = [
    *(({"usage": {"completion_tokens": n}}, f"the server counts {str(n)[:80]} tokens")
      for n in (NEW + 1, 10**6, 10**400, 0, -5, True, 3.0, "12")),
    *(({"timings": {"draft_n": drafted, "draft_n_accepted": accepted}},
       r"\(timings\).* counts .* see the server's log|an answer reports")
      for drafted, accepted in ((10**12, 3), (10**400, 3), (3, 4), (3, -1), (-(10**12), -(10**12)))),
]  # fmt: skip


@pytest.mark.whole
@pytest.mark.parametrize(("says", "line"), IMPOSSIBLE, ids=range(len(IMPOSSIBLE)))
def test_counts_that_cannot_be_in_an_answer_are_one_line(stack: ExitStack, says: Any, line: str) -> None:
    with pytest.raises(ServerError, match=line):
        decoded(spec_of(stack, Model(k=3, says=says)))


def test_a_server_that_is_not_there_or_serves_something_else_is_refused_before_anything_is_asked() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    spec = RunSpec(backend="openai", target="tiny", url=url, method="baseline", k=0)
    with pytest.raises(ServerError, match="no server is there"):
        choose.backend_for([spec])
    with serving(Model(name="other")) as there, pytest.raises(ServerError, match="it serves other, not tiny"):
        choose.backend_for([spec.with_(url=there)])


@pytest.mark.parametrize("tells", ["counters", "timings"])
def test_a_baseline_that_drafts_is_refused(stack: ExitStack, tells: Any) -> None:
    spec = spec_of(stack, Model(k=3), Model(k=3, reports=tells))
    with pytest.raises(UsageError, match="it drafts as well: start it without a draft"):
        decoded(spec.baseline)


def test_a_url_may_end_as_clients_of_openai_write_it_and_without_a_certificate_is_one_line(stack: ExitStack) -> None:
    url = stack.enter_context(serving(Model()))
    assert Client(f"{url}/v1/").models() == Client(url).models() == [{"id": "tiny"}]
    with pytest.raises(ServerError, match=r"^[^\n]*(no server is there|connection was lost)[^\n]*$"):
        Client(url.replace("http:", "https:")).models()  # it answers without TLS


@pytest.mark.parametrize(
    ("url", "where"),
    [
        ("http://[::1]", ("::1", 80)),
        ("https://[fe80::1%25eth0]/", ("fe80::1%eth0", 443)),
        ("http://b\u00fccher.example:8000/v1", ("xn--bcher-kva.example", 8000)),
    ],
)
def test_a_url_may_name_any_host(monkeypatch: pytest.MonkeyPatch, url: str, where: tuple[str, int]) -> None:
    found = []

    def connect(_: Any, host: str, port: int, **how: Any) -> Any:
        found.append((host, port))
        raise httpcore2.ConnectError("refused")

    monkeypatch.setattr(httpcore2.SyncBackend, "connect_tcp", connect)
    with pytest.raises(ServerError, match=r"no server is there \(refused\)"):
        Client(url).models()
    assert found == [where]


def test_proxies_are_those_of_the_environment(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = Model(name="behind")
    monkeypatch.setenv("http_proxy", stack.enter_context(serving(proxy)))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    client.connections.cache_clear()
    stack.callback(client.connections.cache_clear)
    with serving(Model()) as near:
        assert Client(near).models() == [{"id": "tiny"}]
    with pytest.raises(ServerError, match="answered 404"):  # it is asked for the whole URL, as proxies are
        Client("http://far.example").models()
    assert proxy.paths == ["http://far.example/v1/models"]


PINGS = b': keep-alive\n\nevent: trtllm.perf_metrics\ndata: {"kv": 1}\n\n'
MERGED = STREAM + PIECE + PINGS + PIECE + PIECE.replace(b"\n\n", b"\r\n\r\n")
LAST = b'data: {"choices": [], "usage": {"completion_tokens": 3}}\n\ndata: [DONE]\n\n'


def test_pings_named_events_and_merged_chunks_are_no_pieces() -> None:
    with serving(Model(raw={"/v1/completions": lambda: [MERGED + LAST]})) as url:
        answer = ask_for("/v1/completions", url)
    assert isinstance(answer, Answer)
    assert (answer.text, len(answer.arrived)) == ("aaa", 3)


@pytest.mark.parametrize("name", ["vllm-ngram.chat.sse", "vllm-draft.completion.sse", "llama-ngram.chat.sse"])
@pytest.mark.parametrize("size", [1, 100, 4096])
def test_a_recorded_stream_is_the_same_however_it_is_cut(name: str, size: int) -> None:
    data = (Path(__file__).parent / "streams" / name).read_bytes()
    data = data[:2000] + data[-2000:] if size == 1 else data  # a byte for each read: its start and its end
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    chunks = [b"%x\r\n%s\r\n" % (len(part), part) for part in parts]
    request: dict[str, Any] = {"model": "tiny", "max_tokens": 64}
    request |= {"messages": []} if "chat" in name else {"prompt": ""}
    path = "/v1/chat/completions" if "chat" in name else "/v1/completions"
    known = [line for line in data.decode().splitlines() if line.startswith("data: ")]
    with serving(Model(raw={path: lambda: [CHUNKED, *chunks, b"0\r\n\r\n"]})) as url:
        if size == 1:  # cut in the middle of an event
            with pytest.raises(ServerError, match="not a completion"):
                Client(url).complete(request)
            return
        found = Client(url).complete(request)
    assert found.record == answer_of((line.removeprefix("data: ") for line in known), 0.0, url, 64).record
    assert found.record is not None
    assert found.finish == "length"


@pytest.mark.parametrize(
    ("start", "line"),
    [
        (STREAM.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n"), "a compressed answer"),
        (OK + b"Content-Type: text/html\r\n\r\n", "answered 200 .data: .*: see the server"),
    ],
)
def test_what_is_no_stream_of_text_is_one_line(start: bytes, line: str) -> None:
    with (
        serving(Model(raw={"/v1/completions": lambda: [start + PIECE]})) as url,
        pytest.raises(ServerError, match=line),
    ):
        ask_for("/v1/completions", url)


def test_two_hundred_streams_are_read_at_once(stack: ExitStack) -> None:
    drafting = Model(k=3, reports="record", together=Barrier(200))
    spec = spec_of(stack, drafting, batch=200, max_new_tokens=4)
    engine = choose.backend_for([spec])
    traces = engine.prepare(spec, 9)([engine.encode("once upon")] * 200, list(range(200)))
    assert drafting.most == 200
    assert {trace.tokens for trace in traces} == {pieces("once", 4)}


# --- from the command line --------------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = tmp_path / "words.jsonl"
    path.write_text("".join(f'{{"id": "p{n}", "prompt": "prompt number {n} of these"}}\n' for n in range(4)))
    return f"jsonl:{path}"


@pytest.fixture
def ran(stack: ExitStack, command: Command, data: str) -> Command:
    """`specbench run` over a server, and over one without a draft where there are two."""

    def call(drafting: Model, *words: object, plain: Model | None = None) -> Outcome:
        urls = ["--url", stack.enter_context(serving(drafting))]
        urls += ["--baseline-url", stack.enter_context(serving(plain))] if plain else []
        common = ("--backend", "openai", "--target", "tiny", "--dataset", data, "--max-new-tokens", NEW)
        return command("run", *common, *urls, *words)

    return call


def test_a_run_over_two_servers_and_over_one_alone_as_a_baseline(ran: Command) -> None:
    plain = Model()
    found = ran(Model(k=3, reports="positions"), "--k", 3, "--warmup", 1, "--concurrency", "1,2", plain=plain).ok()
    texts = [request["prompt"] for request in plain.requests]
    warm = sorted(text for text in texts if text.startswith("these"))  # those of a batch come in any order
    assert warm == [f"these of {number} number prompt" for number in (0, 0, 1)], "nothing of a prompt stays in a server"
    assert "by requests in flight, speculation " in found.out
    for row in found.table():
        assert (row["engine"], row["lossless"], row["prompts"]) == ("openai", "identical", "4")
        assert float(row["ttft_ms"]) > 0
        assert float(row["tokens_per_second"]) > 0
        assert float(row["tokens_per_round"]) == pytest.approx(12 / 7)
        assert "lengths of prompts are in bytes" in row["engine_notes"]
        assert "every load sends the same prompts to the same servers" in row["engine_notes"]
    assert f"note: acceptance from {acceptance.COUNTERS}" in found.err
    shutil.rmtree(found.cwd / "results")
    alone = ran(Model(), "--method", "baseline", "--warmup", 0).ok()
    assert float(alone.table()[0]["baseline_tokens_per_second"]) > 0


def test_a_server_that_fails_on_the_way_costs_its_cell_one_line(ran: Command) -> None:
    found = ran(Model(k=3, fault="500", after=3), "--k", 3, "--warmup", 0, plain=Model())
    assert found.code == 6
    assert "the server answered 500" in found.err.splitlines()[-1]
    (row,) = found.table()
    assert (row["status"], "answered 500" in row["error"]) == ("error", True)
