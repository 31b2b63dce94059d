"""Data sets of a hub: which file is asked for, and what a user reads where it cannot be had.

The clients are the real ones; the hub is a server on this machine.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from huggingface_hub import constants

from specbench.data import sources
from specbench.data.forms import ChatSettings
from tests.support.chats import Spelled
from tests.support.datafiles import complaint, load, texts
from tests.support.hub import Fault, HubServer, Repo, Serve, data_repo, official, rows, serving, use

PINNED = {
    "humaneval": (
        "openai/openai_humaneval",
        "7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544",
        "openai_humaneval/test-00000-of-00001.parquet",
    ),
    "xsum": ("EdinburghNLP/xsum", "30802a38d3f89b2fa8f19276008459e8c2b8b8e6", "data/test-00000-of-00001.parquet"),
}
FIRST = {
    "humaneval": "def add_0(a: int, b: int) -> int:\n    ",
    "xsum": "Article: It rained in town 0 for a day.\nSummary:",
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
    assert len(server.requests("/storage/*")) == 1
    server.log.clear()
    assert texts(load(name)) == texts(found)
    assert server.log == []


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
