"""Memory that runs out, wherever it does, is one line and an exit code that the guide has."""

import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.cli import app
from specbench.errors import UsageError, out_of_memory
from specbench.models.checkpoints import loading, weights
from tests.support.cases import quick_or_slow
from tests.support.frontdoor import Command

EXHAUSTED = [
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("unable to mmap 4096 bytes from file <model.safetensors>: Cannot allocate memory (12)"),
    ImportError("libtorch_cpu.so: failed to map segment from shared object"),
    OSError(12, "Cannot allocate memory"),
    torch.OutOfMemoryError("CUDA out of memory."),
]


def test_it_is_told_from_other_errors_and_where_it_led_to_one() -> None:
    """What fails within a capture of a GPU ends in the error that ends the capture."""
    line = "operation failed due to a previous error during capture"
    ended = RuntimeError(line)
    ended.__context__ = torch.OutOfMemoryError("CUDA out of memory.")
    assert all(map(out_of_memory, [ended, *EXHAUSTED]))
    others = RuntimeError(line), UsageError("no such file"), OSError(28, "No space left on device")
    assert not any(map(out_of_memory, others))


@pytest.mark.parametrize("error", EXHAUSTED, ids=lambda error: type(error).__name__)
def test_anywhere_it_is_one_line(command: Command, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def exhausted(**_: object) -> None:
        raise error

    monkeypatch.setattr(app, "app", exhausted)
    command("run").refused("specbench: out of memory (", code=4)


@pytest.mark.parametrize("error", [*EXHAUSTED[:3], EXHAUSTED[-1]], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("place", [weights, loading], ids=["mapping", "loading"])
def test_of_weights_it_says_what_to_do(
    run: Command, monkeypatch: pytest.MonkeyPatch, error: Exception, place: Any
) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(place, "find" if place is weights else "load_model", exhausted)
    run("-q").refused("do not fit into the memory of cpu", code=4)


@pytest.mark.parametrize("megabytes", quick_or_slow([300, 600, 700, 1200], lambda megabytes: megabytes == 700))
def test_a_process_with_little_address_space(tmp_path: Path, megabytes: int) -> None:
    """In each of these, a library ends otherwise: with an error, with a crash, in a loop without end, with a crash."""
    limit = megabytes << 20
    done = subprocess.run(
        [sys.executable, "-c", "from specbench.cli.app import main; main()", "run", "--limit", "1"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stdout) == (4, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("specbench: out of memory before the start: ")
    assert f"{megabytes} MiB" in line


@pytest.mark.parametrize("limit", [app.LEAST, resource.RLIM_INFINITY])
def test_enough_address_space_is_not_refused(command: Command, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert command("methods").code == 0
