"""Uniforms come by the block, and nobody can tell: by hand, over rows that begin anew, and counted in kernels."""

from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.decoding.randomness import AHEAD, SeededUniforms, Stream, generator
from tests.support.meta import Device
from tests.support.toys import CPU


def test_a_row_that_begins_anew_draws_as_it_would_alone() -> None:
    """Rows begin anew at different times, so what is left to them is not the same; no size is a part of a block."""
    together, alone = SeededUniforms([7, 8, 9], CPU), [SeededUniforms([seed], CPU) for seed in (7, 8, 9)]
    for number, size in enumerate([5, 100, 300, 1, 150, 700, 40, 256, 3] * 2):
        if number % 4 == 3:
            row, seed = number % 3, 20 + number
            together.reseed(row, seed)
            alone[row] = SeededUniforms([seed], CPU)
        drawn = together((3, size), Stream.DRAFT)
        for row, one in enumerate(alone):
            assert torch.equal(drawn[row], one((1, size), Stream.DRAFT)[0])


def test_on_a_cpu_the_numbers_are_those_of_one_long_draw() -> None:
    source, size = SeededUniforms([7], CPU), 3 * AHEAD + 5
    found = torch.cat([source((1, part), Stream.ACCEPT)[0] for part in (1, 2, AHEAD, size - AHEAD - 3)])
    alone = generator(7, Stream.ACCEPT, CPU)
    assert torch.equal(found, torch.rand(size, generator=alone, dtype=torch.float64))


def test_a_generator_is_asked_for_as_many_numbers_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the numbers depend on how many are drawn at a time: not even that may be a matter of who asks."""
    sizes, rand = list[int](), torch.rand

    def noted(size: int, **how: Any) -> Tensor:
        sizes.append(size)
        return rand(size, **how)

    monkeypatch.setattr(torch, "rand", noted)
    one = SeededUniforms([1, 2], CPU)
    for size in (1, 3, AHEAD, AHEAD + 1, 5 * AHEAD):
        one((2, size), Stream.EMIT)
    one.reseed(0, 3)
    one((2, 7), Stream.EMIT)
    assert set(sizes) == {AHEAD}


@pytest.mark.parametrize("rows", [1, 8])
def test_hardly_a_round_asks_the_device_for_uniforms(rows: int) -> None:
    """100 rounds with four drafts, six draws each: 0.2 kernels a round, and 1.25 of eight rows. One by one they were 6
    and 54: some numbers for every row, and one more to lay them side by side."""
    device, source = Device(), SeededUniforms(range(rows), CPU)
    with device:
        for _ in range(100):
            for _ in range(4):
                source((rows,), Stream.DRAFT)
            source((rows, 4), Stream.ACCEPT)
            source((rows,), Stream.EMIT)
    assert device.kernels == (3 * rows + 1) * 5  # five times one of the three streams has used up its block
