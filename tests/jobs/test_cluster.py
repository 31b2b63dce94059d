"""Cells on a cluster that plays a script: who sits where, what a lost worker costs, and what an interrupt leaves."""

from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from specbench.errors import UsageError
from specbench.jobs.cluster import TRIES, Lost, Over, Seat, Spread
from specbench.jobs.subprocess import Event
from specbench.measure.group import Failure, Past
from specbench.results.cells import Cell, Losslessness
from specbench.spec import RunSpec
from tests.support.measured import RESOLVED, Witness, cell, sample

DONE = [replace(cell(sample("p1"), sample("p2"), k=k), lossless=Losslessness("identical")) for k in range(1, 7)]
SPECS = [one.spec for one in DONE]
TWO = [Seat("a", "host-a", "cpu"), Seat("b", "host-b", "cpu")]
Said = Event | Lost | Over | KeyboardInterrupt


def whole(done: Cell, seat: Seat) -> list[Said]:
    """What a worker says of a cell from begin to end."""
    begun = Cell(done.spec, RESOLVED)
    turns: list[Said] = [("turn", ({done.spec: [one]},)) for one in done.samples]
    return [
        ("where", ({"node": seat.host, "node_device": seat.device},)),
        *(("begin", ([begun], 2)), *turns, ("end", (done,))),
        Over(),
    ]


def losing(done: Cell, seat: Seat) -> list[Said]:
    """The same where the worker is gone after the first prompt."""
    return [*whole(done, seat)[:3], Lost("a storm")]


@dataclass
class Scripted:
    """A cluster whose workers say what is written; `scripts` are the tries of a cell, the usual one is whole."""

    places: Sequence[Seat]
    scripts: dict[RunSpec, list[Any]] = field(default_factory=dict)
    sent: list[tuple[Seat, RunSpec, Past]] = field(default_factory=list)
    working: dict[Hashable, tuple[Seat, list[Said]]] = field(default_factory=dict)
    cancelled: list[Hashable] = field(default_factory=list)
    busiest: int = 0

    def seats(self) -> Sequence[Seat]:
        return self.places

    def send(self, seat: Seat, spec: RunSpec, past: Past) -> Hashable:
        assert seat not in [one for one, _ in self.working.values()], "two timed cells on one device"
        script = self.scripts.get(spec) or [whole]
        done = next(one for one in DONE if one.spec == spec)
        self.sent.append((seat, spec, past))
        self.working[len(self.sent)] = seat, (script.pop(0) if len(script) > 1 else script[0])(done, seat)
        self.busiest = max(self.busiest, len(self.working))
        return len(self.sent)

    def heard(self, tasks: Sequence[Hashable]) -> Sequence[tuple[Hashable, Event | Lost | Over]]:
        found = []
        for task in tasks:
            said = self.working[task][1].pop(0)
            if isinstance(said, KeyboardInterrupt):
                raise said
            if isinstance(said, Lost | Over):
                del self.working[task]
            found.append((task, said))
        return found

    def cancel(self, tasks: Sequence[Hashable]) -> None:
        self.cancelled += tasks


def measured(cluster: Scripted, past: Past | None = None, specs: Sequence[RunSpec] = SPECS) -> Any:
    """(cells, what stopped them, what an observer saw, notes)."""
    witness, notes = Witness(), list[str]()
    cells, stop = Spread(specs, nullcontext(cluster)).measure([witness], past or {}, notes.append)
    return cells, stop, witness, notes


def test_every_device_has_one_cell_at_a_time_and_the_row_says_which() -> None:
    cluster = Scripted(TWO)
    cells, stop, witness, notes = measured(cluster)
    assert [one.spec for one in cells] == SPECS
    assert (stop, notes, cluster.busiest) == (None, [], 2)
    where = {spec: seat.host for seat, spec, _ in cluster.sent}
    assert [one.row()["node"] for one in cells] == [where[spec] for spec in SPECS]
    assert {one.row()["node_device"] for one in cells} == {"cpu"}
    assert [list(one.samples) for one in cells] == [list(one.samples) for one in DONE]
    assert sorted(one.spec.k for one in witness.cells) == [1, 2, 3, 4, 5, 6]


def test_a_lost_worker_is_made_good_on_another_node_with_what_it_had_measured() -> None:
    lost = SPECS[0]
    cluster = Scripted(TWO, {lost: [losing, whole]})
    cells, _, _, notes = measured(cluster)
    tries = [(seat.node, past) for seat, spec, past in cluster.sent if spec == lost]
    assert [node for node, _ in tries] == ["a", "b"]
    assert tries[0][1] == {}
    assert list(tries[1][1][lost].samples) == list(DONE[0].samples[:1])
    assert [one.status for one in cells] == ["ok"] * 6
    assert notes == [
        "chain, K = 1, code: its worker on host-a was lost (a storm); measured again elsewhere, 1 of 2",
    ]


def test_a_cell_that_loses_every_worker_ends_with_its_prompts_and_the_others_go_on() -> None:
    cells, _, witness, notes = measured(Scripted(TWO, {SPECS[1]: [losing]}))
    assert [one.status for one in cells] == ["ok", "partial", "ok", "ok", "ok", "ok"]
    assert cells[1].error == f"it lost {TRIES} workers, the last (a storm); continue with --resume"
    assert len(notes) == TRIES - 1
    assert [one.spec for one in witness.cells].count(SPECS[1]) == 1


def test_with_one_node_left_a_cell_is_measured_there_again() -> None:
    cells, *_ = measured(Scripted(TWO[:1], {SPECS[0]: [losing, whole]}))
    assert cells[0].status == "ok"


def test_of_a_continued_run_ended_cells_are_not_sent_and_one_that_begins_anew_has_only_new_samples() -> None:
    past = {SPECS[0]: replace(DONE[0], samples=[sample("of another machine")], status="partial"), SPECS[2]: DONE[2]}
    cluster = Scripted(TWO)
    cells, *_ = measured(cluster, past)
    assert [one.prompt for one in cells[0].samples] == ["p1", "p2"]
    assert SPECS[2] not in [spec for _, spec, _ in cluster.sent]
    assert cells[2] is DONE[2]


def test_an_interrupt_cuts_off_what_is_measured_and_keeps_its_prompts() -> None:
    def interrupted(done: Cell, seat: Seat) -> list[Said]:
        return [*whole(done, seat)[:3], KeyboardInterrupt()]

    cluster = Scripted(TWO, {SPECS[0]: [interrupted]})
    cells, stop, witness, _ = measured(cluster)
    assert isinstance(stop, KeyboardInterrupt)
    assert cluster.cancelled == [1, 2]
    assert [one.status for one in cells] == ["partial", "partial", *["skipped"] * 4]
    assert [len(one.samples) for one in cells[:2]] == [1, 1]
    assert len(witness.cells) == 6


def test_what_a_worker_cannot_load_or_breaks_on_ends_its_cell() -> None:
    unusable, broken = Failure("error", "no such model"), Failure("error", "a bug", "its traceback")
    scripts: dict[RunSpec, list[Any]] = {
        SPECS[0]: [lambda done, seat: [("failed", (unusable,)), Over()]],
        SPECS[1]: [lambda done, seat: [*whole(done, seat)[:3], Over(broken)]],
        SPECS[2]: [lambda done, seat: [Over()]],
    }
    cells, *_ = measured(Scripted(TWO, scripts))
    assert [one.error for one in cells] == [
        *("no such model", "a bug", "its worker ended without an error message"),
        *[""] * 3,
    ]
    assert [one.status for one in cells[:3]] == ["error", "partial", "error"]


def test_where_no_node_is_left_the_run_ends_and_can_be_gone_on_with() -> None:
    cluster = Scripted(list(TWO))

    def last(done: Cell, seat: Seat) -> list[Said]:
        cluster.places = []
        return losing(done, seat)

    cluster.scripts = {spec: [last] for spec in SPECS[:2]}
    cells, stop, *_ = measured(cluster)
    assert (stop, {one.status for one in cells}) == (None, {"partial", "skipped"})
    assert "no node of the cluster is left" in cells[0].error


@pytest.mark.parametrize(("device", "node"), [("auto", "g"), ("cuda", "g"), ("cpu", "a")])
def test_cells_go_to_the_kind_of_device_that_they_ask_for(device: str, node: str) -> None:
    spec = SPECS[0].with_(device=device)
    cluster = Scripted([TWO[0], Seat("g", "host-g", "cuda")])
    cluster.send = lambda seat, spec, past: pytest.fail(seat.node)  # type: ignore[method-assign]
    with pytest.raises(pytest.fail.Exception, match=f"^{node}$"):
        measured(cluster, specs=[spec])


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"tensor_parallel": 2}, "--executor ray gives every cell one GPU: leave --tensor-parallel out"),
        ({"draft_device": "cuda:1"}, "--executor ray gives every cell one GPU: leave --draft-device out"),
        ({"device": "cuda"}, "--device cuda: the cluster offers cpu, and chooses"),
        ({"device": "cuda:1"}, "--device cuda:1: the cluster offers cpu, and chooses"),
    ],
)
def test_a_device_that_no_worker_can_have_is_refused(more: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError, match=line):
        measured(Scripted(TWO), specs=[SPECS[0].with_(**more)])
