"""A tiny checkpoint on a hub of the test's own: fixtures for a conftest.py to import.

The clients in this process ask a server on this machine, with an empty cache, and never sleep.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from specbench.models.checkpoints.pairs import Checkpoint
from tests.support.checkpoints import save_tiny
from tests.support.hub_repos import COMMIT, Repo, folder_files
from tests.support.hub_server import Fault, HubServer, serving, use

TOKEN = "hf_abcdefghijklmnopqrstuvwxyz"
PINNED = Checkpoint("ours", "some/model", COMMIT)
LATEST = Checkpoint("ours", "some/model")
Serve = Callable[..., HubServer]


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    files = folder_files(save_tiny(tmp_path_factory.mktemp("hub") / "tiny"))
    more = ("pytorch_model.bin", "tf_model.h5", "README.md", "onnx/model.onnx", "original/model.safetensors")
    return files | dict.fromkeys(more, b"is not to be read")


@pytest.fixture
def files(saved: dict[str, bytes]) -> dict[str, bytes]:
    """A tiny checkpoint, and what else lies in repositories; may be changed."""
    return dict(saved)


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the clients would have slept between two attempts."""
    found: list[float] = []
    monkeypatch.setattr("time.sleep", found.append)
    return found


@pytest.fixture
def serve(
    files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, naps: list[float]
) -> Iterator[Serve]:
    """A hub with some/model, which the clients in this process ask."""
    with ExitStack() as stack:

        def call(*faults: Fault, prefix: str = "", page: int = 1000, **repo: Any) -> HubServer:
            model = Repo("some/model", files, **repo)
            server = stack.enter_context(serving(model, faults=faults, prefix=prefix, page=page))
            use(server, tmp_path / "cache", monkeypatch)
            return server

        yield call
