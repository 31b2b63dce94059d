"""Where these tests run: on a GPU (without one they are skipped), on the simulated GPU of `tests.support.fakecuda`, and
with SPECBENCH_CUDA_TESTS=cpu on a CPU, where rounds are recorded and cut but not compiled, which would take an hour.

A file whose tests say nothing about some of these devices has their names in `PLACES`.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from specbench.backends import tiers
from specbench.models.execution import compiled
from tests.cuda.support import FEW
from tests.support.fakecuda import Machine, missing, simulated
from tests.support.tiers import AsRecorded
from tests.support.tinypair import Pair, save_pair

HERE = Path(__file__).parent
DRY = os.environ.get("SPECBENCH_CUDA_TESTS") == "cpu"
REASON = "torch sees no CUDA device (SPECBENCH_CUDA_TESTS=cpu runs what a CPU can show)"
EVERYWHERE = ("gpu", "simulated", *(["cpu"] if DRY else []))
UNABLE = {"simulated": "compile", "cpu": "graph"}  # the tier that a device has not


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "device" in metafunc.fixturenames:
        places = [place for place in EVERYWHERE if place in getattr(metafunc.module, "PLACES", EVERYWHERE)]
        marks = {"gpu": pytest.mark.cuda, "simulated": pytest.mark.slow, "cpu": pytest.mark.cuda}
        cases = [pytest.param(place, marks=marks[place], id=place) for place in places]
        metafunc.parametrize("device", cases, indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of a GPU where there is none, and leave out tiers that a device does not have."""
    for item in [one for one in items if HERE in one.path.parents]:
        given = item.callspec.params if hasattr(item, "callspec") else {}
        if "tier" in given and given["tier"] == UNABLE.get(given.get("device", "")):
            items.remove(item)
        elif given.get("device") == "simulated" and given.get("method", FEW[0]) not in FEW:
            items.remove(item)  # test_simulated.py compares all methods with the CPU
        elif "machine" in getattr(item, "fixturenames", ()) or given.get("device") == "simulated":
            item.add_marker(pytest.mark.skipif(bool(missing()), reason=missing()))
        elif given.get("device") != "cpu" and "gpu" in getattr(item.module, "PLACES", EVERYWHERE):  # type: ignore[attr-defined]
            item.add_marker(pytest.mark.cuda)
            item.add_marker(pytest.mark.skipif(not torch.cuda.is_available(), reason=REASON))


@pytest.fixture
def machine() -> Iterator[Machine]:
    """A machine with two simulated GPUs."""
    with simulated(2) as found:
        yield found


@pytest.fixture
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """The device, with what it holds given back afterwards."""
    if request.param == "simulated":
        request.getfixturevalue("machine")
    if request.param == "cpu":
        monkeypatch.setattr(tiers, "Store", AsRecorded)
        monkeypatch.setattr(compiled, "missing_compiler", lambda: "")
    yield torch.device("cpu" if request.param == "cpu" else "cuda:0")
    if request.param == "gpu":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return save_pair(tmp_path_factory.mktemp("pair"))
