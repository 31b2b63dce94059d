"""Real engines in tests: those that are installed on this machine, where they are asked for; else a reason to skip."""

import os
from pathlib import Path

import pytest

from specbench.backends.engines import install
from specbench.errors import UnusableModelError

ASKED = "SPECBENCH_TEST_ENGINES"  # in the environment: 1 tests real engines, which takes minutes


def vllm_python() -> Path:
    """The Python that has vLLM."""
    refuse_unasked()
    try:
        return install.vllm_python()
    except UnusableModelError as error:
        pytest.skip(str(error))


def llama_server() -> Path:
    """The program of llama.cpp."""
    refuse_unasked()
    try:
        return install.llama_server()
    except UnusableModelError as error:
        pytest.skip(str(error))


def refuse_unasked() -> None:
    if os.environ.get(ASKED) != "1":
        pytest.skip(f"{ASKED} is not 1: engines take minutes to start")
