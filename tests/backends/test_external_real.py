"""The engines themselves, where they are installed, on the shipped pair: tokens, counts, and what verification says."""

from collections.abc import Callable
from pathlib import Path

import pytest

from specbench.results.cells import Cell, agreements
from specbench.results.reading import read_run
from tests.support.frontdoor import Command
from tests.support.real_servers import llama_server, vllm_python

SHORT = ("--limit", "2", "--max-new-tokens", "24", "--warmup", "0", "--dataset", "code", "--k", "3")
EXACT = ("--dtype", "float32", "--tier", "eager")
HERE: dict[str, Callable[[], Path]] = {"vllm": vllm_python, "llama.cpp": llama_server}


def cells(command: Command, engine: str, *more: str) -> list[Cell]:
    HERE[engine]()
    found = command("run", "--backend", f"native,{engine}", *SHORT, *EXACT, *more).ok()
    return list(read_run(found.folder).cells)


@pytest.mark.slow
@pytest.mark.parametrize("engine", HERE)
def test_a_chain_accepts_what_ours_accepts(command: Command, engine: str) -> None:
    ours, theirs = cells(command, engine)
    assert [s.method.tokens for s in theirs.samples] == [s.method.tokens for s in ours.samples]
    assert theirs.lossless.verdict == "identical"
    (found,) = agreements([ours, theirs])
    assert (found.equal, found.different) == (2, 0)
    assert found.verdicts == 2 or engine == "llama.cpp"


@pytest.mark.slow
def test_sequences_in_flight_together_are_those_of_one(command: Command) -> None:
    ours, theirs = cells(command, "vllm", "--batch", "2")
    assert [s.method.tokens for s in theirs.samples] == [s.method.tokens for s in ours.samples]


@pytest.mark.slow
def test_sampling_that_is_wrong_is_found(command: Command) -> None:
    """vLLM 0.32 on a CPU, see its issue 55005: the test fails once that is mended, and the note must go with it."""
    vllm_python()
    found = command("verify", "demo", "--backend", "vllm", "--method", "chain", "--limit", "2", "--tokens", "200",
                    "--tier", "eager", "--dtype", "float32", "--device", "cpu")  # fmt: skip
    assert found.code == 5, found.err
    *_, line = found.err.splitlines()
    assert "chain" in line
    assert "baseline" not in line
