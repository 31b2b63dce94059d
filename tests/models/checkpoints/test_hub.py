"""What the hub answers, and what a user reads then. No test here reaches a network."""

import copy
import importlib
import shutil
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from specbench.models.checkpoints import hub
from specbench.models.checkpoints.loading import load_config, load_model, load_tokenizer
from specbench.models.checkpoints.pairs import Checkpoint, resolve
from tests.support.checkpoints import CPU, WEIGHTS, WORDS, refusal_of, save_tiny

COMMIT = "0123456789abcdef0123456789abcdef01234567"
http = importlib.import_module(HTTPError.__module__.partition(".")[0])  # httpx or httpx2, as the hub's release has it


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint that no test changes."""
    return save_tiny(tmp_path_factory.mktemp("hub") / "tiny")


def answer(kind: type[HfHubHTTPError], status: int) -> HfHubHTTPError:
    request = http.Request("GET", "https://huggingface.co/api")
    return kind("long\nanswer", response=http.Response(status, request=request))


@pytest.fixture
def hub_says(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], None]:
    """Make every download end in the given error, without a network."""

    def say(error: Exception) -> None:
        def fail(*_: object, **__: object) -> str:
            raise error

        monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
        monkeypatch.setattr(hub, "_reachable", lambda _: True)
        monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
        monkeypatch.setattr(hub, "is_offline_mode", lambda: False)

    return say


@pytest.mark.parametrize(
    ("error", "complaints"),
    [
        (answer(GatedRepoError, 403), ["is gated", "https://huggingface.co/some/model", "hf auth login", "HF_TOKEN"]),
        (
            answer(RepositoryNotFoundError, 401),
            ["does not exist", "gated or private", "https://huggingface.co/some/model", "hf auth login", "HF_TOKEN"],
        ),
        (answer(RevisionNotFoundError, 404), ["no revision v9", "https://huggingface.co/some/model/commits"]),
        (answer(HfHubHTTPError, 503), ["status 503: long"]),
        (LocalEntryNotFoundError("long\ntext"), ["cannot be reached", "`hf download some/model --revision v9`"]),
        (
            http.ReadTimeout("slow"),
            ["cannot be reached (ReadTimeout: slow)", "`hf download some/model --revision v9`"],
        ),
        (OSError(28, "No space left on device"), ["could not be fetched into", "No space left on device"]),
    ],
)
@pytest.mark.parametrize("step", [load_config, load_tokenizer])
def test_what_the_hub_says_becomes_one_line(
    hub_says: Callable[[Exception], None], step: Callable[..., object], error: Exception, complaints: list[str]
) -> None:
    hub_says(copy.copy(error))
    message = refusal_of(step, Checkpoint("ours", "some/model", "v9"))
    assert message.startswith("ours: ")
    assert [c for c in complaints if c not in message] == [], message


def test_a_token_that_does_not_help_is_mentioned(
    hub_says: Callable[[Exception], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub_says(answer(GatedRepoError, 403))
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "hf_secret")
    message = refusal_of(load_config, Checkpoint("ours", "some/model"))
    assert "the token in use" in message
    assert "hf_secret" not in message


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """HF_HUB_OFFLINE as if it had been set from the start, and an empty cache, whose folder is returned."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_offline_and_not_cached_names_the_command_that_fetches_it(offline: Path) -> None:
    message = refusal_of(load_config, resolve("llama3-8b"))
    assert "HF_HUB_OFFLINE is set" in message
    revision = resolve("llama3-8b").revision
    assert f"`hf download meta-llama/Llama-3.1-8B-Instruct --revision {revision}`" in message
    assert "it is gated" in message


def test_offline_and_cached_loads_and_tells_the_commit(offline: Path, pristine: Path) -> None:
    snapshot = offline / "models--some--model" / "snapshots" / COMMIT
    shutil.copytree(pristine, snapshot)
    checkpoint = Checkpoint("ours", "some/model", COMMIT)
    assert load_tokenizer(checkpoint).get_vocab() == WORDS
    assert load_model(checkpoint, None, CPU).commit == COMMIT
    (snapshot / WEIGHTS).write_bytes(b"cut")
    assert f"delete it and run `hf download some/model --revision {COMMIT}`" in refusal_of(
        load_model, checkpoint, None, CPU
    )


def test_only_what_is_needed_is_fetched(pristine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def snapshot(_: str, *, allow_patterns: list[str], **__: object) -> str:
        asked.append(allow_patterns)
        return str(pristine)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    monkeypatch.setattr(hub, "_reachable", lambda _: True)
    load_config(Checkpoint("ours", "some/model"))
    assert not any("safetensors" in pattern or "bin" in pattern for pattern in asked[0])
    load_model(Checkpoint("ours", "some/model"), None, CPU)
    assert not any("bin" in pattern for patterns in asked for pattern in patterns)


def test_a_hub_without_answer_is_noticed_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object, **__: object) -> None:
        raise http.ConnectError("no route")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", fail)
    message = refusal_of(load_config, resolve("llama-68m"))
    assert "cannot be reached (no answer from " in message


def test_a_missing_folder_is_not_looked_for_on_the_hub(tmp_path: Path) -> None:
    assert "there is no folder" in refusal_of(load_config, Checkpoint("demo", str(tmp_path / "nope")))
