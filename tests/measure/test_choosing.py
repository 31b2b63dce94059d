"""A cell that chooses its method: what it decodes with, what is kept of that, what is refused, and going on with it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from specbench.backends.base import Decode
from specbench.errors import UsageError
from specbench.judge.candidates import regrets
from specbench.measure.course import Choosing, refuse_choices
from specbench.measure.grid import cells
from specbench.measure.runner import measure
from specbench.metrics import Trace
from specbench.results.journal import samples_of, turn_line
from specbench.spec import RunSpec, choices, expanded
from tests.support.measured import FakeBackend, Witness, job

NAMES = [f"p{n}" for n in range(12)]
CHOICES = "baseline,chain:2,chain:4"
SECONDS = {"baseline": 3.0, "chain": 1.0}


class Timed(FakeBackend):
    """Every decode takes the seconds of its method: nothing is timed."""

    def prepare(self, spec: RunSpec, longest: int) -> Decode:
        inner = super().prepare(spec, longest)

        def run(prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Trace]:
            each = SECONDS[spec.method] / len(prompts)
            return [replace(trace, seconds=each) for trace in inner(prompts, seeds)]

        return run


def auto(**changes: Any) -> Any:
    return job(*NAMES, method="auto", choices=CHOICES, k=4, **changes)


def test_a_choice_decodes_each_prompt_and_stands_in_its_sample_its_journal_and_its_row() -> None:
    backend = Timed()
    (cell,), _ = measure([auto()], backend, [Witness()])
    made = [sample.method.choice for sample in cell.samples]
    assert made[:3] == ["baseline", "chain:2", "chain:4"], "each once, as there was no warm-up"
    assert set(made[3:]) <= {"chain:2", "chain:4"}
    asked = [call.arm for call in backend.calls]
    assert asked.count("chain K=2") == made.count("chain:2")
    again = [samples_of(turn_line({cell.spec: [one]}))[cell.spec.key] for one in cell.samples]
    assert again == [[one] for one in cell.samples]
    assert cell.samples[0].row()["choice"] == "baseline"
    row = cell.row()
    assert f"baseline ×{made.count('baseline')}" in row["chosen"]
    assert row["chosen"].split(" ×")[0] == max(set(made), key=made.count)
    assert row["choosing_cost"] > 0


def test_the_warm_up_is_a_look_at_every_choice_but_its_first_calls() -> None:
    backend = Timed()
    (cell,), _ = measure([auto(warmup=1)], backend, [Witness()])
    assert cell.samples[0].method.choice == "chain:2", "nothing is left to be tried in a prompt that counts"
    before = [call.arm for call in backend.calls][1:7]  # after that of the group's baseline
    assert before == ["baseline", "chain K=2", "chain K=4"] * 2


@pytest.mark.parametrize("at", [3, 7])
def test_a_run_that_is_continued_chooses_as_it_would_have(at: int) -> None:
    whole, _ = measure([auto()], Timed(), [Witness()])
    part = {c.spec: replace(c, samples=c.samples[:at], status="partial") for c in whole}
    again, _ = measure([auto()], Timed(), [Witness()], part)
    assert [s.method.choice for s in again[0].samples] == [s.method.choice for s in whole[0].samples]


def test_lookups_are_judged_by_texts_that_others_decoded() -> None:
    decodes = {name: Timed().prepare(one, 9) for name, one in choices(auto().spec).items()}
    choosing = Choosing(decodes | {"prompt-lookup:2": unasked, "prompt-lookup:8": unasked})
    choosing.decode([[1, 2, 3]], [0])
    found = choosing.bandit.seen
    assert [(one.arm.method, one.arm.k, one.seconds is None) for one in found] == [
        ("baseline", 0, False), ("prompt-lookup", 8, True)
    ]  # fmt: skip
    assert sum(r.emitted for r in found[1].rounds) == sum(r.emitted for r in found[0].rounds) > 0


def unasked(prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Trace]:
    raise AssertionError("it was not chosen")


def test_prompts_of_a_batch_have_one_choice() -> None:
    (cell,), _ = measure([auto(batch=2)], Timed(), [Witness()])
    turns: dict[int, set[str]] = {}
    for sample in cell.samples:
        turns.setdefault(sample.turn, set()).add(sample.method.choice)
    assert len(turns) > 1
    assert all(len(some) == 1 for some in turns.values())


def test_the_regret_is_against_the_best_choice_that_was_measured_beside_it() -> None:
    done, _ = measure([auto(), job(*NAMES, k=2), job(*NAMES, k=8)], Timed(), [Witness()])
    rows = [cell.row() for cell in done]
    ((row, name, among, regret),) = regrets(done)
    assert (row["method"], name, among) == ("auto", "chain with K = 2", 2), "K = 8 is none of its choices"
    assert regret.value == pytest.approx(rows[1]["speedup"] / rows[0]["speedup"] - 1)
    assert regret.low < regret.value < regret.high
    assert regret.value > 0
    assert list(regrets(done[:1])) == list(regrets(done[1:])) == []


# --- how it is asked for ----------------------------------------------------------------------------------------------


def test_its_choices_are_cells_of_their_own_and_k_is_the_largest() -> None:
    (spec,) = cells({"method": "auto", "dataset": "code", "choices": " chain:2, baseline,chain:4,chain:2"})
    assert (spec.choices, spec.k) == ("chain:2,baseline,chain:4", 4)
    assert [(one.method, one.k, one.choices) for one in choices(spec).values()] == [
        ("chain", 2, None), ("baseline", 0, None), ("chain", 4, None),
    ]  # fmt: skip
    fixed = spec.with_(method="chain", k=4, choices=None)
    assert expanded([spec, fixed]) == list(choices(spec).values())
    assert spec.baseline == fixed.baseline


def test_a_choice_that_learns_from_prompt_to_prompt_is_refused() -> None:
    (spec,) = cells({"method": "auto", "dataset": "code", "choices": "chain:2,online:2"})
    with pytest.raises(UsageError, match="learns from prompt to prompt"):
        refuse_choices(spec)
