"""Real engines in tests: those that are installed on this machine, else a reason to skip."""

from pathlib import Path

import pytest

from specbench.backends.llamacpp import install as llamacpp
from specbench.backends.vllm import install as vllm
from specbench.errors import UnusableModelError


def vllm_python() -> Path:
    """The Python that has vLLM."""
    try:
        return vllm.python()
    except UnusableModelError as error:
        pytest.skip(str(error))


def llama_server() -> Path:
    """The program of llama.cpp."""
    try:
        return llamacpp.program()
    except UnusableModelError as error:
        pytest.skip(str(error))
