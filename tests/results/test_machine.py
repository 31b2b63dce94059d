"""What is kept of the machine, and what NVML says of a GPU."""

import os
from dataclasses import astuple, replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from specbench.results import machine
from specbench.results.machine import (
    Reading,
    attention_kinds,
    environment,
    gpu_named,
    running_besides,
    throttle_reasons,
)
from tests.support.fake_nvml import UUID, FakeNvml, NVMLError, dumb


def test_the_kinds_of_attention_are_those_that_are_left_in() -> None:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(True)
        assert attention_kinds() == "flash, efficient, cudnn, math"
        torch.backends.cuda.enable_cudnn_sdp(False)
        assert attention_kinds() == "flash, efficient, math"
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def process(proc: Path, pid: int, name: str, state: str, parent: int) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) {state} {parent} 0 0\n")


def test_programs_that_run_besides_are_counted_and_those_of_this_run_are_not(tmp_path: Path) -> None:
    own = os.getpid()
    process(tmp_path, own, "specbench", "R", 1)
    process(tmp_path, own + 1, "engine", "R", own)
    process(tmp_path, own + 2, "worker", "R", own + 1)
    for number in range(6):
        process(tmp_path, own + 10 + number, "cc1plus", "R", 1)
    process(tmp_path, own + 20, "a) R \x1b[31m(x", "R", 1)
    process(tmp_path, own + 21, "asleep", "S", 1)
    process(tmp_path, own + 22, "loop", "R", own + 22)
    (tmp_path / "uptime").write_text("1")
    (tmp_path / str(own + 30)).mkdir()
    (tmp_path / str(own + 31)).mkdir()
    (tmp_path / str(own + 31) / "stat").write_text("nothing")
    first, *others = running_besides(tmp_path).split(", ")
    assert (first, set(others)) == ("cc1plus ×6", {"a) R \ufffd[31m(x", "loop"})
    assert running_besides(tmp_path / "nothing") == ""


# --- an NVIDIA GPU, by NVML -------------------------------------------------------------------------------------------


def state_of(fake: FakeNvml) -> Reading:
    gpu = gpu_named(UUID, fake)
    assert gpu is not None
    return gpu.state()


def test_a_gpu_says_its_clocks_heat_and_power_and_what_is_refused_or_lacking_is_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = Reading(None, None, None, 1980, 2619, 54, 412.3, 700.0, 0x4)
    assert state_of(FakeNvml(reasons=(0x4,))) == whole
    found = state_of(FakeNvml(celsius=(NVMLError("Insufficient Permissions"),), milliwatts=(NVMLError("Unknown"),)))
    assert found == replace(whole, gpu_celsius=None, gpu_watts=None, gpu_reasons=0)
    assert set(astuple(state_of(dumb()))) == {None}
    monkeypatch.delattr(FakeNvml, "nvmlDeviceGetCurrentClocksThrottleReasons")
    assert state_of(FakeNvml()).gpu_reasons is None


def test_driver_and_limit_are_known_without_the_rest_and_a_gpu_that_nvml_does_not_know_is_none() -> None:
    gpu = gpu_named(UUID, fake := FakeNvml())
    assert gpu is not None
    assert (gpu.driver(), gpu.watts_limit(), fake.asked) == ("580.65.06", 700.0, ["driver", "milliwatts_limit"])
    assert gpu_named("another", FakeNvml()) is None
    assert gpu_named(UUID, None) is None


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0x0, []),
        (0x1 | 0x2 | 0x100, []),  # idle, fixed by somebody, asked for by a display: none slows a decode down
        (0x4 | 0x1, ["power limit"]),
        (0x20 | 0x40, ["temperature", "hardware, for its temperature"]),
    ],
)
def test_reasons_in_words(bits: int, words: list[str]) -> None:
    assert throttle_reasons(bits) == words


def test_a_machine_names_driver_and_limit_of_its_gpu_and_is_the_same_machine_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Abacus 9000")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=UUID))
    monkeypatch.setattr(machine, "library", lambda: None)
    without = environment(torch.device("cuda:0"))
    monkeypatch.setattr(machine, "library", FakeNvml)
    found = environment(torch.device("cuda:0"))
    assert "gpu_driver" not in without
    assert (found["gpu_driver"], found["gpu_watts_limit"]) == ("580.65.06", 700.0)
    assert found["fingerprint"] == without["fingerprint"], "the extra changes nothing of what may be compared"


needs_package = pytest.mark.skipif(find_spec(machine.NVML) is None, reason="needs the extra gpu")


@needs_package
def test_the_package_has_the_functions_and_the_numbers_that_are_used() -> None:
    import pynvml

    assert [name for name in vars(FakeNvml) if name.startswith("nvml") and not callable(getattr(pynvml, name))] == []
    numbers = (pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM, pynvml.NVML_TEMPERATURE_GPU)
    assert numbers == (machine.SM, machine.MEMORY, machine.CORE_SENSOR)
    named = {name: value for name, value in vars(pynvml).items() if name.startswith("nvmlClocksThrottleReason")}
    known = {value for name, value in named.items() if not name.endswith(("All", "None"))}
    assert set(machine.REASONS) | {0x1, 0x2, 0x100} >= known


@needs_package
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_package_without_a_gpu_gives_no_library_and_no_error() -> None:
    machine.library.cache_clear()
    assert machine.library() is None
