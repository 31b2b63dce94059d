"""Methods that carry something from prompt to prompt: forgotten after the warm-up, continued where they were, refused
where they would measure something else, and their intervals over blocks of prompts.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from specbench.backends.base import Decode
from specbench.backends.roles import carries, refuse_carrying
from specbench.data.prompts import Prompt
from specbench.errors import UsageError
from specbench.measure.group import Past, blocks_of
from specbench.measure.runner import measure
from specbench.metrics import Trace
from specbench.results import journal
from specbench.results.cells import Cell
from specbench.spec import RunSpec
from tests.support.measured import FakeBackend, Witness, job

NAMES = [f"p{n}" for n in range(12)]


class Learning(FakeBackend):
    """The tokens of the learning arm say how many prompts it has decoded since it was prepared; of others nothing."""

    def prepare(self, spec: RunSpec, longest: int) -> Decode:
        inner, seen = super().prepare(spec, longest), [0]

        def run(prompts: Sequence[Sequence[int]], seeds: Sequence[int]) -> list[Trace]:
            found = []
            for trace in inner(prompts, seeds):
                seen[0] += spec.method == "online"
                tokens = tuple(10 * seen[0] + token for token in range(len(trace.tokens)))
                found.append(replace(trace, tokens=tokens if spec.method == "online" else trace.tokens))
            return found

        return run


def measured(*jobs: Any, past: Past | None = None) -> tuple[Learning, Witness, list[Cell]]:
    backend, witness = Learning(), Witness()
    cells, stopped = measure(jobs, backend, [witness], past or {})
    assert stopped is None
    return backend, witness, cells


def jobs(**changes: Any) -> list[Any]:
    """The learning method and the chain, which share a baseline; sampled, so that outputs are not compared."""
    about = {"temperature": 1.0, **changes}
    return [job(*NAMES, method="online", **about), job(*NAMES, **about)]


def test_the_part_says_that_it_carries() -> None:
    assert carries(RunSpec(method="online")) == "Distilled"
    assert [carries(RunSpec(method=name)) for name in ("chain", "baseline", "merge", "cascade")] == [""] * 4


def test_what_was_learned_in_the_warm_up_is_forgotten() -> None:
    _, _, (online, chain) = measured(*jobs(warmup=3))
    assert [one.method.tokens[0] for one in online.samples] == [10 * (n + 1) for n in range(12)]
    assert all(one.method.tokens == (1, 2, 3) for one in chain.samples)


def test_a_run_that_is_continued_comes_to_where_it_was_before_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The finished turns are decoded again by the arm that learns, with the same seeds, untimed and unsaved."""
    monkeypatch.setattr("os.getloadavg", lambda: (0.5, 0.5, 0.5))  # it may change between the two runs
    whole, _, unbroken = measured(*jobs(warmup=1))
    cut = {one.spec: replace(one, samples=one.samples[:5], status="partial") for one in unbroken}
    backend, witness, again = measured(*jobs(warmup=1), past=cut)
    assert [one.samples for one in again] == [one.samples for one in unbroken]
    assert len(witness.turns) == 7, "nothing is saved twice"
    arms = [call.arm for call in backend.calls]
    assert arms[3:8] == ["online K=4"] * 5, "after a warm-up of three arms"
    assert arms.count("chain K=4") == arms.count("baseline") == 1 + 7
    seeds = {(call.arm, call.prompt): call.seed for call in whole.calls[3:]}
    assert all(seeds[call.arm, call.prompt] == call.seed for call in backend.calls[3:])


def test_intervals_of_what_learns_are_over_blocks_and_those_of_the_others_over_prompts() -> None:
    _, _, (online, chain) = measured(*jobs())
    assert (online.row()["draws"], chain.row()["draws"]) == (5, 12)
    assert [one.cluster for one in online.samples[:5]] == ["block 0"] * 3 + ["block 1"] * 2
    assert not any(one.cluster for one in chain.samples)
    by_category = {one["category"]: one for one in twice(online).category_rows()}
    assert by_category["a"]["speedup"] > 0, "a block shares no time"
    assert by_category["a"]["draws"] == 3


def twice(cell: Cell) -> Cell:
    """The cell with two categories."""
    return replace(cell, samples=[replace(one, category="ab"[n // 6]) for n, one in enumerate(cell.samples)])


@pytest.mark.parametrize(("prompts", "blocks"), [(1, 1), (4, 4), (20, 5), (40, 5), (96, 12), (97, 13)])
def test_blocks_have_eight_prompts_at_most_and_there_are_five_where_possible(prompts: int, blocks: int) -> None:
    some = [Prompt(f"p{n}", "all", "", (1,)) for n in range(prompts)]
    found = list(blocks_of(some).values())
    sizes = [found.count(name) for name in dict.fromkeys(found)]
    assert len(sizes) == blocks
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) <= 8


def test_blocks_stand_in_the_journal_with_the_cell_that_has_them() -> None:
    _, witness, _ = measured(*jobs())
    for turn in witness.turns:
        line = journal.turn_line(turn)
        assert journal.samples_of(line) == {spec.key: list(samples) for spec, samples in turn.items()}
        assert "batch" not in line


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"repeat": 2}, "--repeat 2: --method online learns from every prompt"),
        ({"until_ci": 0.1}, "--until-ci: --method online learns from every prompt"),
        ({"acceptance": (0.5,)}, "--acceptance: --method online learns from every prompt"),
    ],
    ids=lambda one: next(iter(one), "") if isinstance(one, dict) else "",
)
def test_settings_that_would_measure_something_else_are_refused(setting: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as refusal:
        refuse_carrying(RunSpec(method="online", **setting))
    assert "\n" not in str(refusal.value)
    refuse_carrying(RunSpec(method="chain", **setting))
    refuse_carrying(RunSpec(method="online"))
