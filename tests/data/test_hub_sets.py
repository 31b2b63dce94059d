"""Data sets of a hub: which file is asked for, and what a user reads where it cannot be had.

The clients are the real ones; the hub is a server on this machine.
"""

import gzip
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from specbench import hub
from specbench.data import sources
from specbench.data.forms import ChatSettings
from tests.support.chats import Spelled
from tests.support.datafiles import complaint, load, texts
from tests.support.hub import COMMIT, Fault, HubServer, Repo, Serve, data_repo, official, rows, serving, use

PINNED = {
    "humaneval": (
        "openai/openai_humaneval",
        "7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544",
        "openai_humaneval/test-00000-of-00001.parquet",
    ),
    "xsum": ("EdinburghNLP/xsum", "30802a38d3f89b2fa8f19276008459e8c2b8b8e6", "data/test-00000-of-00001.parquet"),
    "gsm8k": ("openai/gsm8k", "740312add88f781978c0658806c59bc2815b9866", "main/test-00000-of-00001.parquet"),
    "cnn_dailymail": (
        "abisee/cnn_dailymail",
        "96df5e686bee6baa90b8bee7c28b81fa3fa6223d",
        "3.0.0/test-00000-of-00001.parquet",
    ),
    "alpaca": (
        "tatsu-lab/alpaca",
        "dce01c9b08f87459cf36a430d809084718273017",
        "data/train-00000-of-00001-a09b74b3ef9c3b56.parquet",
    ),
    "math500": ("HuggingFaceH4/MATH-500", "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be", "test.jsonl"),
    "aime": (
        "HuggingFaceH4/aime_2024",
        "2fe88a2f1091d5048c0f36abc874fb997b3dd99a",
        "data/train-00000-of-00001.parquet",
    ),
    "mbpp": (
        "google-research-datasets/mbpp",
        "4bb6404fdc6cacfda99d4ac4205087b89d32030c",
        "full/test-00000-of-00001.parquet",
    ),
    "livecodebench": (
        "livecodebench/code_generation_lite",
        "0fe84c3912ea0c4d4a78037083943e8f0c4dd505",
        "test6.jsonl",
    ),
    "tool_call": ("RedHatAI/speculator_benchmarks", "2ae86affa2cb97a972b7fc681dd51c04fbff083e", "tool_call.jsonl"),
}
FIRST = {
    "humaneval": "def add_0(a: int, b: int) -> int:\n    ",
    "xsum": "Article: It rained in town 0 for a day.\nSummary:",
    "gsm8k": "What is 0 plus one?",
    "cnn_dailymail": "Article: It snowed in town 0 all week.\nSummary:",
    "alpaca": "Translate 0.\n\none 0",
    "math500": "Halve 0.",
    "aime": "Find 0.",
    "mbpp": "Write a function that returns 0.",
    "livecodebench": "Print 0.",
    "tool_call": "Call f(0).",
}


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """A hub, which the clients in this process ask."""
    monkeypatch.setattr("time.sleep", lambda _: None)
    with ExitStack() as stack:

        def call(*repos: Repo, faults: tuple[Fault, ...] = ()) -> HubServer:
            server = stack.enter_context(serving(*repos, faults=faults))
            use(server.url, tmp_path / "cache", monkeypatch)
            return server

        yield call


@pytest.mark.parametrize("name", PINNED)
def test_one_file_is_fetched_at_one_commit_and_then_lies_in_the_cache(serve: Serve, name: str) -> None:
    repo, revision, file = PINNED[name]
    server = serve(official(name))
    found = load(name)
    assert (found.name, found.revision, found.read) == (name, revision, 3)
    assert texts(found)[0] == FIRST[name]
    assert [one.path for one in server.requests("*/resolve/*")] == [f"/datasets/{repo}/resolve/{revision}/{file}"]
    assert len(server.requests("/storage/*")) == file.endswith(".parquet"), "text is not in the large files' storage"
    server.log.clear()
    assert texts(load(name)) == texts(found)
    assert server.log == []


def test_another_name_is_the_same_data_set(serve: Serve) -> None:
    serve(official("cnn_dailymail"))
    assert load("cnn_dm") == load("cnn_dailymail")


@pytest.mark.parametrize(
    ("name", "form", "said"),
    [
        ("gsm8k", "text", "What is 0 plus one?"),
        ("cnn_dailymail", "summarize-instruct-1", "Summarize: It snowed in town 0 all week."),
        ("alpaca", "instruction-input-1", "Translate 0.\n\none 0"),
        *((name, "text", FIRST[name]) for name in ("math500", "aime", "mbpp", "livecodebench", "tool_call")),
    ],
)
def test_questions_and_instructions_are_messages_to_a_chat_model(serve: Serve, name: str, form: str, said: str) -> None:
    serve(official(name))
    found = load(name, chat=ChatSettings(Spelled()))
    assert (found.form, found.prompts[0].text, found.applied is not None) == (form, said, True)


# --- any data set -----------------------------------------------------------------------------------------------------


def rows_of(*texts: str, column: str = "question") -> bytes:
    return "".join(json.dumps({column: text}) + "\n" for text in texts).encode()


def some(*names: str, **files: bytes) -> Repo:
    """A repository with tables that hold their names, and other files."""
    tables = {name: rows_of(name) for name in names}
    return Repo("some/set", {"README.md": b"Rows.\n", ".gitattributes": b"", **tables, **files}, kind="datasets")


TWO = ("main/test.jsonl", "main/train.jsonl", "extra/train.jsonl")


@pytest.mark.parametrize(
    ("dataset", "files", "read"),
    [
        ("hf:some/set", ["train.jsonl", "test.jsonl"], ["test.jsonl"]),
        ("hf:some/set", ["data/train.jsonl"], ["data/train.jsonl"]),
        ("hf:some/set", ["data/odd.jsonl"], ["data/odd.jsonl"]),
        ("hf:some/set:main", TWO, ["main/test.jsonl"]),
        ("hf:some/set:test", TWO, ["main/test.jsonl"]),
        ("hf:some/set:extra", TWO, ["extra/train.jsonl"]),
        ("hf:some/set:main:train", TWO, ["main/train.jsonl"]),
        ("hf:some/set:train", ["train.jsonl", "de/train.jsonl"], ["train.jsonl"]),
        (
            "hf:some/set:train",
            ["data/train-00001-of-00002.jsonl", "data/train-00000-of-00002.jsonl", "data/train_a-00000-of-00001.jsonl"],
            ["data/train-00000-of-00002.jsonl", "data/train-00001-of-00002.jsonl"],
        ),
        ("hf:some/set:b:test", ["a/test/0000.jsonl", "b/test/0000.jsonl"], ["b/test/0000.jsonl"]),
        ("hf:some/set", ["infos.json", "test.jsonl"], ["test.jsonl"]),
    ],
)  # fmt: skip
def test_a_split_of_any_data_set_is_read(serve: Serve, dataset: str, files: list[str], read: list[str]) -> None:
    server = serve(some(*files))
    found = load(dataset)
    assert (texts(found), found.name, found.revision) == (read, dataset, COMMIT)
    tables = {one.path for one in server.requests(f"*/resolve/{COMMIT}/*") if "README" not in one.path}
    assert tables == {f"/datasets/some/set/resolve/{COMMIT}/{file}" for file in read}


def test_parquet_and_packed_files_are_read(serve: Serve) -> None:
    file = sources.HubFile("some/set", COMMIT, "main/test-00000-of-00001.parquet")
    serve(
        data_repo(file, [{"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "x"}]}])
    )
    assert texts(load("hf:some/set:main:test")) == ["hello"]
    packed = gzip.compress(rows_of("in gzip", column="problem"))
    serve(Repo("other/set", {"test.jsonl.gz": packed}, kind="datasets"))
    assert texts(load("hf:other/set")) == ["in gzip"]


def test_it_is_read_without_the_hub_once_it_is_in_the_cache(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(some("test.jsonl"))
    found = load("hf:some/set")
    monkeypatch.setattr(hub, "_ANSWERS", {})
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    server.log.clear()
    assert (load("hf:some/set"), load(f"hf:some/set@{COMMIT}").revision, server.log) == (found, COMMIT, [])
    assert "run `hf download some/other --repo-type dataset` where there is a network" in complaint("hf:some/other")


def test_a_file_that_came_alone_is_enough(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(some("main/test.jsonl"))
    huggingface_hub.hf_hub_download("some/set", "main/test.jsonl", repo_type="dataset", revision=COMMIT)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert texts(load(f"hf:some/set:main:test@{COMMIT}")) == ["main/test.jsonl"]


def test_a_revision_is_a_commit_a_branch_or_a_tag(serve: Serve) -> None:
    other = "f" * 40
    serve(replace(some("main/test/0000.jsonl"), branches={"refs/convert/parquet": other, "v2": other}))
    for revision in ("refs/convert/parquet", "v2", other):
        assert load(f"hf:some/set:main:test@{revision}").revision == other
    assert load(f"hf:some/set@{COMMIT}").revision == COMMIT
    assert "has no revision v3: see http" in complaint("hf:some/set@v3")


@pytest.mark.parametrize(
    ("dataset", "files", "said"),
    [
        ("hf:some/set", TWO, "name one of its configurations and splits, which are: extra:train, main:test, main"),
        ("hf:some/set:train", TWO, "which are: extra:train, main:test, main:train"),
        ("hf:some/set:nope", TWO, "data set hf:some/set:nope: name one of its configurations and splits, which are:"),
        ("hf:some/set", ["a.jsonl", "b.jsonl"], "which are: a, b"),
        ("hf:some/set", ["set.py", "data.zip"], "has no files of parquet, JSON lines or CSV: add @refs/convert"),
        ("hf:some/none", TWO, "data set hf:some/none (some/none) does not exist (at http"),
    ],
)  # fmt: skip
def test_what_a_data_set_lacks_is_one_line(serve: Serve, dataset: str, files: list[str], said: str) -> None:
    serve(some(*files))
    assert said in complaint(dataset)


def test_a_large_split_is_not_fetched_and_columns_are_named(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(some(**{"test.jsonl": rows_of("x", column="odd"), "train.jsonl": rows_of("x" * 1000)}))
    assert "choose one of its own with --template: odd" in complaint("hf:some/set")
    assert texts(load("hf:some/set", column="odd")) == ["x"]
    monkeypatch.setattr(sources, "LARGEST", 500)
    assert "has 1,017 bytes, more than 500 bytes: choose another split" in complaint("hf:some/set:train")
    assert server.requests("*/train.jsonl") == []


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_no_request_for_telemetry_is_sent(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would come before all others, from no thread that is watched."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", False)
    monkeypatch.setattr("huggingface_hub.utils._detect_agent._registry", None)
    server = serve(official("xsum"))
    load("xsum")
    assert server.requests("/api/agent-harnesses") == []


def test_a_row_without_a_text_is_counted_and_conversations_keep_their_turns(serve: Serve) -> None:
    serve(data_repo(sources.HUB["xsum"], [{"document": "", "summary": "s", "id": "1"}, *rows("xsum")]))
    assert load("xsum").rejected == {"empty": 1}
    row = {"prompt": ["one", "two"], "prompt_id": 3, "category": "math", "reference": []}
    serve(data_repo(sources.HUB["mt_bench"], [row]))
    (prompt,) = load("mt_bench", chat=ChatSettings(Spelled())).prompts
    assert (prompt.id, prompt.category, prompt.text, prompt.later) == ("3", "math", "one", ("two",))


@pytest.mark.parametrize(
    ("repos", "fault", "said"),
    [
        ([], None, "does not exist (at http"),
        ([data_repo(sources.HubFile("EdinburghNLP/xsum", "0" * 40, "a.parquet"), [])], None, "has no revision 30802a"),
        (
            [data_repo(sources.HubFile(*PINNED["xsum"][:2], "a.parquet"), [])],
            None,
            "has no file data/test-00000-of-00001.parquet at 30802a",
        ),
        ([official("xsum")], Fault("/api/*", status=429, headers={"Retry-After": "9"}), "again in 9 seconds"),
        ([official("xsum")], Fault("/storage/*", after=100, times=9), "the connection broke off"),
        ([official("xsum")], Fault("/storage/*", status=500, times=9), "answers with error 500"),
    ],
)
def test_what_goes_wrong_is_one_line(serve: Serve, repos: list[Repo], fault: Fault | None, said: str) -> None:
    serve(*repos, faults=(fault,) if fault else ())
    message = complaint("xsum")
    assert message.startswith("data set xsum (EdinburghNLP/xsum) ")
    assert said in message
    assert "or use the prompts that ship with specbench: --dataset code or articles" in message


def test_a_hub_that_is_down_is_not_waited_for_twice(serve: Serve) -> None:
    server = serve(official("xsum"), faults=(Fault("*/tree/*", status=503, times=99),))
    assert complaint("xsum") == complaint("xsum")
    assert len(server.requests("*/tree/*")) == 6


def test_offline_says_what_to_run_and_another_revision_is_not_taken(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    repo, revision, file = PINNED["xsum"]
    serve(data_repo(sources.HubFile(repo, "0" * 40, file), rows("xsum")))
    monkeypatch.setitem(sources.HUB, "xsum", sources.HubFile(repo, "0" * 40, file))
    assert len(load("xsum").prompts) == 3
    monkeypatch.setitem(sources.HUB, "xsum", sources.HubFile(repo, revision, file))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    said = complaint("xsum")
    assert "HF_HUB_OFFLINE is set" in said
    assert f"run `hf download {repo} {file} --repo-type dataset --revision {revision}`" in said
    assert capfd.readouterr() == ("", "")


def test_progress_bars_of_the_hub_come_back(serve: Serve) -> None:
    from huggingface_hub.utils.logging import get_logger
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled

    before = get_logger("huggingface_hub").handlers, are_progress_bars_disabled()
    serve()
    complaint("xsum")
    assert (get_logger("huggingface_hub").handlers, are_progress_bars_disabled()) == before
