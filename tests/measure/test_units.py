"""The same cells on several engines: turn by turn beside each other, and one that fails leaves the others alone."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from specbench.errors import UnusableModelError
from specbench.measure import runner
from specbench.measure.group import Failure
from specbench.measure.pair import Pair, Unusable
from specbench.measure.runner import APART, Bench, Local, Unit, local_units, measure_beside
from specbench.spec import BASELINE, RunSpec
from specbench.theory.memory import Demand, Fit, Part
from tests.support.measured import Call, FakeBackend, Witness, job

ENGINES = ("native", "transformers")


def engine(spec: RunSpec) -> str:
    return spec.backend or "native"


@dataclass
class Log:
    """Which engine decoded what, in order."""

    calls: list[tuple[str, str, int]] = field(default_factory=list)

    def engine(self, name: str, fail_at: int = 0, error: BaseException | None = None) -> FakeBackend:
        def answer(call: Call) -> Sequence[int]:
            self.calls.append((name, call.arm, call.prompt[0]))
            if error is not None and len([one for one in self.calls if one[0] == name]) == fail_at:
                raise error
            return (1, 2, 3)

        return FakeBackend(answer)


def benches(log: Log, *names: str, **of_second: Any) -> list[Bench]:
    made = [log.engine(ENGINES[0]), log.engine(ENGINES[1], **of_second)]
    return [Bench([job(*names, backend=name)], one) for name, one in zip(ENGINES, made, strict=True)]


def test_engines_take_turns_and_none_is_always_early() -> None:
    log, witness = Log(), Witness()
    cells, stop = measure_beside(benches(log, "a", "b", "c"), [witness])
    assert stop is None
    assert [(engine(cell.spec), cell.status, len(cell.samples)) for cell in cells] == [
        ("native", "ok", 3), ("transformers", "ok", 3),
    ]  # fmt: skip
    turns = [engine(next(iter(turn))) for turn in witness.turns]
    assert turns == ["native", "transformers", "transformers", "native", "native", "transformers"]
    assert [(name, prompt) for name, _, prompt in log.calls[::2]] == list(
        zip(turns, (10, 10, 11, 11, 12, 12), strict=True)
    )
    assert witness.begun == [(["code"], 3)] * 2


def test_arms_of_both_engines_draw_the_same() -> None:
    log = Log()
    found = benches(log, "a")
    measure_beside(found, [Witness()])
    seeds = [{(call.arm, call.seed) for call in bench.backend.calls} for bench in found]  # type: ignore[attr-defined]
    assert seeds[0] == seeds[1]


def test_an_engine_that_fails_leaves_the_other_one_alone() -> None:
    cells, stop = measure_beside(benches(Log(), "a", "b", fail_at=3, error=RuntimeError("gone")), [Witness()])
    assert stop is None
    assert [(engine(cell.spec), cell.status) for cell in cells] == [("native", "ok"), ("transformers", "error")]


def test_before_a_cell_is_measured_again_no_engine_holds_anything_ready() -> None:
    log = Log()
    found = benches(log, "a", "b")
    short = log.engine(ENGINES[0], fail_at=3, error=torch.OutOfMemoryError("CUDA out of memory."))
    found[0] = replace(found[0], backend=short)
    cells, _ = measure_beside(found, [Witness()])
    assert [(engine(cell.spec), cell.status) for cell in cells] == [("native", "ok"), ("transformers", "ok")]
    assert found[1].backend.kept[0] == set()  # type: ignore[attr-defined]
    assert len(found[1].backend.kept) == 2  # type: ignore[attr-defined]


def test_an_interrupt_keeps_what_all_engines_have_measured() -> None:
    cells, stop = measure_beside(benches(Log(), "a", "b", fail_at=3, error=KeyboardInterrupt()), [Witness()])
    assert stop is not None
    assert [(engine(cell.spec), cell.status, len(cell.samples)) for cell in cells] == [
        ("native", "partial", 1), ("transformers", "partial", 1),
    ]  # fmt: skip


# --- which pairs stand beside each other ------------------------------------------------------------------------------


@dataclass(eq=False)
class Checked:
    """What is asked of a pair that is ready."""

    specs: Sequence[RunSpec]
    fit: Fit | None = None

    @property
    def backend(self) -> FakeBackend:
        return FakeBackend()


@pytest.fixture
def pairs(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(runner, "Prepared", Checked)

    def made(*found: tuple[str, str, int], free: int | None = 10) -> list[Pair]:
        def fit(size: int) -> Fit:
            return Fit("cpu", Demand([Part("target", "weights", size)], 0), free, None)

        return [Checked([RunSpec(backend=name, dtype=dtype)], fit(size)) for name, dtype, size in found]  # type: ignore[misc, arg-type]

    return made


def names(found: Sequence[Unit]) -> list[list[str]]:
    return [[engine(spec) for spec in one.specs] for one in found]


def test_pairs_that_differ_in_their_engine_alone_are_measured_beside_each_other(pairs: Any) -> None:
    said: list[str] = []
    some = pairs(("native", "auto", 4), ("transformers", "auto", 4), ("native", "float32", 4))
    assert names(local_units(some, said.append)) == [["native", "transformers"], ["native"]]
    assert said == []


@pytest.mark.parametrize(
    ("free", "expected"), [(7, [["native"], ["transformers"]]), (None, [["native", "transformers"]])]
)
def test_engines_that_do_not_fit_at_once_come_one_after_the_other(
    pairs: Any, free: int | None, expected: list[list[str]]
) -> None:
    said: list[str] = []
    some = pairs(("native", "auto", 4), ("transformers", "auto", 4), free=free)
    assert names(local_units(some, said.append)) == expected
    assert said == ([APART] if free else [])


def test_an_engine_that_cannot_have_the_pair_stands_alone(pairs: Any) -> None:
    (ready,) = pairs(("native", "auto", 4))
    failure = Failure("error", "no", cause=UnusableModelError("no"))
    refused = Unusable([RunSpec(backend="transformers", method=BASELINE, k=0)], failure)
    assert local_units([ready, refused], print) == [Local([ready]), refused]
