"""What a worker says of a cell, and on which machine it goes on with one that was begun."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specbench.jobs.subprocess import Event
from specbench.jobs.worker import COUNTS, measure
from specbench.measure.group import Past
from specbench.results.cells import Cell
from specbench.spec import RunSpec
from tests.support.tinypair import prompts


@pytest.fixture(scope="module")
def spec(pair: Any, tmp_path_factory: pytest.TempPathFactory) -> RunSpec:
    dataset = prompts(Path(tmp_path_factory.mktemp("far")) / "words.jsonl", 4, 6)
    asked = {"target": str(pair.target), "draft": str(pair.draft), "dataset": dataset}
    return RunSpec(**asked, k=2, max_new_tokens=4, warmup=0)


def told(spec: RunSpec, past: Past) -> dict[str, list[Any]]:
    """What is said of a cell, by its name."""
    events = list[Event]()
    measure(spec, past, events.append)
    return {name: [arguments for one, arguments in events if one == name] for name, _ in events}


@pytest.fixture(scope="module")
def begun(spec: RunSpec) -> Cell:
    """The cell with the first of its two prompts alone."""
    (cell,) = told(spec, {})["end"][0]
    assert cell.status == "ok"
    return replace(cell, samples=cell.samples[:1], status="partial")


def test_a_machine_of_the_same_kind_goes_on(spec: RunSpec, begun: Cell) -> None:
    found = told(spec, {spec: begun})
    assert [len(turn[0][spec]) for turn in found["turn"]] == [1]
    assert len(found["end"][0][0].samples) == 2


@pytest.mark.parametrize("name", COUNTS)
def test_another_machine_begins_anew(name: str, spec: RunSpec, begun: Cell) -> None:
    other = replace(begun, resolved={**begun.resolved, name: "another"})
    found = told(spec, {spec: other})
    ((announced,), _) = found["begin"][0]
    assert announced.samples == ()
    assert len(found["turn"]) == 2


def test_other_prompts_are_refused(spec: RunSpec, begun: Cell) -> None:
    found = told(spec, {spec: replace(begun, resolved={**begun.resolved, "prompts_sha256": "another"})})
    assert list(found) == ["failed"]
    assert "are not those that it was begun with" in found["failed"][0][0].error
