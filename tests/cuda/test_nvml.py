"""A GPU as NVML sees it, where the extra is installed: what a GPU under work really says."""

import pytest
import torch

from specbench.measure.sensors import sensors_for
from specbench.results import machine
from specbench.results.machine import environment
from tests.cuda.conftest import DRY

pytestmark = pytest.mark.skipif(DRY, reason="a CPU has no NVML")


def test_a_gpu_at_work_says_how_fast_it_is(device: torch.device) -> None:
    if not machine.installed():
        pytest.skip("needs the extra gpu")
    watch = sensors_for(device)
    assert watch.remark == ""
    before = watch.begin()
    some = torch.ones(4096, 4096, device=device)
    for _ in range(50):
        some = some @ some * 1e-4
    torch.cuda.synchronize()
    found = watch.end(before)
    assert found.gpu_mhz is not None
    assert found.gpu_memory_mhz is not None
    assert found.gpu_mhz > 100
    assert found.gpu_memory_mhz > 100
    assert found.gpu_watts is None or 1 < found.gpu_watts < 5000
    assert found.gpu_celsius is None or 10 < found.gpu_celsius < 120
    assert environment(device)["gpu_driver"]
