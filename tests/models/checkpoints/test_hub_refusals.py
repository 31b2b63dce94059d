"""What a user reads where a hub refuses a checkpoint, or cannot be asked.

The clients are the real ones; the hub is a server on this machine.
"""

import time
from concurrent.futures import thread
from logging.handlers import BufferingHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import constants
from huggingface_hub.utils.logging import get_logger

from specbench import hub
from specbench.models.checkpoints.description import load_config, load_tokenizer
from specbench.models.checkpoints.hub import fetch, repository
from specbench.models.checkpoints.loading import load_model
from specbench.models.checkpoints.pairs import Checkpoint, resolve
from tests.support.checkpoints import CPU, WEIGHTS, WORDS, refusal_of
from tests.support.hub_model import LATEST, PINNED, TOKEN, Serve
from tests.support.hub_repos import COMMIT
from tests.support.hub_server import Fault

# --- refusals ---------------------------------------------------------------------------------------------------------

ASK = "/api/models/some/model*"
OURS = "ours (some/model) "
REFUSALS: dict[str, tuple[dict[str, Any], str | None, list[str]]] = {
    "gated, no token": ({"gated": True}, None, ["is gated: accept its conditions on http", "no token is set"]),
    "gated, not granted": ({"gated": True}, TOKEN, ["is gated", "check that the token in use may read it"]),
    "private, no token": ({"private": True}, None, ["does not exist", "gated or private", "hf auth login"]),
    "private, other token": ({"private": True}, TOKEN, ["does not exist", "gated or private", "the token in use"]),
    "invalid token": ({}, "hf_invalidinvalidinvalid", ["the token in use is not valid", "hf auth login"]),
    "no such revision": ({"commit": "a" * 40}, None, [f"has no revision {COMMIT}", "/some/model/commits"]),
    "forbidden": ({"fault": Fault(ASK, status=403, times=9)}, TOKEN, ["lacks the permission", "/settings/tokens"]),
    "rate limit": (
        {"fault": Fault(ASK, status=429, headers={"RateLimit": '"api";r=0;t=55'}, times=9)},
        None,
        ["the hub's rate limit is reached: run the same again in 55 seconds", "more requests are allowed after"],
    ),
    "retry after": (
        {"fault": Fault(ASK, status=429, headers={"Retry-After": "7"}, times=9)},
        TOKEN,
        ["the hub's rate limit is reached: run the same again in 7 seconds; files that arrived whole are kept"],
    ),
    "down": ({"fault": Fault(ASK, status=503, times=9)}, None, ["answers with error 503: try again later"]),
    "not a hub": ({"fault": Fault("*/resolve/*", status=200, times=99)}, None, ["check HF_ENDPOINT and the proxy"]),
}


SLOW = "sent less than 10 KiB in 0.6 seconds"
DRIPPING = {
    "body of the API": (Fault(ASK, drip=0.05, times=99), SLOW),
    "headers of the API": (Fault(ASK, drip=0.05, head=True, times=99), SLOW),
    "headers of a file": (Fault("*/resolve/*/config.json", drip=0.05, head=True, times=99), SLOW),
    "body of a file": (Fault("*config.json", method="GET", drip=0.05, times=99), SLOW),
    "hangs again and again": (Fault("*config.json", method="GET", after=10, seconds=0.2, times=99), SLOW),
    "no end": (Fault(ASK, endless=True, times=99), "gives an answer of more than 1 MiB, or 120 seconds"),
}


@pytest.mark.parametrize("case", DRIPPING)
def test_a_hub_that_drips_is_given_up(serve: Serve, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    fault, said = DRIPPING[case]
    monkeypatch.setattr(hub, "PATIENCE", 0.6)
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.5)
    monkeypatch.setattr(hub, "ANSWER", 1 << 20)
    server = serve(fault)
    monkeypatch.setattr(get_logger("huggingface_hub"), "handlers", [logged := BufferingHandler(9)])
    began = time.monotonic()
    message = refusal_of(load_config, PINNED)
    assert time.monotonic() - began < 5
    kept = "try again later; files that arrived whole are kept"
    assert message == f"{OURS}cannot be fetched now: {server.url} {said}: {kept}"
    assert [one for one in thread._threads_queues if one.is_alive()] == [], "Python would wait for it at its end"
    get_logger("huggingface_hub").warning("Retrying in 8s")  # as a transfer does that still goes on
    assert not (logged.buffer and case.startswith("headers")), "only these are still waited for in the background"


def test_the_sizes_of_files_are_looked_up_without_a_word_of_the_library(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(get_logger("huggingface_hub"), "handlers", [logged := BufferingHandler(9)])
    server = serve(Fault("*/tree/*", after=0, times=99))
    assert hub.file_sizes(repository(PINNED)) == {}
    assert (len(server.requests("*/tree/*")), logged.buffer) == (6, [])


def test_who_waits_longer_for_a_sign_of_life_waits_longer_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub.patience() == hub.PATIENCE
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 300)
    assert hub.patience() == 309


def test_a_file_that_is_longer_than_announced_is_given_up() -> None:
    bar = hub.bars(hub.Watch(), None)(total=10, disable=True)
    bar.update(20)
    with pytest.raises(OSError, match="more came than the 10 bytes that were announced"):
        bar.update(1)


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_is_one_line_that_says_what_to_do(serve: Serve, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    settings, token, said = REFUSALS[case]
    settings = dict(settings)
    faults = [settings.pop("fault")] if "fault" in settings else []
    server = serve(*faults, **settings)
    server.tokens |= {TOKEN}
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    for step in (load_config, load_tokenizer):
        message = refusal_of(step, PINNED)
        assert message.startswith(OURS), message
        assert [words for words in said if words not in message] == [], message
        assert token is None or token not in message


def test_a_gated_repository_is_read_with_its_token_which_storage_never_sees(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(gated=True, private=True, readers=(TOKEN,))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert load_model(PINNED, None, CPU).commit == COMMIT
    assert {one.token for one in server.requests("*/resolve/*")} == {TOKEN}
    assert {one.token for one in server.requests("/storage/*")} == {None}


def test_a_repository_that_is_not_there_and_is_called_by_its_id(serve: Serve) -> None:
    serve()
    message = refusal_of(load_config, resolve("nobody/nothing"))
    assert message.startswith("nobody/nothing does not exist (neither as a folder nor at ")


def test_a_full_disk(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    serve()
    monkeypatch.setattr("huggingface_hub.file_download.http_get", fail)
    message = refusal_of(load_config, PINNED)
    assert "could not be fetched into" in message
    assert "No space left on device (HF_HOME names another place)" in message


def test_a_file_that_does_not_fit_on_the_disk_is_not_begun(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve()
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10_000))
    message = refusal_of(fetch, PINNED, (WEIGHTS,))
    assert "does not fit on the disk: 0.03 MB for one file, 0.01 MB free in " in message
    assert server.requests("/storage/*") == []


def test_a_password_in_the_address_of_the_hub_is_not_shown(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve(gated=True)
    monkeypatch.setattr(constants, "ENDPOINT", server.url.replace("://", "://user:pa55word@"))
    message = refusal_of(load_config, PINNED)
    assert "is gated: accept its conditions on http://***@127.0.0.1:" in message
    assert "pa55word" not in message


# --- without a hub ----------------------------------------------------------------------------------------------------


def test_without_a_network_a_part_in_the_cache_is_not_taken_for_the_whole(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve()
    load_config(PINNED)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert load_tokenizer(PINNED).get_vocab() == WORDS
    message = refusal_of(fetch, PINNED, (WEIGHTS,))
    assert message.startswith("ours (some/model) is not complete in the cache and HF_HUB_OFFLINE is set: run `hf down")


def test_a_gated_checkpoint_that_is_not_there_offline(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    serve()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    message = refusal_of(load_config, resolve("llama3-8b"))
    revision = resolve("llama3-8b").revision
    assert f"`hf download meta-llama/Llama-3.1-8B-Instruct --revision {revision}`" in message
    assert "it is gated" in message


def test_a_hub_that_cannot_be_reached_is_noticed_at_once_and_the_cache_serves(
    serve: Serve, naps: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(commit="c" * 40)
    load_config(LATEST)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(hub, "_ANSWERS", {})
    naps.clear()
    assert load_config(LATEST).vocab_size == 64
    message = refusal_of(load_config, resolve("llama-68m"))
    assert "is not complete in the cache and http://127.0.0.1:9 cannot be reached (ConnectError: " in message
    assert naps == []


def test_a_damaged_file_of_the_cache_says_how_to_fetch_it_again(serve: Serve) -> None:
    serve()
    weights = fetch(PINNED, (WEIGHTS,)) / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-9])
    assert f"delete it and run `hf download some/model --revision {COMMIT}`" in refusal_of(
        load_model, PINNED, None, CPU
    )


def test_a_missing_folder_is_not_looked_for_on_the_hub(tmp_path: Path) -> None:
    assert "there is no folder" in refusal_of(load_config, Checkpoint("demo", str(tmp_path / "nope")))
