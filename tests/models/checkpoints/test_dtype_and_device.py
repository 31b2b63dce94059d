"""What auto means for dtypes and devices, and which names are refused."""

import pytest
import torch

from specbench.errors import UsageError
from specbench.models.checkpoints import description
from specbench.models.checkpoints.description import resolve_device, resolve_dtype
from tests.support.checkpoints import CPU, llama


@pytest.mark.parametrize(
    ("name", "own", "device", "dtype"),
    [
        ("auto", torch.float32, "cpu", torch.float32),
        ("auto", torch.float64, "cpu", torch.float64),
        ("auto", torch.float16, "cpu", torch.float32),
        ("auto", torch.bfloat16, "cpu", torch.float32),
        ("auto", None, "cpu", torch.float32),
        ("auto", torch.float16, "cuda", torch.float16),
        ("auto", torch.bfloat16, "cuda", torch.bfloat16),
        ("bfloat16", torch.float32, "cpu", torch.bfloat16),
        ("float64", torch.float16, "cuda", torch.float64),
    ],
)
def test_dtypes(name: str, own: torch.dtype | None, device: str, dtype: torch.dtype) -> None:
    assert resolve_dtype(name, llama(dtype=own), torch.device(device)) == dtype


def test_an_unknown_dtype_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="unknown dtype 'int8': use auto, float32"):
        resolve_dtype("int8", llama(), CPU)


@pytest.mark.parametrize(("devices", "auto"), [(0, "cpu"), (1, "cuda")])
def test_the_automatic_device_is_cuda_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, devices: int, auto: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: devices > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    monkeypatch.setattr(description, "claimed", lambda device: device)
    assert resolve_device("auto").type == auto
    assert resolve_device("cpu") == CPU


@pytest.mark.parametrize(("name", "number"), [("cuda", 2), ("auto", 2), ("cuda:1", 1)])
def test_a_gpu_is_made_the_current_one_and_plans_no_attention(
    monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        assert resolve_device(name) == torch.device("cuda", number)
        assert current == [torch.device("cuda", number)]
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


@pytest.mark.parametrize(("name", "devices"), [("cuda", 0), ("cuda:1", 1)])
def test_an_absent_device_is_a_usage_error(monkeypatch: pytest.MonkeyPatch, name: str, devices: int) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    with pytest.raises(UsageError, match=f"no device {name}: torch sees {devices} CUDA devices"):
        resolve_device(name)


@pytest.mark.parametrize("name", ["gpu", "", "mps", "cuda:x", "meta"])
def test_an_unknown_device_is_a_usage_error(name: str) -> None:
    with pytest.raises(UsageError, match="unknown device"):
        resolve_device(name)
