"""A group of cells whose pair turned out, when its arms were made ready, to be executed otherwise than was said."""

from typing import Any

from specbench.measure.group import Group, Job
from specbench.results.cells import Cell
from tests.support.measured import Witness, cell, prompt_set, sample

EAGER = {"tier_resolved": "eager", "dtype_resolved": "float32"}


class Told(Witness):
    """Also keeps what it was told of cells that had begun."""

    def __init__(self) -> None:
        super().__init__()
        self.renewed: list[Cell] = []

    def resolved(self, cells: Any) -> None:
        self.renewed += cells


def group(known: Cell, observer: Told, **resolved: str) -> Group:
    """The group of one cell, of which a continued run knows something."""
    return Group([Job(known.spec, prompt_set("p1", "p2"), resolved)], [observer], {known.spec: known})


def test_observers_hear_of_what_changed_and_of_nothing_else() -> None:
    observer, known = Told(), cell(status="skipped", resolved={"tier_resolved": "compile"})
    found = group(known, observer)
    found.resolve(EAGER)
    assert [one.resolved["tier_resolved"] for one in observer.renewed] == ["eager"]
    assert found.cells[known.spec].resolved["tier_resolved"] == "eager"
    found.resolve(EAGER)
    assert len(observer.renewed) == 1


def test_samples_of_two_tiers_never_stand_in_one_cell() -> None:
    observer, known = Told(), cell(sample(), status="partial", resolved={"tier_resolved": "compile"})
    found = group(known, observer)
    found.resolve(EAGER)
    (ended,) = observer.cells
    assert (ended.status, ended.samples, ended.resolved["tier_resolved"]) == ("partial", list(known.samples), "compile")
    assert "differently, and the numbers would mix (tier_resolved compile, now eager): start a new run" in ended.error
    assert not found.live
    assert not observer.renewed


def test_samples_of_the_same_tier_are_gone_on_with() -> None:
    observer, known = Told(), cell(sample(), status="partial", resolved={"tier_resolved": "eager"})
    found = group(known, observer)
    found.resolve(EAGER)
    assert list(found.live) == [known.spec]
    assert not observer.cells
