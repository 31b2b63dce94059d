"""Functions that are captured once and replayed, on a device whose captures only count."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from specbench.models.execution.graphs import Repeated


@dataclass
class Counting:
    """Stands for `Shared`: a capture calls the function, and a replay calls it again."""

    captures: int = 0
    replays: int = 0

    def warm(self, work: Callable[[], object]) -> None:
        work()

    @contextmanager
    def capturing(self) -> Iterator["Counting"]:
        self.captures += 1
        yield self

    def replay(self) -> None:
        self.replays += 1


@pytest.mark.parametrize("inputs", [(), (torch.ones(2),)], ids=["of nothing", "of a tensor"])
def test_a_function_is_captured_by_its_first_call_alone(inputs: tuple[torch.Tensor, ...]) -> None:
    shared: Any = Counting()
    repeated = Repeated(lambda *given: torch.ones(1), shared)
    for _ in range(3):
        assert repeated(*inputs).item() == 1
    assert (shared.captures, shared.replays) == (1, 3)
