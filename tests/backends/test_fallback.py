"""Pairs whose rounds cannot be compiled, because a network reads a value in its pass: eager in all arms, or refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from specbench.backends import memory, tiers
from specbench.backends.native import open_pair
from specbench.backends.tiers import refused
from specbench.errors import UnusableModelError, UsageError, out_of_memory
from specbench.measure import fit
from specbench.models.checkpoints import quantise
from specbench.models.execution import compiled, few_rows
from specbench.models.execution.region_code import Regional
from specbench.results.reading import read_run
from specbench.spec import RunSpec
from tests.support.frontdoor import SHORT, Command
from tests.support.tiers import AsRecorded
from tests.support.tinypair import Pair, prompts, reading

WHY = "cannot be compiled here (Unsupported: Data-dependent branching)"
SLOW = (
    "cannot be compiled here (UncutError: only as a whole, for minutes, as --tier compile does; it reads the value of "
    "a tensor)"
)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A machine whose compiler changes nothing; every call of a function that was made ready."""
    calls: list[Any] = []

    class Noted(Regional):
        def __call__(self, *args: Any) -> Any:
            calls.append(self.function)
            return super().__call__(*args)

    monkeypatch.setattr(compiled, "missing_compiler", lambda: "")
    monkeypatch.setattr(tiers, "Store", AsRecorded)
    monkeypatch.setattr(tiers, "Regional", Noted)
    return calls


def spec_of(pair: Pair, **more: Any) -> RunSpec:
    return RunSpec(target=str(pair.target), draft=str(pair.draft), max_new_tokens=8, **more)


@pytest.mark.usefixtures("called")
def test_auto_is_eager_in_all_arms_and_says_why_in_one_line(command: Command, pair: Pair, tmp_path: Path) -> None:
    own = reading(pair, tmp_path, "target", "draft")
    found = command(
        "run", *own.options, "--dataset", prompts(tmp_path / "p.jsonl", 4, 6), *SHORT, "--tier", "auto"
    ).ok()
    (row,) = found.table()
    assert (row["status"], row["lossless"], row["tier"], row["tier_resolved"]) == ("ok", "identical", "auto", "eager")
    (kept,) = read_run(found.folder).cells
    assert kept.resolved["tier_resolved"] == "eager", "the journal, which reports and continued runs are made of"
    assert kept.resolved["tier_refused"] == row["tier_refused"] == f"rounds of baseline {SLOW}"
    (line,) = (line for line in found.err.splitlines() if SLOW in line)
    assert line == (
        f"note: tier eager: rounds of baseline {SLOW}, so baseline and methods are eager alike: Python and its calls "
        "are part of every number"
    )


@pytest.mark.usefixtures("called")
def test_a_tier_that_was_asked_for_ends_its_cells_with_one_line(command: Command, pair: Pair, tmp_path: Path) -> None:
    own = reading(pair, tmp_path, "target")
    found = command("run", *own.options, "--dataset", prompts(tmp_path / "p.jsonl", 4, 6), *SHORT, "--tier", "compile")
    line = f"tier compile: rounds of baseline {WHY}; use --tier eager, or auto, which then is eager"
    last = found.err.splitlines()[-1]
    assert (found.code, last) == (6, f"specbench: 1 of 1 cells ended without numbers: {line}")
    (row,) = found.table()
    assert (row["status"], row["error"], row["speedup"]) == ("error", line, "")


def test_a_baseline_that_was_compiled_is_eager_beside_a_method_that_cannot_be(
    called: list[Any], pair: Pair, tmp_path: Path
) -> None:
    spec = spec_of(reading(pair, tmp_path, "draft"), tier="auto")
    native = open_pair([spec])
    native.load()
    baseline = native.prepare(spec.baseline, 4)
    (before,) = baseline([[1, 2, 3]], [0])
    assert (native.tier.name, native.execution) == ("compile", f"tier compile: {compiled.COMPILING}")
    native.prepare(spec, 4)
    assert native.describe()["tier_resolved"] == "eager"
    called.clear()
    (after,) = baseline([[1, 2, 3]], [0])
    assert not called
    assert after.tokens == before.tokens


def test_memory_that_runs_out_while_rounds_are_made_ready_is_no_fallback(called: list[Any], pair: Pair) -> None:
    spec = spec_of(pair, tier="auto")
    native = open_pair([spec])
    native.load()

    def greedy(*_: object) -> None:
        if get_proxy_mode() is not None:
            torch.empty(1 << 60, dtype=torch.uint8)

    native.network("target").register_forward_pre_hook(greedy)
    with pytest.raises(RuntimeError) as failed:
        native.prepare(spec, 4)
    assert out_of_memory(failed.value)
    assert native.tier.name == "compile"


@pytest.mark.parametrize("asked", ["auto", "compile"])
def test_what_is_no_matter_of_the_tier_is_passed_on_and_a_capture_that_fails_says_so(asked: str) -> None:
    for tier, passed in (
        ("compile", UnusableModelError("no")),
        ("compile", MemoryError()),
        ("eager", ArithmeticError()),
    ):
        with pytest.raises(type(passed)):
            refused(tier, RunSpec(tier=asked), passed)
    error = RuntimeError("CUDA error: operation not permitted when stream is capturing\nCompile with …")
    reason = "rounds of chain cannot be captured as CUDA graphs here (RuntimeError: CUDA error: operation not permitted"
    assert refused("graph", RunSpec(method="chain", tier="auto"), error).startswith(reason)
    with pytest.raises(UsageError, match=r"^tier graph: rounds of chain"):
        refused("graph", RunSpec(method="chain", tier="graph"), error)


@pytest.mark.slow
@pytest.mark.usefixtures("called")
@pytest.mark.parametrize("paying", [False, True], ids=["", "packed where there is room"])
def test_auto_is_eager_where_compiled_rounds_take_more_memory_than_there_is(
    command: Command, pair: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, paying: bool
) -> None:
    words = (*pair.options, "--dataset", prompts(tmp_path / "p.jsonl", 4, 6), "--max-new-tokens", "8", "--batch", "1,2")

    def taken(tier: str) -> int:
        found = command("check", *words, "--tier", tier, "--format", "jsonl")
        return next(row["bytes"] for row in map(json.loads, found.out.splitlines()) if row["what"] == "total")

    def free(size: int) -> None:
        for module in (fit, memory):
            monkeypatch.setattr(module, "free_memory", lambda device: size)

    monkeypatch.setattr(few_rows, "pays", lambda: False)
    eager, compiled = taken("eager"), taken("compile")
    assert eager < compiled == taken("auto")
    monkeypatch.setattr(few_rows, "pays", lambda: paying)
    free((eager + compiled) // 2)
    said = "tier eager: memory is not enough for compiled rounds; Python and its calls are part of every number"
    assert said in command("check", *words, "--tier", "auto").err.replace("\n", " ")
    found = command("run", *words, "--warmup", "0", "--tier", "auto")
    assert [(row["status"], row["tier_resolved"]) for row in found.table()] == [("ok", "eager")] * 2
    assert f"note: {said}" in found.err.splitlines()
    free(eager // 4)
    assert command("check", *words, "--tier", "auto").code == 4


@pytest.mark.usefixtures("called")
def test_checkpoints_that_a_compiler_would_unpack_are_eager_unless_compiling_is_asked_for(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise quantise.UncompiledError("its weights are packed")

    monkeypatch.setattr(quantise, "refuse_compiled", refuse)
    found = open_pair([spec_of(pair, tier="auto")])
    assert (found.tier.name, found.execution.partition(";")[0]) == ("eager", "tier eager: its weights are packed")
    with pytest.raises(UsageError, match=r"^--tier compile: its weights are packed: use --tier eager$"):
        open_pair([spec_of(pair, tier="compile")])
