"""No password and no token reaches a file, stdout or stderr; what looks a little like one stays as it is."""

import logging
import sys
import time
from pathlib import Path

import huggingface_hub
import pytest
import yaml

from specbench.cli import app, training
from specbench.errors import UsageError
from specbench.jobs import reading
from specbench.measure.group import failure_of
from specbench.results.folder import slug
from specbench.wording import clean, first_line, redact
from tests.support.frontdoor import SHORT, Command
from tests.support.tinypair import prompts

SECRET = "pa55word"
TOKEN = "hf_" + "aB3" * 12
URLS = {
    "https://user:pa55word@localhost:1": "https://***@localhost:1",
    "http://:pa55word@h": "http://***@h",
    "https://pa55word@h/x": "https://***@h/x",
    "https://pa55word:@h/x": "https://***@h/x",
    "socks5h://user:123pa55word@h:1080": "socks5h://***@h:1080",
    "https://user:pa55word%40%2F@h": "https://***@h",
    "https://user:@pa55word@h/x": "https://***@h/x",
    "https://user:pa55/word/pa55word@h/x": "https://***@h/x",
    "https://user:/pa55word@h": "https://***@h",
    "https://user:?pa55word#pa55word@h": "https://***@h",
    "https://user:'pa55word\"@h": "https://***@h",
    "https://me@corp.test:pa55word@h/x": "https://***@h/x",
    "https://me@corp.test:x/pa55word@h/x": "https://***@h/x",
    "https://user:pa55word@[::1]:8080/x": "https://***@[::1]:8080/x",
    "https://user:pa55word@h/x and https://h/y": "https://***@h/x and https://h/y",
    "https://a/?u=https://user:pa55word@h": "https://a/?u=https://***@h",
    "git+ssh://git:pa55word@h/x": "git+ssh://***@h/x",
    "(https://user:pa55word@h): run": "(https://***@h): run",
    "cut off: https://user:pa55word": "cut off: https://***",
    "https://user:pa55word@h/a@b": "https://***@b",  # of two readings the one that hides more
    "https://h/f?token=pa55word&x=1": "https://h/f?token=***&x=1",
    "https://h/f?x=1&access_token=pa55word#y": "https://h/f?x=1&access_token=***",
    "https://h/cb#access_token=pa55word": "https://h/cb#access_token=***",
    "(https://h/f?api-key=pa55word).": "(https://h/f?api-key=***).",
    "https://s3.test/f?X-Amz-Credential=pa55word/2026&X-Amz-Signature=pa55word&X-Amz-Expires=60": (
        "https://s3.test/f?X-Amz-Credential=***&X-Amz-Signature=***&X-Amz-Expires=60"
    ),
    "https://c.test/f?Policy=pa55word__&Signature=pa55word~&Key-Pair-Id=pa55word": (
        "https://c.test/f?Policy=***&Signature=***&Key-Pair-Id=***"
    ),
    "https://az.test/f?sv=2026&sig=pa55word%3D": "https://az.test/f?sv=2026&sig=***",
    "{'authorization': 'Bearer pa55word'}": "{'authorization': 'Bearer ***'}",
    "Authorization: Basic pa55word==": "Authorization: Basic ***",
    "https://h/v1?key=pa55word&x=1": "https://h/v1?key=***&x=1",
    "https://h/v1?x=1&client_key=pa55word": "https://h/v1?x=1&client_key=***",
    "--engine-option vllm.api_key=pa55word,vllm.seed=1": "--engine-option vllm.api_key=***,vllm.seed=1",
    "llama.cpp.api-key=pa55word llama.cpp.hf-token=pa55word": "llama.cpp.api-key=*** llama.cpp.hf-token=***",
    "vllm.token=pa55word,vllm.key=pa55word,x.secret=pa55word": "vllm.token=***,vllm.key=***,x.secret=***",
    "'api_key=pa55word' is not ENGINE.NAME=VALUE": "'api_key=***' is not ENGINE.NAME=VALUE",
    "password=pa55word": "password=***",
}
INNOCENT = (
    "", "a@b", "jane@example.org", "mailto:jane@example.org?subject=x", "results/a@b/c", "jsonl:a@b.jsonl:3", "K@4",
    "demo@llama-7b", "middle=demo@llama-7b,small=target[:50%]", "git@github.com:owner/repo.git",
    "ssh://git@github.com/owner/repo", "https://huggingface.co/owner/repo/tree/main", "https://h:8080/a@b",
    "https://medium.com/@someone/x:y", "https://h/x@v1", "http://[::1]:8080/a@b", "http://localhost:1:",
    "no answer from https://huggingface.co: a@b", "'https://h:80','a@b'", '{"url":"https://h","mail":"a:b@c"}',
    "https://h/f?max_new_tokens=4&design=1&author=x", "tokens=4 token=5", "hf_hub_download_cache_directory", "hf_short",
    "xhf_" + "a" * 30, "basic understanding", "a bearer of news", "://", "::error::x", "C:\\x", "speedup<-5%",
    "sk-learn", "risk-sk-abcdefghijklmnopqrstuv", "**sk-learn**", "sk-news-articles-2020-long-ones", "sk-*",
    "vllm.scheduling_policy=priority", "vllm.max_num_batched_tokens=64", "vllm.tokenizer_mode=slow", "monkey=1&b=2",
    "llama.cpp.cache-type-k=q8_0", "vllm.num_keys=3", "https://h/f?monkey=x", "layers.key.weight",
)  # fmt: skip


@pytest.mark.parametrize(("text", "hidden"), URLS.items())
def test_credentials_are_taken_out(text: str, hidden: str) -> None:
    assert redact(text) == hidden
    assert redact(hidden) == hidden
    assert SECRET not in redact(text)


@pytest.mark.parametrize("text", INNOCENT)
def test_what_holds_none_stays_as_it_is(text: str) -> None:
    assert redact(text) == text


def test_a_token_of_the_hub_is_known_by_its_form() -> None:
    assert redact(f"{TOKEN}, HF_TOKEN={TOKEN}: 'hf_oauth_{TOKEN[3:]}'") == "hf_***, HF_TOKEN=hf_***: 'hf_oauth_***'"


SERVED = "sk-proj-x_aB3dEf6hIj9kLm2nOp-Q_r"


@pytest.mark.parametrize("text", [SERVED, "sk-aB3***************d9fQ", "sk-***Q", "sk-" + "0123456789abcdef" * 2])
def test_a_key_of_a_server_is_known_by_its_form_whole_and_in_parts(text: str) -> None:
    assert redact(f"Incorrect API key provided: {text}. See") == "Incorrect API key provided: sk-***. See"
    assert redact("sk-***. See") == "sk-***. See"


@pytest.mark.parametrize("name", ["OPENAI_API_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"])
def test_the_keys_of_this_process_are_known_by_their_values(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, " any-Word_of+old \n")
    assert redact("Bearer(any-Word_of+old)any-Word_of+old") == "Bearer(***)***"
    monkeypatch.setenv(name, "two-lines1\ntwo-lines2")
    assert redact("two-lines2 b'two-lines1'") == "*** b'***'"
    monkeypatch.setenv(name, "EMPTY")
    assert redact("EMPTY and two-lines1") == "EMPTY and two-lines1"


@pytest.mark.parametrize(
    "text",
    ["x" * 10**6, "://" * 10**5, "://a:b" * 10**5 + "@", "@://a:b" * 10**5, "?token=" * 10**5, "?sig=" + ")" * 10**6,
     "hf_" * 10**5, "://a:1" + ")" * 10**6 + "@", "authorization:" + " " * 10**5, "&" + "a" * 10**6 + "=",
     "sk-" * 10**5, "sk-" + "a" * 10**6, "sk-" + "a-" * 10**5, ".a" * 10**5 + "=", ".a-" * 10**5, ".key=" * 10**5],
    ids=range(16),
)  # fmt: skip
def test_no_text_takes_long(text: str) -> None:
    began = time.process_time()
    redact(text)
    assert time.process_time() - began < 2, "it is linear: 0.1 s"


def test_what_is_cut_to_be_shown_takes_no_longer_for_a_longer_text() -> None:
    began = time.process_time()
    assert clean("x" * 300 + "://a:b" * 10**6, 200) == "x" * 200
    assert time.process_time() - began < 2, "only its beginning is read: minutes for all of it"


# --- the places that every text passes --------------------------------------------------------------------------------


def test_whoever_shows_or_keeps_an_error_gets_none() -> None:
    text = f"{'x' * 150} https://user:{SECRET * 30}@h"  # a text is cut only when nothing is left to be cut into
    for said in (
        str(UsageError(text)),
        clean(text),
        clean(text, 10_000),
        first_line(OSError(text)),
    ):
        assert SECRET[:3] not in said, said
    assert slug(f"https://user:{SECRET}@h") == "h"


def raised() -> Exception:
    try:
        raise RuntimeError(f"https://user:{SECRET}@h") from OSError(f"?token={SECRET}")
    except RuntimeError as error:
        return error


def test_a_traceback_for_the_journal_has_none() -> None:
    failure = failure_of(raised())
    assert "Traceback" in failure.detail
    assert SECRET not in failure.error + failure.detail


def test_a_bug_is_told_with_a_traceback_without_any(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_: object) -> None:
        raise raised()

    monkeypatch.setattr(reading, "read_given", bug)
    found = command("verdict", "x")
    assert found.code == 1
    assert "Traceback (most recent call last)" in found.err
    assert "RuntimeError: https://***@h" in found.err
    assert SECRET not in found.err


def test_nor_do_warnings_and_logs_of_libraries(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def noisy(**_: object) -> int:
        print(f"UserWarning: proxy http://user:{SECRET}@h", file=sys.stderr)
        handler = logging.StreamHandler()
        handler.emit(logging.LogRecord("x", logging.ERROR, "", 0, "retrying %s", (f"http://user:{SECRET}@h",), None))
        return 0

    monkeypatch.setattr(app, "app", noisy)
    with pytest.raises(SystemExit):
        app.main()
    err = capsys.readouterr().err
    assert not isinstance(sys.stderr, app.Lasting)
    assert err.count("http://***@h") == 2
    assert SECRET not in err


# --- at the front door ------------------------------------------------------------------------------------------------


def leaks(folder: Path) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 5
    return [path.name for path in files if SECRET.encode() in path.read_bytes() or SECRET in path.name]


@pytest.mark.slow
def test_a_password_in_the_address_of_the_hub_is_in_no_file_and_on_no_screen(
    command: Command,
    pair,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,  # type: ignore[no-untyped-def]
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"https://user:{SECRET}@localhost:1")
    grid = {"target": [str(pair.target), "nope/nope"], "draft": str(pair.draft), "k": 2, "limit": 2, "warmup": 0}
    grid |= {"max_new_tokens": 4, "dataset": prompts(tmp_path / "words.jsonl", 4, 6)}
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(grid))
    found = command("sweep", "grid.yaml")
    told = command("report", found.folder)
    assert (found.code, told.code) == (6, 0)
    assert "https://***@localhost:1 cannot be reached" in found.err
    assert SECRET not in found.out + found.err + told.out + told.err
    assert leaks(found.folder) == []


@pytest.mark.parametrize(
    ("option", "value"),
    [("--target", f"https://user:{SECRET}@h/x"), ("--dataset", f"jsonl:https://h/x?token={SECRET}"),
     ("--model", f"middle=https://user:{SECRET}@h"), ("--template", f"https://user:{SECRET}@h {{prompt}}")],
)  # fmt: skip
def test_settings_with_a_credential_are_refused_before_anything_is_written(
    command: Command, option: str, value: str, tmp_path: Path
) -> None:
    found = command("run", option, value, *SHORT)
    assert found.code == 2
    assert f"{option} " in found.line
    assert "holds a password or a token" in found.line
    assert SECRET not in found.out + found.err
    assert list(tmp_path.iterdir()) == []


def test_the_command_is_kept_without_it(command: Command, pair, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    data = prompts(tmp_path / "words.jsonl", 4, 6)
    options = ("--dataset", data, *SHORT, "--output-dir", f"results/?token={SECRET}")
    assert command("run", *pair.options, *options).code == 0
    (description,) = tmp_path.rglob("run.json")
    assert "?token=***" in description.read_text()
    assert SECRET not in description.read_text()


def test_the_card_of_a_draft_holds_no_password_of_its_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = ["specbench", "train", "draft", "--data", f"https://user:{SECRET}@h/x"]
    monkeypatch.setattr(sys, "argv", words)
    found = training.draft_of({"output": tmp_path, "data": ["code"]})
    assert "train draft --data" in found.command
    assert SECRET not in found.command
