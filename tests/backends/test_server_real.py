"""Real servers on this machine, started and stopped here: vLLM's and llama.cpp's, which must be installed."""

import csv
import io
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from specbench.spec import RunSpec
from tests.support import real_servers
from tests.support.frontdoor import Command
from tests.support.real_servers import llama_server, vllm_python

PAIR = RunSpec(dtype="float32", max_new_tokens=24, k=3, tier="eager", batch=16)
PLACES = 512  # tokens of a text
AT_ONCE = "1,4,16"


def measured(command: Command, url: str, baseline: str, *load: str) -> list[dict[str, str]]:
    found = command("run", "--backend", "openai", "--target", real_servers.NAME, "--url", url,
                    "--baseline-url", baseline, *load, "--limit", "16", "--max-new-tokens", "16", "--warmup", "0",
                    "--dataset", "code", "--k", "3", "--ignore-eos", "--endpoint", "completions",
                    "--format", "csv").ok()  # fmt: skip
    assert "acceptance from" in found.err
    return list(csv.DictReader(io.StringIO(found.out)))


def check(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    for row in rows:
        assert row["status"] == "ok"
        assert 0 < float(row["alpha"]) <= 1
        assert 0 < float(row["ttft_median_ms"]) <= float(row["latency_median_ms"])
        assert int(row["tokens"]) == 16 * 16
    return rows


def with_and_without_a_draft(command: Command, start: Callable[[RunSpec, str], AbstractContextManager[str]]) -> None:
    """The same server twice, asked by users who wait for answers, and as requests come."""
    with ExitStack() as stack:
        named = {"drafting.log": PAIR, "plain.log": PAIR.baseline}
        urls = [stack.enter_context(start(spec, name)) for name, spec in named.items()]
        assert [row["batch"] for row in check(measured(command, *urls, "--batch", AT_ONCE))] == AT_ONCE.split(",")
        check(measured(command, *urls, "--arrivals", "20", "--batch", "16"))


@pytest.mark.slow
def test_llama_server_is_measured_with_and_without_a_draft(command: Command, tmp_path: Path) -> None:
    program = llama_server()
    with_and_without_a_draft(command, lambda spec, name: real_servers.llama_cpp(program, spec, PLACES, tmp_path / name))


@pytest.mark.slow
def test_vllm_is_measured_with_and_without_a_draft(command: Command, tmp_path: Path) -> None:
    python = vllm_python()
    with_and_without_a_draft(command, lambda spec, name: real_servers.vllm(python, spec, PLACES, tmp_path / name))
