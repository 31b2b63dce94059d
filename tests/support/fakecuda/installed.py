"""Puts the simulated device in the place of torch's, and takes it away again."""

import ctypes
import gc
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import platformdirs
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from transformers.utils import import_utils

from specbench.decoding import timing, tokens
from specbench.models.execution.compiled import COMPILERS
from specbench.models.network import learning, sampling
from tests.support.fakecuda import graphs, tensors
from tests.support.fakecuda.machine import Machine
from tests.support.fakecuda.tensors import Fake, dispatch

GIB = 2**30
SIZE = 80 * GIB
SOURCE = Path(__file__).with_name("guard.cpp")
KEPT = "specbench-tests"  # the folder of the user's cache that holds the guard
REAL_GENERATOR, REAL_ATTENTION = torch.Generator, torch.nn.functional.scaled_dot_product_attention
PROPERTIES = SimpleNamespace(
    name="simulated GPU", uuid="simulated", total_memory=SIZE, multi_processor_count=132, major=9, minor=0,
    warp_size=32, max_threads_per_multi_processor=2048, regs_per_multiprocessor=65536, gcnArchName="",
    L2_cache_size=50 * 2**20, shared_memory_per_block_optin=232448,
)  # fmt: skip


def missing() -> str:
    """Why there is no simulated device here; empty if there is one."""
    if torch.version.cuda is not None:
        return "this torch was built with CUDA, whose guard cannot be replaced"
    return "" if guard() is not None else f"the guard of the simulated device needs one of {', '.join(COMPILERS)}"


@cache
def guard() -> Path | None:
    """The compiled guard, made once per version of torch; None where it cannot be compiled."""
    folder = platformdirs.user_cache_path(KEPT)
    found = folder / f"guard-{torch.__version__}.so"
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if found.exists() or compiler is None:
        return found if found.exists() else None
    folder.mkdir(parents=True, exist_ok=True)
    base = Path(torch.__file__).parent
    with tempfile.TemporaryDirectory(dir=folder) as work:  # other processes of a run may do the same
        made = Path(work) / found.name
        command = [
            compiler,
            "-shared",
            "-fPIC",
            "-std=c++20",
            "-I",
            base / "include",
            SOURCE,
            "-L",
            base / "lib",
            "-lc10",
        ]
        if subprocess.run(
            [*map(str, command), "-o", str(made)], capture_output=True, timeout=120, check=False
        ).returncode:
            return None
        os.replace(made, found)
    return found


class _AnyGenerator(type):
    def __instancecheck__(cls, one: object) -> bool:
        return isinstance(one, REAL_GENERATOR)


class Generator(metaclass=_AnyGenerator):
    """A generator of the simulated device is one of the CPU: equal seeds draw alike on both."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return REAL_GENERATOR("cpu")


def inference_mode(mode: bool = True) -> AbstractContextManager[Any]:
    """The part of inference mode that wrapped tensors can have: they lack what counts their versions."""
    return torch.no_grad() if mode else nullcontext()


def attention(query: Tensor, *rest: Any, **named: Any) -> Tensor:
    """Attention as one operator: a torch without CUDA has no choice of its kernels."""
    if not isinstance(query, Fake):
        return REAL_ATTENTION(query, *rest, **named)
    with _disable_current_modes():
        found: Tensor = dispatch(torch.ops.aten.scaled_dot_product_attention.default, (query, *rest), named)
    return found


def replaced(machine: Machine) -> dict[str, Any]:
    """The names of torch.cuda that the package and its libraries use, and what they are now."""
    streams = graphs.Streams()

    def set_device(device: Any) -> None:
        machine.current = machine.index(device)

    def answer(value: Any) -> Any:
        return lambda *_, **__: value

    return {
        "_lazy_init": answer(None), "is_available": answer(True), "is_initialized": answer(True),
        "device_count": lambda: machine.count, "current_device": lambda: machine.current, "set_device": set_device,
        "synchronize": lambda device=None: machine.wait("torch.cuda.synchronize"),
        "Stream": graphs.Stream, "Event": graphs.Event, "CUDAGraph": graphs.CUDAGraph,
        "current_stream": streams.current_stream, "default_stream": streams.default_stream, "stream": streams.stream,
        "graph_pool_handle": answer((0, 1)), "is_current_stream_capturing": lambda: machine.capturing is not None,
        "mem_get_info": answer((SIZE - 2 * GIB, SIZE)), "get_device_name": answer(PROPERTIES.name),
        "get_device_properties": answer(PROPERTIES), "get_device_capability": answer((9, 0)),
        "reset_peak_memory_stats": answer(None), "max_memory_allocated": answer(0), "memory_allocated": answer(0),
        "memory_reserved": answer(0), "empty_cache": answer(None), "is_bf16_supported": answer(True),
    }  # fmt: skip


@contextmanager
def simulated(count: int = 1) -> Iterator[Machine]:
    """A machine with `count` simulated GPUs, for the calls of this thread inside the context.

    Everything that is replaced is put back: patched names, the dispatch mode, and what libraries and the package
    remember of devices. Only the guard stays in the process, where nothing but a tensor of a GPU uses it.
    """
    library = guard()
    assert library is not None, missing()
    ctypes.CDLL(str(library))
    machine, cudnn = Machine(count), torch.backends.cuda.cudnn_sdp_enabled()
    converted = torch.__future__.get_overwrite_module_params_on_conversion()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in replaced(machine).items():
            patch.setattr(torch.cuda, name, value)
        patch.setattr(torch.version, "cuda", "13.0")
        patch.setattr(torch, "Generator", Generator)
        patch.setattr(torch, "inference_mode", inference_mode)
        patch.setattr(torch.nn.functional, "scaled_dot_product_attention", attention)
        for module in (sampling, learning):  # they tell packed weights by their type
            patch.setattr(module, "Tensor", Fake)
        patch.setenv("HF_DEACTIVATE_ASYNC_LOAD", "1")  # a dispatch mode is one of a thread
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        torch._C._set_only_lift_cpu_tensors(True)
        tensors._machine.append(machine)
        forget()
        try:
            with tensors.Mode():
                yield machine
        finally:
            tensors._machine.pop()
            torch._C._set_only_lift_cpu_tensors(False)
            torch.__future__.set_overwrite_module_params_on_conversion(converted)
            torch.backends.cuda.enable_cudnn_sdp(cudnn)
    forget()


def forget() -> None:
    """Forget what was found out about devices, constants that lie on them, and the clock that ran last."""
    timing._running.clear()
    for one in [*vars(import_utils).values(), tokens.kept]:
        if hasattr(one, "cache_clear"):
            one.cache_clear()
    gc.collect()
