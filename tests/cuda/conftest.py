"""Tests that need a GPU. Without one they are skipped; SPECBENCH_CUDA_TESTS=cpu runs those that can be run on a CPU,
where rounds are recorded and cut but not compiled, which would take an hour.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from specbench.backends import tiers
from specbench.models.execution import compiled
from tests.support.tiers import AsRecorded
from tests.support.tinypair import Pair, save_pair

HERE = Path(__file__).parent
DRY = os.environ.get("SPECBENCH_CUDA_TESTS") == "cpu"
REASON = "torch sees no CUDA device (SPECBENCH_CUDA_TESTS=cpu runs what a CPU can show)"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder, and skip it where there is no GPU."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.cuda)
            if not torch.cuda.is_available() and not DRY:
                item.add_marker(pytest.mark.skip(reason=REASON))


@pytest.fixture(autouse=True)
def _uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    if DRY:
        monkeypatch.setattr(tiers, "Store", AsRecorded)
        monkeypatch.setattr(compiled, "missing_compiler", lambda: "")


@pytest.fixture
def device() -> Iterator[torch.device]:
    """The GPU, with what it holds given back afterwards."""
    yield torch.device("cpu" if DRY else "cuda:0")
    if not DRY:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return save_pair(tmp_path_factory.mktemp("pair"))
