"""When a cell ends: at a narrow interval, at the end of its prompts, or later, when a run is continued."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from specbench.decoding.rounds import NonFiniteError
from specbench.measure import group
from specbench.measure.group import Failure, give_up
from specbench.measure.runner import measure
from specbench.metrics import Trace
from specbench.results.statistics import Interval
from specbench.spec import RunSpec
from tests.support.faked_runs import failing, flat_scores, run
from tests.support.measured import Call, FakeBackend, Witness, baseline_trace, job, method_trace

# --- when the interval is narrow enough -------------------------------------------------------------------------------


def named(count: int) -> list[str]:
    return [f"p{n}" for n in range(count)]


def test_until_ci_stops_at_the_first_checkpoint_at_which_every_interval_is_narrow() -> None:
    _, witness, cells = run(job(*named(60), until_ci=0.02, k=1), job(*named(60), until_ci=0.02, k=2))
    assert [len(c.samples) for c in cells] == [20, 20], "seconds of the fake do not vary: nothing is narrower"
    assert witness.begun[0][1] == 60


def test_until_ci_goes_on_to_the_end_of_the_prompts_where_the_interval_stays_wide() -> None:
    def uneven(call: Call) -> Sequence[int]:
        return range(2 + 5 * (call.prompt[0] % 2))

    _, _, (cell,) = run(job(*named(40), until_ci=0.001), answer=uneven, scores=flat_scores)
    assert len(cell.samples) == 40


def test_until_ci_looks_at_fixed_checkpoints_only(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    wide = Interval(1.0, 0.5, 2.0)
    monkeypatch.setattr(group, "speedup_of", lambda samples: looks.append(len(samples)) or wide)
    run(job(*named(110), until_ci=0.01))
    assert looks == [20, 30, 45, 67, 100]


# --- the first estimate -----------------------------------------------------------------------------------------------


@dataclass
class Compiling(FakeBackend):
    """A backend that compiles, and that can decode without."""

    def __post_init__(self) -> None:
        self.networks = self

    def describe(self) -> dict[str, Any]:
        return {"tier_resolved": "compile"}

    def glance(self, spec: RunSpec, prompts: Sequence[Sequence[int]], seed: int) -> list[Trace]:
        assert not self.calls, "before anything is prepared"
        made = method_trace if spec.k else baseline_trace
        return [made((4, 2, 0, 2)) for _ in prompts]


def test_a_first_estimate_comes_before_anything_is_compiled_and_enters_no_result() -> None:
    spec, seen = job("a", "b", "c", "d", k=4), Witness()
    cells, _ = measure([spec], Compiling(), [seen])
    plain, _ = measure([spec], FakeBackend(), [Witness()])
    method, baseline = method_trace((4, 2, 0, 2)), baseline_trace((4, 2, 0, 2))
    expected = (len(method.tokens) / method.seconds) / (len(baseline.tokens) / baseline.seconds)
    ((estimated, speedup, prompts),) = seen.estimates
    assert (estimated, speedup, prompts) == (spec.spec, pytest.approx(expected), 3)
    assert [c.samples for c in cells] == [c.samples for c in plain]
    eager, again = Witness(), Witness()
    measure([spec], FakeBackend(), [eager])
    measure([spec], Compiling(), [again], {cell.spec: cell for cell in cells})
    assert eager.estimates == again.estimates == [], "nothing to wait for, or a run that is continued"


# --- going on ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", range(1, 13))
def test_a_run_that_is_continued_measures_what_is_missing_and_nothing_twice(at: int) -> None:
    jobs = [job("a", "b", k=1), job("a", "b", k=2), job("a", "b", k=2, seed=1)]
    whole, _ = measure(jobs, FakeBackend(), [Witness()])
    cells, stopped = measure(jobs, FakeBackend(failing(KeyboardInterrupt(), at)), [Witness()])
    assert (stopped is not None) == (at <= 10)
    backend, past = FakeBackend(), {c.spec: c for c in cells}
    again, stopped = measure(jobs, backend, [Witness()], past)
    assert stopped is None
    assert [(c.spec, c.status, [(s.prompt, s.turn, s.order) for s in c.samples]) for c in again] == [
        (c.spec, c.status, [(s.prompt, s.turn, s.order) for s in c.samples]) for c in whole
    ]
    turns = {(s.turn, c.spec.seed) for c in cells for s in c.samples}
    assert len(backend.calls) == 10 - sum(2 if seed else 3 for _, seed in turns)


def test_a_cell_that_has_failed_is_not_tried_again() -> None:
    failed, _ = measure([job("a", "b")], FakeBackend(failing(NonFiniteError("NaN"), 3)), [Witness()])
    backend = FakeBackend()
    again, _ = measure([job("a", "b")], backend, [Witness()], {c.spec: c for c in failed})
    assert again == failed
    assert backend.calls == []


def test_a_pair_that_cannot_be_had_again_leaves_what_was_measured_to_be_gone_on_with() -> None:
    cells, _ = measure([job("a", "b")], FakeBackend(failing(KeyboardInterrupt(), 4)), [Witness()])
    fresh = job("a", seed=1).spec
    specs = [cells[0].spec, fresh]
    found = give_up(specs, Failure("error", "no such folder"), [Witness()], {c.spec: c for c in cells})
    assert [(c.status, len(c.samples)) for c in found] == [("partial", 1), ("error", 0)]
    assert {c.error for c in found} == {"no such folder"}


@pytest.mark.parametrize("at", range(3, 12))
def test_a_repeated_run_that_is_continued_is_the_undisturbed_one(at: int) -> None:
    jobs = [job("a", "b", "c", repeat=2)]
    whole, _ = measure(jobs, FakeBackend(), [Witness()])
    cells, _ = measure(jobs, FakeBackend(failing(KeyboardInterrupt(), at)), [Witness()])
    backend = FakeBackend()
    again, _ = measure(jobs, backend, [Witness()], {c.spec: c for c in cells})
    assert [(s.prompt, s.repeat, s.turn, s.order) for s in again[0].samples] == [
        (s.prompt, s.repeat, s.turn, s.order) for s in whole[0].samples
    ]
    assert len(backend.calls) == 2 * (6 - len(cells[0].samples))
