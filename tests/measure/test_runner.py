"""The order in which things are decoded, and what becomes of a run in which something fails. No model is involved."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from specbench.decoding.rounds import NonFiniteError
from specbench.errors import UsageError
from specbench.measure.group import seed_of
from specbench.measure.runner import measure
from specbench.results.cells import Losslessness
from specbench.spec import RunSpec
from tests.support.faked_runs import failing, failing_arm, flat_scores, no_scores, run
from tests.support.measured import Call, FakeBackend, Witness, job


def steep_scores(ids: Sequence[int], start: int, block: int) -> Tensor:
    return torch.arange(100.0).expand(len(ids) - start, -1)


# --- the order of decodes ---------------------------------------------------------------------------------------------


def arms_by_prompt(backend: FakeBackend) -> list[list[str]]:
    """The arms in the order of their decodes, prompt after prompt; all decode a prompt before the next one begins."""
    found: list[list[str]] = []
    prompts: list[int] = []
    for call in backend.calls:
        if not prompts or prompts[-1] != call.prompt[0]:
            prompts.append(call.prompt[0])
            found.append([])
        found[-1].append(call.arm)
    return found


def test_the_arms_are_interleaved_per_prompt_and_every_second_prompt_has_them_reversed() -> None:
    backend, _, (cell,) = run(job("a", "b", "c", "d"))
    orders = arms_by_prompt(backend)
    assert [sorted(order) for order in orders] == [["baseline", "chain K=4"]] * 4
    assert orders[0] == orders[1][::-1]
    assert orders[2] == orders[3][::-1]
    assert [s.order for s in cell.samples] == [(o.index("baseline"), o.index("chain K=4")) for o in orders]
    assert [s.turn for s in cell.samples] == [0, 1, 2, 3]


def test_arms_that_no_later_group_needs_are_forgotten() -> None:
    one, other = job("a", method="chain"), job("a", method="prompt-lookup", batch=2)
    backend, _, _ = run(one, other, job("b", method="chain", batch=2))
    assert backend.kept == [{"baseline", "prompt-lookup", "chain"}, set()]


def test_cells_with_a_common_baseline_share_its_decodes_and_stand_in_random_order() -> None:
    names = [f"p{n}" for n in range(12)]
    backend, witness, cells = run(*(job(*names, k=k) for k in (1, 2, 4, 8)))
    orders = arms_by_prompt(backend)
    arms = ["baseline", "chain K=1", "chain K=2", "chain K=4", "chain K=8"]
    assert [sorted(order) for order in orders] == [arms] * 12
    assert len({tuple(order) for order in orders}) > 8
    for arm in arms:
        places = [order.index(arm) for order in orders]
        assert sum(places) / len(places) == 2, "reversing every second order leaves no arm early or late"
    assert [len(c.samples) for c in cells] == [12] * 4
    assert all(len({id(s.baseline) for (s,) in turn.values()}) == 1 for turn in witness.turns)


def test_a_prompt_is_decoded_in_the_reverse_order_when_it_is_repeated() -> None:
    backend, _, (cell,) = run(job("a", "b", repeat=2))
    orders = arms_by_prompt(backend)
    assert [order[::-1] for order in orders[:2]] == orders[2:]
    assert [(s.prompt, s.repeat, s.turn) for s in cell.samples] == [("a", 0, 0), ("b", 0, 1), ("a", 1, 2), ("b", 1, 3)]


def test_cells_that_differ_in_more_than_method_and_lookahead_have_baselines_of_their_own() -> None:
    backend, witness, _ = run(job("a"), job("a", temperature=1.0), job("a", k=2))
    assert [c.arm for c in backend.calls].count("baseline") == 2
    assert witness.begun == [(["code", "code"], 1), (["code"], 1)]


def test_warm_up_comes_first_for_every_arm_and_is_not_counted() -> None:
    backend, witness, cells = run(job("a", "b", warmup=3, k=1), job("a", "b", warmup=3, k=2))
    warming = [(c.arm, c.prompt[0]) for c in backend.calls[:9]]
    assert warming == [(arm, p) for arm in ("baseline", "chain K=1", "chain K=2") for p in (10, 11, 10)]
    assert len(backend.calls) == 9 + 6
    assert [len(c.samples) for c in cells] == [2, 2]
    assert len(witness.turns) == 2


@pytest.mark.parametrize("warmup", [0, 1, 2, 5])
def test_every_arm_is_warmed_up_as_often_as_asked_for(warmup: int) -> None:
    backend, _, _ = run(job("a", "b", warmup=warmup))
    arms = [call.arm for call in backend.calls]
    assert arms[: 2 * warmup] == ["baseline"] * warmup + ["chain K=4"] * warmup
    assert len(arms) == 2 * warmup + 4
    assert len({call.seed for call in backend.calls[:warmup]}) == warmup


def test_every_turn_is_seen_as_soon_as_it_is_measured() -> None:
    seen_after = []
    witness = Witness()

    def answer(call: Call) -> Sequence[int]:
        seen_after.append(len(witness.turns))
        return (1, 2, 3)

    measure([job("a", "b")], FakeBackend(answer), [witness])
    assert seen_after == [0, 0, 1, 1]


def test_the_baseline_arm_is_the_same_cell_without_a_draft() -> None:
    prepared: list[RunSpec] = []

    class Noting(FakeBackend):
        def prepare(self, spec: RunSpec, longest: int):  # type: ignore[no-untyped-def]
            prepared.append(spec)
            return super().prepare(spec, longest)

    task = job("a", temperature=0.5, max_new_tokens=7, k=3)
    witness = Witness()
    measure([task], Noting(), [witness])
    assert prepared == [task.spec.with_(method="baseline", k=0), task.spec]
    assert witness.prepared == [*prepared, None], "whoever watches knows what is being made ready"


def test_where_one_arm_changes_how_all_are_executed_the_others_are_prepared_anew() -> None:
    prepared: list[int] = []

    class Changing(FakeBackend):
        def prepare(self, spec: RunSpec, longest: int):  # type: ignore[no-untyped-def]
            prepared.append(spec.k)
            if spec.k == 2:
                self.execution = "otherwise"
            return super().prepare(spec, longest)

        def describe(self) -> dict[str, str]:
            return {"tier_resolved": self.execution}

    cells, _ = measure([job("a", k=k) for k in (1, 2, 3)], Changing(), [Witness()])
    assert prepared == [0, 1, 2, 3] * 2
    assert [(cell.status, cell.row()["tier_resolved"]) for cell in cells] == [("ok", "otherwise")] * 3


def test_the_baseline_can_be_measured_against_itself() -> None:
    backend, _, (cell,) = run(job("a", "b", method="baseline", k=0, temperature=1.0))
    assert [c.arm for c in backend.calls] == ["baseline"] * 4
    assert len({c.seed for c in backend.calls}) == 4
    assert (cell.status, len(cell.samples)) == ("ok", 2)


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
    _, witness, (cell,) = run(job("a", "b", "c"), answer=failing(error, at=4, once=False))
    assert (cell.status, len(cell.samples), len(witness.turns)) == (status, 1, 1)
    assert text in cell.error
    assert "\n" not in cell.error
    assert cell.row()["speedup"] is None


@pytest.mark.parametrize("at", [1, 2, 3])
def test_later_groups_go_on_after_a_failed_one(at: int) -> None:
    _, _, cells = run(job("a", warmup=1), job("a", "b"), answer=failing(NonFiniteError("NaN"), at))
    assert [(c.status, len(c.samples)) for c in cells] == [("nan", 0), ("ok", 2)]


def test_an_arm_that_fails_ends_its_own_cell_and_the_others_of_its_group_go_on() -> None:
    answer = failing_arm("chain K=2", torch.OutOfMemoryError("CUDA out of memory"), 11)
    backend, witness, cells = run(*(job("a", "b", "c", k=k) for k in (1, 2, 4)), answer=answer)
    assert [(c.spec.k, c.status, len(c.samples)) for c in cells] == [(1, "ok", 3), (2, "oom", 1), (4, "ok", 3)]
    assert sum(c.arm == "chain K=2" for c in backend.calls) == 3, "it is tried again once, by itself"
    assert cells[1].error.startswith("by itself as well: out of memory")
    assert [sorted(s.k for s in turn) for turn in witness.turns] == [[1, 2, 4], [1, 4], [1, 4]]


def test_what_fits_by_itself_goes_on_where_it_ran_out_of_memory_beside_others() -> None:
    def crowded(call: Call) -> Sequence[int]:
        if call.arm == "chain K=2" and call.prompt[0] == 11 and not backend.kept:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return (1, 2, 3)

    backend, witness = FakeBackend(crowded), Witness()
    cells, _ = measure([job("a", "b", "c", k=k) for k in (1, 2)], backend, [witness])
    assert [(c.status, c.error, len(c.samples)) for c in cells] == [("ok", "", 3)] * 2
    assert [s.prompt for s in cells[1].samples] == ["a", "b", "c"], "nothing is decoded twice"
    assert [sorted(s.k for s in turn) for turn in witness.turns] == [[1, 2], [1], [1], [2], [2]]
    assert backend.kept == [set(), set()], "before it begins again, all caches are given back"
    assert [c.spec.k for c in witness.cells] == [1, 2]


def test_no_cell_is_tried_again_once_the_baseline_did_not_fit_by_itself() -> None:
    answer = failing_arm("baseline", MemoryError())
    backend, _, cells = run(*(job("a", "b", k=k) for k in (1, 2, 4)), answer=answer)
    assert [(c.status, len(c.samples)) for c in cells] == [("oom", 0)] * 3
    assert sum(call.arm == "baseline" for call in backend.calls) == 2


def test_an_interrupt_ends_what_was_to_be_tried_again() -> None:
    def answer(call: Call) -> Sequence[int]:
        if call.prompt[0] == 12:
            raise KeyboardInterrupt
        if call.arm == "chain K=2" and call.prompt[0] == 11:
            raise MemoryError
        return (1, 2, 3)

    cells, stopped = measure([job("a", "b", "c", k=k) for k in (1, 2)], FakeBackend(answer), [Witness()])
    assert isinstance(stopped, KeyboardInterrupt)
    assert [(c.status, len(c.samples)) for c in cells] == [("partial", 2), ("partial", 1)]


@pytest.mark.parametrize("at", [0, 1])
def test_a_baseline_that_fails_ends_all_cells_of_its_group(at: int) -> None:
    answer = failing_arm("baseline", NonFiniteError("NaN"), 10 + at)
    _, witness, cells = run(*(job("a", "b", "c", k=k) for k in (1, 2)), answer=answer)
    assert [(c.status, len(c.samples)) for c in cells] == [("nan", at)] * 2
    assert len(witness.turns) == at


def test_a_failure_while_preparing_is_the_status_of_the_cell() -> None:
    class Refusing(FakeBackend):
        def prepare(self, spec: RunSpec, longest: int):  # type: ignore[no-untyped-def]
            if spec.k == 2:
                raise UsageError("no such part")
            return super().prepare(spec, longest)

    cells, _ = measure([job("a", k=k) for k in (1, 2)], Refusing(), [Witness()])
    assert [(c.status, c.error) for c in cells] == [("ok", ""), ("error", "no such part")]


def test_what_nobody_foresaw_ends_its_cell_with_a_traceback_for_the_journal() -> None:
    _, _, (cell, other) = run(job("a"), job("a", seed=1), answer=failing(TypeError("a bug"), at=1))
    assert (cell.status, other.status) == ("error", "ok")
    assert cell.error == "unexpected TypeError: a bug (traceback: journal.jsonl)"
    assert "in answer" in cell.detail
    assert "detail" not in cell.row()


@pytest.mark.parametrize(("at", "finished"), [(1, 0), (2, 0), (4, 1), (6, 2)])
def test_an_interrupt_ends_the_run_and_keeps_what_was_measured(at: int, finished: int) -> None:
    backend, witness = FakeBackend(failing(KeyboardInterrupt(), at)), Witness()
    cells, stopped = measure([job("a", "b", "c"), job("a", seed=1)], backend, [witness])
    assert isinstance(stopped, KeyboardInterrupt)
    first = "partial" if finished else "skipped"
    assert [(c.status, len(c.samples)) for c in cells] == [(first, finished), ("skipped", 0)]
    assert cells == witness.cells
    assert len(witness.turns) == finished
    assert len(backend.calls) == at


def test_an_interrupt_in_the_second_group_leaves_the_first_as_it_was() -> None:
    backend = FakeBackend(failing(KeyboardInterrupt(), at=5))
    cells, stopped = measure([job("a", "b"), job("a", "b", seed=1)], backend, [Witness()])
    assert stopped is not None
    assert [(c.status, len(c.samples)) for c in cells] == [("ok", 2), ("skipped", 0)]


# --- losslessness -----------------------------------------------------------------------------------------------------


def unequal(call: Call) -> Sequence[int]:
    """The method parts from the baseline at the second token of the first prompt."""
    return (1, 9, 3) if (call.arm, call.prompt[0]) == ("chain K=4", 10) else (1, 2, 3)


def verdict_of(scores: object, **changes: object) -> Losslessness:
    _, _, (cell,) = run(job("a", "b", **changes), answer=unequal, scores=scores)
    return cell.lossless


def test_equal_greedy_texts_are_identical() -> None:
    _, _, (cell,) = run(job("a", "b"))
    assert cell.lossless == Losslessness("identical", 2, 2)


def test_a_tie_is_numeric() -> None:
    assert verdict_of(flat_scores) == Losslessness("numeric", 1, 2, 1, 0.0, 0.0)


def test_a_worse_token_is_a_mismatch_and_its_cell_has_no_numbers() -> None:
    _, _, (cell,) = run(job("a", "b"), answer=unequal, scores=steep_scores)
    assert cell.lossless == Losslessness("MISMATCH", 1, 2, 1, 97.0, 0.0)
    assert (cell.status, cell.row()["speedup"], cell.row()["lossless"]) == ("mismatch", None, "MISMATCH")


def test_repetitions_of_a_greedy_decode_are_compared_once() -> None:
    assert verdict_of(flat_scores, repeat=3).compared == 2


def test_sampled_texts_are_not_compared() -> None:
    assert verdict_of(no_scores, temperature=1.0) == Losslessness()
