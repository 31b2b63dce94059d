"""Rounds that are broken as rounds on a GPU can be: the simulated device must see every one of them.

Each is one change in the real code. On a CPU all of them decode the same tokens as before.
"""

from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.decoding import loop, timing, tokens
from specbench.decoding.loop import commit
from specbench.decoding.rounds import Whole
from specbench.decoding.tokens import constant
from specbench.errors import SpecbenchError
from specbench.models.execution import graphs
from specbench.models.execution.graphs import Captured
from tests.cuda.support import opened, said, spec_of, traces
from tests.cuda.test_simulated import GPU, SOME, check, known_on_cpu
from tests.support.fakecuda import Machine
from tests.support.tinypair import Pair

BEGIN = Whole.begin


def reading(context: Any, *rest: Any) -> Any:
    context.pos.max().item()
    return commit(context, *rest)


def of_the_cpu(values: tuple[float, ...], device: torch.device, dtype: torch.dtype = torch.long) -> Tensor:
    return constant(values, torch.device("cpu"), dtype)


def sending(values: tuple[float, ...], device: torch.device, dtype: torch.dtype = torch.long) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device)


def with_a_number_of_the_cpu(context: Any, *rest: Any) -> Any:
    context.pos += torch.tensor(0)
    return commit(context, *rest)


def beginning_elsewhere(self: Whole, context: Any) -> Any:
    self._context = None
    return BEGIN(self, context)


def drawing_elsewhere(self: Whole, rng: Any) -> None:
    for stream, kept in self._uniforms.items():
        self._uniforms[stream] = rng.uniforms(tuple(kept.shape), stream).clone()


def read_too_early(self: Captured) -> Tensor:
    self._graph.replay()
    self._read.record()
    self._host.copy_(self._seen, non_blocking=True)
    return self._counts.clone()


def unawaited(self: Captured, idle: bool = False) -> Tensor:
    self.clock.replayed(self._laps, idle)
    return self._host


def inside(self: timing.CudaClock, phase: str, after: Tensor | None = None) -> None:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    (self._captured if torch.cuda.is_current_stream_capturing() else self._marks).append((phase, event))


OTHER = r"assert \["  # other tokens, as the graph uses what was there when it was captured
STALE = rf"{OTHER}|NaN or infinite logits"  # of memory that nothing was copied to yet
CAPTURING, ILLEGAL = "operation not permitted when stream is capturing", "an illegal memory access"
# name: (owner, attribute, what takes its place, tier, what the device says of it)
MUTANTS: dict[str, tuple[Any, str, Any, str, str]] = {
    "a value is read in a capture": (loop, "commit", reading, "graph", rf"{CAPTURING} .*_local_scalar_dense"),
    "a value is read in a round": (loop, "commit", reading, "eager", "advance"),
    "a constant of the CPU": (loop, "constant", of_the_cpu, "eager", "found cpu, cuda:0"),
    "a constant that is sent in every round": (loop, "constant", sending, "graph", f"{CAPTURING} .*copy to the device"),
    "a number of the CPU": (loop, "commit", with_a_number_of_the_cpu, "eager", "add_"),
    "a context that moves": (Whole, "begin", beginning_elsewhere, "graph", OTHER),
    "draws that move": (Whole, "draw", drawing_elsewhere, "graph", f"{ILLEGAL} .*was freed"),
    "an event before the copy that it is for": (Captured, "launch", read_too_early, "graph", STALE),
    "a copy that nobody waits for": (Captured, "read", unawaited, "graph", "must be completed"),
    "an event of the capture alone": (timing.CudaClock, "lap", inside, "graph", "last recorded in a capturing stream"),
}  # fmt: skip
QUICK = (
    "a value is read in a capture",
    "a constant of the CPU",
    "a context that moves",
    "an event before the copy that it is for",
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in MUTANTS]
)
def test_a_broken_round_is_seen(name: str, pair: Pair, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, wrong, tier, words = MUTANTS[name]
    known_on_cpu(pair, "chain")  # by rounds that are whole
    monkeypatch.setattr(graphs, "WARM", 1)
    monkeypatch.setattr(owner, attribute, wrong)
    with pytest.raises((AssertionError, SpecbenchError, RuntimeError), match=words):
        check(pair, machine, "chain", tier)


@pytest.mark.slow
def test_constants_of_a_graph_outlive_others(pair: Pair, machine: Machine) -> None:
    """A run of many methods makes more constants than are kept; those that a graph reads stay where they are."""
    spec = spec_of(pair, GPU, "chain", "graph")
    with opened(spec) as native:
        before = said(traces(native, spec, SOME))
        tokens.kept.cache_clear()
        assert said(traces(native, spec, SOME)) == before
