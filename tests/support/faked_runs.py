"""The runner over a backend that only remembers: what is decoded, in which order, and what is done when it fails."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specbench.measure.runner import measure
from specbench.results.cells import Cell
from tests.support.measured import Call, FakeBackend, Job, Witness, no_scores

Answer = Callable[[Call], Sequence[int]]


def flat_scores(ids: Sequence[int], start: int, block: int) -> Tensor:
    return torch.zeros(len(ids) - start, 100)


def run(
    *jobs: Job, answer: Answer | None = None, scores: object = no_scores
) -> tuple[FakeBackend, Witness, list[Cell]]:
    backend, witness = FakeBackend(answer, scores) if answer else FakeBackend(scores=scores), Witness()  # type: ignore[arg-type]
    cells, stopped = measure(jobs, backend, [witness])
    assert stopped is None
    assert {c.spec: c for c in cells} == {c.spec: c for c in witness.cells}, "in the order in which they end"
    return backend, witness, cells


def failing(error: BaseException, at: int, once: bool = True) -> Answer:
    """Answers until call number `at`, which fails, and so do all after it unless it is `once`."""
    seen: list[Call] = []

    def answer(call: Call) -> Sequence[int]:
        seen.append(call)
        if len(seen) == at or (len(seen) > at and not once):
            raise error
        return (1, 2, 3)

    return answer


def failing_arm(arm: str, error: BaseException, prompt: int | None = None) -> Answer:
    """Answers but where one arm is asked: with that prompt, or at all."""

    def answer(call: Call) -> Sequence[int]:
        if call.arm == arm and prompt in (None, call.prompt[0]):
            raise error
        return (1, 2, 3)

    return answer
