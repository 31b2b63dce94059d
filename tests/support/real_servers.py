"""Real engines: those installed on this machine, where tests ask for them, and their servers as users start them."""

import http.client
import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from specbench.backends import native
from specbench.backends.checked import CheckedPair
from specbench.backends.engines import install
from specbench.backends.engines.llamacpp import LlamaCpp
from specbench.backends.engines.llamacpp import located as llama_files
from specbench.backends.engines.process import environment, free_port
from specbench.backends.engines.vllm import Vllm, variables
from specbench.backends.engines.vllm import located as vllm_files
from specbench.errors import UnusableModelError
from specbench.spec import RunSpec

NAME = "served"  # of the model, for those who ask for it
OPENING = 300.0  # seconds to start
SERVE = ["-I", "-m", "vllm.entrypoints.openai.api_server", "--served-model-name", NAME, "--no-enable-prefix-caching"]
TAKEN = ("model", "dtype", "max_model_len", "max_num_seqs", "kv_cache_memory_bytes", "generation_config")


def llama_cpp(program: Path, spec: RunSpec, places: int, log: Path) -> AbstractContextManager[str]:
    """llama.cpp's for a spec, with its draft or without: for texts of so many tokens, and as many at once as it has
    rows. It keeps no prompts."""
    pair = checked(spec)
    options = llama_files(LlamaCpp(program).start(spec, pair, places)["options"], pair)
    words = [program, *options, "--metrics", "--no-webui", "--no-cache-prompt", "-a", NAME]
    return started(words, install.libraries(program), log)


def vllm(python: Path, spec: RunSpec, places: int, log: Path) -> AbstractContextManager[str]:
    """vLLM's, likewise."""
    pair = checked(spec)
    llm = vllm_files(Vllm(python).start(spec, pair, places)["llm"], pair)
    return started([python, *SERVE, *options_of(llm)], variables(python, {}), log)


def checked(spec: RunSpec) -> CheckedPair:
    return native.open_pair([spec.with_(backend=None, tier="eager")]).pair


def options_of(llm: Mapping[str, Any]) -> list[str]:
    """The arguments of an offline engine as options of the server."""
    words = [word for name in TAKEN for word in (f"--{name.replace('_', '-')}", str(llm[name]))]
    drafting = llm.get("speculative_config")
    eager = ["--enforce-eager"] if llm["enforce_eager"] else []
    return [*words, *eager, *(["--speculative-config", json.dumps(drafting)] if drafting else [])]


@contextmanager
def started(command: Sequence[object], more: Mapping[str, str], log: Path) -> Iterator[str]:
    """The URL of a server, once it is ready; it is ended afterwards, whatever happened."""
    port = free_port()
    words = [*map(str, command), "--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as said:
        process = subprocess.Popen(words, stdout=said, stderr=said, env=environment(more))
    try:
        until = time.monotonic() + OPENING
        while not ready(port):
            assert process.poll() is None, log.read_text(encoding="utf-8", errors="replace")[-3000:]
            assert time.monotonic() < until, "the server is not ready"
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


def ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    with suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/health")
        return connection.getresponse().status == http.HTTPStatus.OK
    return False


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
