"""Products of many rows by oneDNN in compiled regions: which ones, and that they give what plain ones do."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from specbench.models.execution.compiled import settings
from specbench.models.execution.onednn import packed
from specbench.models.execution.regions.code import Layout, compiled
from specbench.models.execution.regions.cut import Region, cut
from specbench.models.execution.regions.program import Regional, Regions
from specbench.models.execution.regions.store import Store
from specbench.models.execution.regions.trace import trace
from specbench.models.execution.regions.wide import LARGE, PRODUCT, WIDE, WIDE_LARGE, by_library, rows_for
from tests.support.tiers import NEEDS_COMPILER, never
from tests.support.toys import CPU

pytestmark = pytest.mark.skipif(not torch._C._has_mkldnn, reason="this torch is built without oneDNN")


def block(dtype: torch.dtype = torch.float32) -> Callable[[Tensor], Tensor]:
    """Layers as a decoder has them: with a bias and without, beside their input, and one that is read twice."""
    random = torch.Generator().manual_seed(0)
    first, second, twice = (
        nn.Parameter(torch.randn(shape, generator=random).to(dtype) / 4, False)
        for shape in ((24, 16), (16, 24), (16, 16))
    )
    bias = nn.Parameter(torch.randn(24, generator=random).to(dtype), False)

    def run(x: Tensor) -> Tensor:
        inner = torch.nn.functional.silu(linear(x, first, bias))
        states = x + linear(inner, second)
        return linear(states, twice) @ twice

    return run


def region(rows: int, dtype: torch.dtype = torch.float32) -> Region:
    (found,) = [step for step in cut(trace(block(dtype), inputs(rows, dtype))).steps if isinstance(step, Region)]
    return found


def inputs(rows: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn((1, rows, 16), generator=torch.Generator().manual_seed(rows)).to(dtype)


def test_many_rows_are_multiplied_by_weights_that_nothing_else_reads() -> None:
    one = region(WIDE[torch.float32])
    found = by_library(one.graph, one.weights, one.like)
    assert {tuple(one.weights[number].shape) for number in found} == {(24, 16), (16, 24)}
    assert [node.target for node in one.graph.nodes].count(PRODUCT) == 2
    one.graph.lint()


@pytest.mark.parametrize(("rows", "dtype"), [(11, torch.float32), (6, torch.bfloat16), (64, torch.float64)], ids=str)
def test_few_rows_and_what_the_library_cannot_do_stay_as_they_are(rows: int, dtype: torch.dtype) -> None:
    one = region(rows, dtype)
    before = str(one.graph)
    assert not by_library(one.graph, one.weights, one.like)
    assert str(one.graph) == before


def test_of_a_head_fewer_rows_are_enough() -> None:
    assert rows_for(torch.empty(LARGE // 8, 8, device="meta")) == WIDE_LARGE
    assert rows_for(torch.empty(8, 8)) == WIDE[torch.float32]


def test_a_product_takes_plain_weights_as_well() -> None:
    x, weight, bias = inputs(9), torch.randn(24, 16), torch.randn(24)
    for one in (weight, packed(weight)):
        found = torch.ops.specbench.product(x, one, bias)
        assert torch.allclose(found, linear(x, weight, bias), atol=1e-5)
    assert torch.ops.specbench.product(x.to("meta"), weight.to("meta"), None).shape == (1, 9, 24)


@pytest.mark.slow
@NEEDS_COMPILER
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_compiled_products_are_the_plain_ones(dtype: torch.dtype, tmp_path: Path) -> None:
    function, kept = block(dtype), Store(settings(CPU), tmp_path, True)
    ready = Regional(function, Regions(kept), never)
    for number in (0, 1):
        x = inputs(WIDE[dtype], dtype) + number
        assert torch.allclose(ready(x), function(x), atol=1e-5 if dtype == torch.float32 else 0.2)
    again = Store(settings(CPU), tmp_path, True)
    x = inputs(WIDE[dtype], dtype)
    assert torch.allclose(Regional(function, Regions(again), never)(x), ready(x))
    assert (kept.compiled, again.compiled) == (1, 0)
    code = compiled(region(WIDE[dtype], dtype), settings(CPU), True)
    assert sorted(one.weights for one in code.constants.values() if one.packed) == [(0,), (1,)]
    assert Layout((0,), packed=True).made([torch.randn(24, 16)]).is_mkldnn
    assert not any(one.packed for one in compiled(region(WIDE[dtype], dtype), settings(CPU)).constants.values())
