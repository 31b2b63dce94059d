"""Folders and files from somebody else: they run no code and get no key unless the command line itself says so."""

import json
import shutil
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
import yaml

import specbench
from specbench.errors import UsageError
from specbench.jobs.run import described
from specbench.spec import RunSpec
from tests.support.completions import Handler, Model, serving
from tests.support.frontdoor import Command
from tests.support.tinypair import prompts

KEY = "sk-secret-of-a-server"
HOST = "http://127.0.0.1:9"
CODE = """
from pathlib import Path
from transformers import PreTrainedTokenizerFast

Path({marker!r}).touch()


class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """The file that code of a checkpoint leaves behind."""
    return tmp_path / "ran"


@pytest.fixture
def target(pair: Any, tmp_path: Path, ran: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The target of the tiny pair with a tokenizer of its own."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    place = Path(shutil.copytree(pair.target, tmp_path / "own"))
    file = place / "tokenizer_config.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**known, "auto_map": {"AutoTokenizer": [None, "tok.OwnTokenizer"]}}))
    (place / "tok.py").write_text(CODE.format(marker=str(ran)))
    return place


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is sent to servers, of which none is there: hosts, and the key where it goes with a request."""
    found: list[str] = []

    def send(_: httpx2.Client, request: httpx2.Request, **how: Any) -> httpx2.Response:
        found.append(f"{request.url.netloc.decode()} {request.headers.get('Authorization', 'no key')}")
        raise httpx2.ConnectError("nobody", request=request)

    monkeypatch.setattr(httpx2.Client, "send", send)
    return found


def folder_of(parent: Path, environment: dict[str, Any] | None = None, **settings: Any) -> Path:
    """A run of one cell that was begun here, or on a machine with some other environment, and has measured nothing."""
    spec = RunSpec(**{"max_new_tokens": 4, "limit": 1, "warmup": 0, "k": 2, **settings})
    description = described([spec], torch.device("cpu"))
    description["environment"] |= environment or {}
    (parent / "foreign").mkdir()
    (parent / "foreign" / "run.json").write_text(json.dumps(description))
    (parent / "foreign" / "journal.jsonl").touch()
    return parent / "foreign"


def trusting(pair: Any, target: Path, **more: Any) -> dict[str, Any]:
    """Settings that let code of a checkpoint run."""
    data = prompts(target.parent / "words.jsonl", 4, 6)
    return {"target": str(target), "draft": str(pair.draft), "dataset": data, "trust_remote_code": True, **more}


def served(**more: Any) -> dict[str, Any]:
    """Settings that name a server."""
    return {"backend": "openai", "target": "tiny", "method": "baseline", "k": 0, "dataset": "code", "url": HOST, **more}


# --- code -------------------------------------------------------------------------------------------------------------


def test_a_continued_run_runs_no_code_unless_that_is_typed_again(
    command: Command, pair: Any, target: Path, ran: Path, tmp_path: Path
) -> None:
    folder = folder_of(tmp_path, **trusting(pair, target))
    command("run", "--resume", folder).refused("run.json sets trust_remote_code", "add --trust-remote-code")
    assert not ran.exists()
    with pytest.raises(UsageError, match="sets trust_remote_code"):
        specbench.resume(folder)
    again = command("run", "--resume", folder, "--trust-remote-code")
    assert (again.code, ran.exists()) == (0, True), again.err


@pytest.mark.parametrize("name", ["run", "sweep-k", "check", "sweep"])
def test_a_configuration_runs_no_code_unless_that_is_typed_and_a_grid_hides_trust_in_no_pair(
    command: Command, pair: Any, target: Path, ran: Path, tmp_path: Path, name: str
) -> None:
    settings, words = trusting(pair, target, trust_remote_code="yes"), ("--config", "mine.yaml")
    if name == "sweep":
        one = {name: settings.pop(name) for name in ("target", "draft", "trust_remote_code")}
        settings, words = {**settings, "pair": [{**one, "trust_remote_code": True}, {"target": "demo"}]}, words[1:]
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(settings))
    command(name, *words).refused("mine.yaml sets trust_remote_code")
    assert not ran.exists()


def test_an_option_goes_before_what_a_configuration_says(
    command: Command, pair: Any, target: Path, ran: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(trusting(pair, target, max_new_tokens=4)))
    for option, runs in (("--no-trust-remote-code", False), ("--trust-remote-code", True)):
        assert command("check", "--config", "mine.yaml", option).code == 0
        assert ran.exists() == runs


def test_the_machine_is_looked_at_before_anything_is_opened(
    command: Command, pair: Any, target: Path, ran: Path, sent: list[str], tmp_path: Path
) -> None:
    folder = folder_of(tmp_path, {"cpu": "another one"}, **trusting(pair, target))
    for options in ((), ("--trust-remote-code",), ("--limit", "9")):
        assert "begun on another machine" in command("run", "--resume", folder, *options).line
    assert not ran.exists()
    shutil.rmtree(folder)
    folder = folder_of(tmp_path, {"cpu": "another one"}, **served())
    assert "begun on another machine" in command("run", "--resume", folder).line
    assert sent == []


# --- what engines are given ---


LOG = "llama.cpp.log-file=/tmp/else.log"


@pytest.mark.parametrize("option", [LOG, "vllm.worker_cls=stranger.Worker", "vllm.seed=../x", "vllm.tokenizer=other"])
def test_no_file_gives_an_engine_what_names_files_or_code_but_numbers_and_words(
    command: Command, pair: Any, tmp_path: Path, option: str
) -> None:
    settings = {"target": str(pair.target), "draft": str(pair.draft), "dataset": "code"}
    plain = ["vllm.max_model_len=256", "vllm.quantization=fp8", "vllm.enforce_eager=true"]
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({**settings, "backend": "vllm", "engine_option": plain}))
    assert "gives an engine" not in command("run", "--config", "mine.yaml").err
    settings |= {"backend": "llama.cpp" if option == LOG else "vllm", "engine_option": option}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(settings))
    folder = folder_of(tmp_path, **settings)
    said = f"gives an engine {option}, which can name files or code"
    command("run", "--resume", folder).refused(said, f"add --engine-option {option}")
    for words in (("run", "--resume", folder), ("run", "--config", "mine.yaml"), ("sweep", "mine.yaml")):
        assert "gives an engine" in command(*words).line
        assert "gives an engine" not in command(*words, "--engine-option", option).err
    unused = command("run", "--resume", folder, "--engine-option", "vllm.swap_space=1", "--engine-option", option)
    assert "no use for --engine-option vllm.swap_space=1" in unused.line


# --- the key of a server ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"method": "chain", "k": 2, "url": "http://127.0.0.1:10", "baseline_url": HOST}])
def test_a_continued_run_sends_no_key_to_a_server_that_was_not_typed(
    command: Command, sent: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    folder = folder_of(tmp_path, **served(**more))
    for options in ((), ("--url", "http://127.0.0.1:10") if more else ()):
        command("run", "--resume", folder, *options).refused(
            "OPENAI_API_KEY is set and ", "names the server http://127.0.0.1:", "name it with --url URL"
        )
    assert sent == []
    named = ("--url", "http://127.0.0.1:10/", "--baseline-url", f"{HOST}/v1") if more else ("--url", HOST)
    assert command("run", "--resume", folder, *named).code == 4
    assert [line.split(" ", 1)[1] for line in sent] == [f"Bearer {KEY}"]


@pytest.mark.parametrize("option", ["--url http://else.test", "--trust-remote-code"])
def test_without_a_key_a_server_may_come_from_a_file_and_what_a_continued_run_has_no_use_for_is_refused(
    command: Command, sent: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    folder = folder_of(tmp_path, **served())
    command("run", "--resume", folder, *option.split()).refused(f"and no use for {option}")
    assert sent == []
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert command("run", "--resume", folder).code == 4
    assert sent == ["127.0.0.1:9 no key"]


@pytest.mark.parametrize("name", ["run", "sweep"])
def test_a_configuration_sends_no_key_to_a_server_that_was_not_typed(
    command: Command, sent: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({n: v for n, v in served().items() if n != "k"}))
    file = ("mine.yaml",) if name == "sweep" else ("--config", "mine.yaml")
    found = command(name, *file)
    assert (found.code, sent) == (2, [])
    assert "OPENAI_API_KEY is set and mine.yaml names the server http://127.0.0.1:9: name it with --url" in found.line
    assert command(name, *file, "--url", HOST).code == 4
    assert sent == [f"127.0.0.1:9 Bearer {KEY}"]


@pytest.mark.parametrize("key", ["sk-first-line\nsecond", "sk-€uro-and-more", "sk-bad\udcffbyte", "sk two words"])
def test_a_key_that_no_header_can_carry_is_one_line_without_it(
    command: Command, sent: list[str], monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    found = command("run", *[f"--{name.replace('_', '-')}={value}" for name, value in served().items() if name != "k"])
    assert (found.code, sent) == (2, [])
    assert "OPENAI_API_KEY holds a space, a line break or a letter that is not ASCII" in found.line
    assert not [part for part in key.split() if part in found.out + found.err]


# --- what a server repeats --------------------------------------------------------------------------------------------


def repeats(where: str) -> Any:
    """A server that sends back what it was sent for a key, with completions."""

    def complete(self: Handler, request: dict[str, Any], fault: str) -> None:
        text = json.dumps({"error": {"message": f"Incorrect API key: {self.headers['Authorization']}. Really."}})
        if where == "event":
            self.send_response(200)
            self.end_headers()
        self.event(text) if where == "event" else self.answer(int(where), text)

    return complete


@pytest.mark.parametrize("where", ["401", "500", "event"])
@pytest.mark.parametrize("key", ["sk-proj-aB3dEf6hIj9kLm2nOp", "any-Old.word+of/mine=="])
def test_a_key_that_a_server_repeats_is_in_no_file_and_on_no_screen(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, key: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    monkeypatch.setattr(Handler, "complete", repeats(where))
    (tmp_path / "one.jsonl").write_text('{"prompt": "once"}\n')
    with serving(Model()) as url:
        found = command(
            "run", "--backend", "openai", "--url", url, "--target", "tiny", "--method", "baseline", "--dataset",
            f"jsonl:{tmp_path / 'one.jsonl'}", "--warmup", "0", "--max-new-tokens", "4", "-vv",
        )  # fmt: skip
    assert "Incorrect API key: Bearer ***. Really." in found.err.replace("sk-***", "***")
    shown = command("report", "--no-png", found.folder)
    assert key not in found.out + found.err + shown.out + shown.err
    files = [path for path in found.folder.rglob("*") if path.is_file()]
    assert {"run.json", "journal.jsonl", "results.csv"} <= {path.name for path in files}
    assert [path.name for path in files if key.encode() in path.read_bytes()] == []
