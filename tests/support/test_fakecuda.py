"""What the simulated GPU refuses, counts and puts back."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from tests.support.fakecuda import Machine, SimulatedError, missing, simulated

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
GPU = torch.device("cuda:0")


@pytest.fixture
def machine() -> Iterator[Machine]:
    with simulated(2) as found:
        yield found


@pytest.fixture
def some(machine: Machine) -> Tensor:
    return torch.arange(6, device=GPU, dtype=torch.float32)


def captured(work: Callable[[], object]) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
        graph.capture_begin()
        try:
            work()
        finally:
            graph.capture_end()
    return graph


WAITS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda some: some[0].item(), "int": lambda some: int(some[0]), "if": lambda some: bool(some[0] > 0),
    "tolist": lambda some: some.tolist(), "cpu": lambda some: some.cpu(), "nonzero": lambda some: some.nonzero(),
    "mask": lambda some: some[some > 2], "list as index": lambda some: some[[0, 1]], "repr": repr,
    "sent": lambda some: torch.tensor([1.0, 2.0], device=GPU), "moved": lambda some: torch.ones(2).to(GPU),
    "written from the CPU": lambda some: some.copy_(torch.ones(6)), "equal": lambda some: some.equal(some),
    "to the CPU": lambda some: torch.empty(6).copy_(some), "synchronize": lambda some: torch.cuda.synchronize(),
    "to pageable memory": lambda some: torch.empty(6).copy_(some, non_blocking=True),
}  # fmt: skip
FREE: dict[str, Callable[[Tensor], object]] = {
    "arithmetic": lambda some: (some * 2 + 1).softmax(-1), "where": lambda some: torch.where(some > 2, some, 0),
    "slice": lambda some: some[1:3], "written number": lambda some: some[1:].fill_(3.0),
    "gather": lambda some: some[some.long().clamp_max(3)], "other GPU": lambda some: some.to("cuda:1"),
    "pinned": lambda some: torch.ones(6).pin_memory().to(GPU, non_blocking=True),
}  # fmt: skip


@pytest.mark.parametrize("name", WAITS)
def test_what_waits_is_counted_and_refused_in_a_capture(name: str, machine: Machine, some: Tensor) -> None:
    before = sum(machine.waits.values())
    WAITS[name](some)
    assert sum(machine.waits.values()) == before + 1
    with pytest.raises(SimulatedError, match="failed due to a previous error during capture") as failed:
        captured(lambda: WAITS[name](some))
    assert "operation not permitted when stream is capturing" in str(failed.value.__context__)


@pytest.mark.parametrize("name", FREE)
def test_what_waits_for_nothing(name: str, machine: Machine, some: Tensor) -> None:
    machine.waits.clear()
    FREE[name](some)
    assert not machine.waits
    assert not machine.scalars


@pytest.mark.usefixtures("machine")
def test_tensors_of_two_devices_are_refused(some: Tensor) -> None:
    with pytest.raises(SimulatedError, match="found cpu, cuda:0"):
        some + torch.ones(6)
    with pytest.raises(SimulatedError, match="found cuda:0, cuda:1"):
        some + some.to("cuda:1")


def test_a_number_of_the_cpu_is_taken_and_counted(machine: Machine, some: Tensor) -> None:
    assert (some + torch.tensor(1.0)).tolist() == [1, 2, 3, 4, 5, 6]
    assert sum(machine.scalars.values()) == 1


def test_a_graph_does_again_what_was_captured_on_the_same_memory(machine: Machine, some: Tensor) -> None:
    made: list[Tensor] = []
    graph = captured(lambda: made.append((some * 2).cumsum(0)[1:]))
    machine.launches.clear()
    some.fill_(1.0)
    graph.replay()
    assert made[0].tolist() == [4, 6, 8, 10, 12]
    assert machine.launches == {"fill_": 1, "mul": 1, "cumsum": 1}


@pytest.mark.usefixtures("machine")
def test_a_graph_whose_memory_was_freed_or_has_moved_is_refused(some: Tensor) -> None:
    gone = [torch.ones(6, device=GPU)]
    graph = captured(lambda: some.add_(gone[0]))
    graph.replay()
    gone.clear()
    with pytest.raises(SimulatedError, match="an illegal memory access was encountered: it was freed"):
        graph.replay()
    moving = torch.ones(6, device=GPU)
    graph = captured(lambda: some.add_(moving))
    moving.untyped_storage().resize_(0)
    moving.untyped_storage().resize_(1 << 20)
    with pytest.raises(SimulatedError, match="it has moved"):
        graph.replay()


@pytest.mark.usefixtures("machine")
def test_a_copy_to_pinned_memory_arrives_when_the_host_has_waited(some: Tensor) -> None:
    host, event = torch.zeros(6, pin_memory=True), torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    host.copy_(some, non_blocking=True)
    event.synchronize()
    assert host.sum() == 0
    event.record()
    event.synchronize()
    assert host.tolist() == some.tolist()


@pytest.mark.usefixtures("machine")
def test_events_are_read_when_they_are_over() -> None:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    with pytest.raises(ValueError, match="must be recorded"):
        first.elapsed_time(last)
    first.record()
    last.record()
    with pytest.raises(SimulatedError, match="must be completed"):
        first.elapsed_time(last)
    last.synchronize()
    assert first.elapsed_time(last) >= 0


def test_nothing_of_it_is_left() -> None:
    names = [name for name in dir(torch.cuda) if not name.startswith("__")]
    before = [getattr(torch.cuda, name) for name in names]
    others = (
        torch.Generator,
        torch.inference_mode,
        torch.nn.functional.scaled_dot_product_attention,
        torch.version.cuda,
    )
    with simulated():
        torch.ones(3, device=GPU)
        assert torch.cuda.is_available()
    assert [getattr(torch.cuda, name) for name in names] == before
    now = (torch.Generator, torch.inference_mode, torch.nn.functional.scaled_dot_product_attention, torch.version.cuda)
    assert now == others
    with pytest.raises((RuntimeError, AssertionError)):
        torch.ones(3, device=GPU)
    assert type(torch.ones(3)) is Tensor
    assert not torch.ones(3).is_pinned()
