"""The order in which things are decoded, and what becomes of a run in which something fails. No model is involved."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from specbench.bench.lossless import Losslessness
from specbench.bench.runner import measure, seed_of
from specbench.bench.samples import Cell
from specbench.decoding.decode import NonFiniteError
from specbench.errors import UsageError
from specbench.spec import RunSpec
from tests.measured import Call, FakeBackend, Job, Witness, job

Answer = Callable[[Call], Sequence[int]]


def no_scores(ids: Sequence[int], start: int, block: int) -> Tensor:
    raise AssertionError("equal texts are not scored")


def flat_scores(ids: Sequence[int], start: int, block: int) -> Tensor:
    return torch.zeros(len(ids) - start, 100)


def steep_scores(ids: Sequence[int], start: int, block: int) -> Tensor:
    return torch.arange(100.0).expand(len(ids) - start, -1)


def run(
    *jobs: Job, answer: Answer | None = None, scores: object = no_scores
) -> tuple[FakeBackend, Witness, list[Cell]]:
    backend, witness = FakeBackend(answer) if answer else FakeBackend(), Witness()
    cells, stopped = measure(jobs, backend, scores, witness)  # type: ignore[arg-type]
    assert stopped is None
    assert cells == witness.cells
    return backend, witness, cells


def failing(error: BaseException, at: int) -> Answer:
    """Answers until call number `at`, which fails."""
    seen: list[Call] = []

    def answer(call: Call) -> Sequence[int]:
        seen.append(call)
        if len(seen) == at:
            raise error
        return (1, 2, 3)

    return answer


# --- the order of decodes ---------------------------------------------------------------------------------------------


def test_the_arms_are_interleaved_per_prompt_and_the_leading_arm_alternates() -> None:
    backend, _, (cell,) = run(job("a", "b", "c"))
    assert [(c.arm, c.prompt[0]) for c in backend.calls] == [
        ("baseline", 10), ("chain", 10), ("chain", 11), ("baseline", 11), ("baseline", 12), ("chain", 12),
    ]  # fmt: skip
    assert [s.first for s in cell.samples] == ["baseline", "method", "baseline"]


def test_a_prompt_is_led_by_the_other_arm_when_it_is_repeated() -> None:
    _, _, (cell,) = run(job("a", "b", repeat=2))
    led = [(s.prompt, s.repeat, s.first) for s in cell.samples]
    assert led == [("a", 0, "baseline"), ("b", 0, "method"), ("a", 1, "method"), ("b", 1, "baseline")]


def test_both_arms_get_the_same_prompts() -> None:
    backend, _, _ = run(job("a", "b", "c", repeat=3))
    baseline, method = ([c.prompt for c in backend.calls if c.arm == arm] for arm in ("baseline", "chain"))
    assert sorted(baseline) == sorted(method)


def test_warm_up_comes_first_and_is_not_counted() -> None:
    backend, witness, (cell,) = run(job("a", "b", warmup=3))
    warming = [(c.arm, c.prompt[0]) for c in backend.calls[:6]]
    assert warming == [(arm, prompt) for prompt in (10, 11, 10) for arm in ("baseline", "chain")]
    assert len(backend.calls) == 6 + 4
    assert len(cell.samples) == len(witness.samples) == 2


def test_every_sample_is_seen_as_soon_as_it_is_measured() -> None:
    seen_after = []
    witness = Witness()

    def answer(call: Call) -> Sequence[int]:
        seen_after.append(len(witness.samples))
        return (1, 2, 3)

    measure([job("a", "b")], FakeBackend(answer), no_scores, witness)
    assert seen_after == [0, 0, 1, 1]
    assert witness.begun == [("code", 2)]


def test_the_baseline_arm_is_the_same_cell_without_a_draft() -> None:
    prepared: list[RunSpec] = []

    class Noting(FakeBackend):
        def prepare(self, spec: RunSpec):  # type: ignore[no-untyped-def]
            prepared.append(spec)
            return super().prepare(spec)

    task = job("a", temperature=0.5, max_new_tokens=7, k=3)
    measure([task], Noting(), no_scores, Witness())
    assert prepared == [task.spec.with_(method="baseline", k=0), task.spec]


# --- seeds ------------------------------------------------------------------------------------------------------------


def test_no_two_decodes_share_a_seed() -> None:
    backend, _, _ = run(job("a", "b", "c", repeat=3, warmup=2), job("a", "b", seed=1))
    assert len({c.seed for c in backend.calls}) == len(backend.calls)


def test_seeds_are_the_same_in_every_process_and_on_every_machine() -> None:
    spec = RunSpec(target="big", draft="small", seed=7)
    assert seed_of(spec, "HumanEval/0", 0, "baseline") == 4806766447053223662
    assert seed_of(spec, "HumanEval/0", 0, "method") == 2708530710241843429
    assert seed_of(spec, "HumanEval/0", 1, "method") == 3827050012675848357
    assert seed_of(spec, "HumanEval/1", 0, "method") == 5799858255241781531


def test_seeds_depend_on_nothing_but_seed_prompt_repetition_and_arm() -> None:
    one, other = RunSpec(seed=3, k=2, method="chain"), RunSpec(seed=3, k=8, method="token-match", temperature=1.0)
    assert seed_of(one, "p", 0, "method") == seed_of(other, "p", 0, "method")
    assert seed_of(one, "p", 0, "method") != seed_of(one.with_(seed=4), "p", 0, "method")
    assert 0 <= seed_of(one, "p", 0, "method") < 2**63


# --- failures ---------------------------------------------------------------------------------------------------------

FAILURES = [
    (NonFiniteError("a model gave NaN"), "nan", "a model gave NaN"),
    (torch.OutOfMemoryError("CUDA out of memory.\nmore"), "oom", "out of memory (CUDA out of memory.): try"),
    (torch.OutOfMemoryError(), "oom", "out of memory (OutOfMemoryError): try"),
    (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes"), "oom", "out of memory"),
    (MemoryError(), "oom", "out of memory (MemoryError)"),
    (UsageError("prompt is odd"), "error", "prompt is odd"),
]


@pytest.mark.parametrize(("error", "status", "text"), FAILURES)
def test_a_failure_is_the_status_of_its_cell_and_keeps_the_samples_before_it(
    error: Exception, status: str, text: str
) -> None:
    _, witness, (cell,) = run(job("a", "b", "c"), answer=failing(error, at=4))
    assert (cell.status, len(cell.samples), len(witness.samples)) == (status, 1, 1)
    assert text in cell.error
    assert "\n" not in cell.error
    assert cell.row()["speedup"] is None


@pytest.mark.parametrize("at", [1, 2, 3])
def test_later_cells_go_on_after_a_failed_one(at: int) -> None:
    _, _, cells = run(job("a", warmup=1), job("a", "b"), answer=failing(NonFiniteError("NaN"), at))
    assert [(c.status, len(c.samples)) for c in cells] == [("nan", 0), ("ok", 2)]


def test_a_failure_while_preparing_is_the_status_of_the_cell() -> None:
    class Refusing(FakeBackend):
        def prepare(self, spec: RunSpec):  # type: ignore[no-untyped-def]
            raise UsageError("no such part")

    cells, _ = measure([job("a")], Refusing(), no_scores, Witness())
    assert [(c.status, c.error) for c in cells] == [("error", "no such part")]


def test_what_nobody_foresaw_is_not_hidden_in_a_row() -> None:
    with pytest.raises(RuntimeError, match="a bug"):
        run(job("a"), answer=failing(RuntimeError("a bug"), at=1))


@pytest.mark.parametrize(("at", "finished"), [(1, 0), (2, 0), (4, 1), (6, 2)])
def test_an_interrupt_ends_the_run_and_keeps_what_was_measured(at: int, finished: int) -> None:
    backend, witness = FakeBackend(failing(KeyboardInterrupt(), at)), Witness()
    cells, stopped = measure([job("a", "b", "c"), job("a")], backend, no_scores, witness)
    assert isinstance(stopped, KeyboardInterrupt)
    assert [(c.status, len(c.samples)) for c in cells] == [("partial", finished)]
    assert cells == witness.cells
    assert len(witness.samples) == finished
    assert len(backend.calls) == at


def test_an_interrupt_in_the_second_cell_leaves_the_first_as_it_was() -> None:
    backend = FakeBackend(failing(KeyboardInterrupt(), at=5))
    cells, stopped = measure([job("a", "b"), job("a", "b")], backend, no_scores, Witness())
    assert stopped is not None
    assert [(c.status, len(c.samples)) for c in cells] == [("ok", 2), ("partial", 0)]


# --- losslessness -----------------------------------------------------------------------------------------------------


def unequal(call: Call) -> Sequence[int]:
    """The method parts from the baseline at the second token of the first prompt."""
    return (1, 9, 3) if (call.arm, call.prompt[0]) == ("chain", 10) else (1, 2, 3)


def verdict_of(scores: object, **changes: object) -> Losslessness:
    _, _, (cell,) = run(job("a", "b", **changes), answer=unequal, scores=scores)
    return cell.lossless


def test_equal_greedy_texts_are_identical() -> None:
    _, _, (cell,) = run(job("a", "b"))
    assert cell.lossless == Losslessness("identical", 2, 2)


def test_a_tie_is_numeric() -> None:
    assert verdict_of(flat_scores) == Losslessness("numeric", 1, 2, 1, 0.0, 0.0)


def test_a_worse_token_is_a_mismatch() -> None:
    assert verdict_of(steep_scores) == Losslessness("MISMATCH", 1, 2, 1, 97.0, 0.0)


def test_repetitions_of_a_greedy_decode_are_compared_once() -> None:
    assert verdict_of(flat_scores, repeat=3).compared == 2


def test_sampled_texts_are_not_compared() -> None:
    assert verdict_of(no_scores, temperature=1.0) == Losslessness()
