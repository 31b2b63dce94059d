"""Real servers on this machine, started and stopped here: vLLM's and llama.cpp's, which must be installed."""

import http.client
import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from specbench.backends import native
from specbench.backends.apart.pipe import environment
from specbench.backends.llamacpp import install as llamacpp
from specbench.backends.llamacpp import ways
from specbench.backends.llamacpp.engine import LlamaCpp, free_port
from specbench.backends.vllm.engine import variables
from specbench.spec import RunSpec
from tests.support.engines import llama_server, vllm_python
from tests.support.frontdoor import Command

PAIR = RunSpec(dtype="float32", max_new_tokens=24, k=3, tier="eager")
PLACES, OPENING = 512, 300.0  # tokens of a text, and seconds to start
AT_ONCE = "1,4,16"
SIZES = {"max-model-len": PLACES, "max-num-seqs": 16, "kv-cache-memory-bytes": 256 << 20, "dtype": "float32"}
SERVE = ["-I", "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager", "--served-model-name", "demo",
         *(word for name, value in SIZES.items() for word in (f"--{name}", str(value)))]  # fmt: skip


@contextmanager
def serving(command: Sequence[object], more: dict[str, str], log: Path) -> Iterator[str]:
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


def folder(role: str) -> str:
    return native.open_pair([PAIR]).pair.roles[role].checkpoint.source


def measured(command: Command, url: str, baseline: str) -> list[dict[str, str]]:
    found = command("run", "--backend", "openai", "--target", "demo", "--url", url, "--baseline-url", baseline,
                    "--batch", AT_ONCE, "--limit", "16", "--max-new-tokens", "16", "--warmup", "0", "--dataset", "code",
                    "--k", "3", "--ignore-eos")  # fmt: skip
    assert found.code == 0, found.err
    assert "acceptance from the server's counters" in found.err
    return found.table()


def check(rows: list[dict[str, str]]) -> None:
    assert [row["batch"] for row in rows] == AT_ONCE.split(",")
    for row in rows:
        assert row["status"] == "ok"
        assert 0 < float(row["alpha"]) <= 1
        assert float(row["ttft_ms"]) > 0
        assert int(row["tokens"]) == 16 * 16


@pytest.mark.slow
def test_llama_server_is_measured_with_and_without_a_draft(command: Command, tmp_path: Path) -> None:
    program = llama_server()
    pair, engine = native.open_pair([PAIR]).pair, LlamaCpp(program)
    with ExitStack() as stack:
        urls = []
        for spec in (PAIR, PAIR.baseline):
            options = ways.located(engine.start(spec.with_(batch=16), pair, PLACES)["options"], pair)
            words = [program, *options, "--metrics", "--no-webui", "-a", "demo"]
            log = tmp_path / f"{len(urls)}.log"
            urls.append(stack.enter_context(serving(words, llamacpp.libraries(program), log)))
        check(measured(command, *urls))


@pytest.mark.slow
def test_vllm_is_measured_with_and_without_a_draft(command: Command, tmp_path: Path) -> None:
    python = vllm_python()
    draft = json.dumps({"method": "draft_model", "model": folder("draft"), "num_speculative_tokens": 3})
    with ExitStack() as stack:
        urls = []
        for more in (["--speculative-config", draft], []):
            words = [python, *SERVE, "--model", folder("target"), *more]
            urls.append(stack.enter_context(serving(words, variables(python, {}), tmp_path / f"{len(urls)}.log")))
        check(measured(command, *urls))
