"""Our kernel for products of few rows: inductor takes it, and it gives what plain products give."""

import copy
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from specbench.models.execution import compiled as execution
from specbench.models.execution.compiled import by_few_rows, fast_bfloat16, settings
from specbench.models.execution.regions.code import compiled
from specbench.models.execution.regions.cut import Region, cut
from specbench.models.execution.regions.program import Regional, Regions
from specbench.models.execution.regions.store import Store
from specbench.models.execution.regions.trace import trace
from tests.support.tiers import NEEDS_COMPILER, never
from tests.support.toys import CPU

DTYPES = [torch.float32, torch.bfloat16]
CLOSE = {torch.float32: 1e-5, torch.bfloat16: 0.1}
COUNTS = (1, 2, 5, 8, 9, 16, 17, 27)
HERE = pytest.mark.skipif(not by_few_rows(), reason="this processor has inductor's own kernels, see by_few_rows")


@pytest.fixture
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """An AMD EPYC that multiplies bfloat16."""
    monkeypatch.setattr(execution, "capabilities", lambda: {"avx512_vnni": True, "avx512_bf16": True})
    monkeypatch.setattr(execution, "maker", lambda: "vendor_id : AuthenticAMD")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")


@pytest.mark.usefixtures("_wide")
def test_it_is_used_where_it_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert by_few_rows()
    assert fast_bfloat16(CPU)
    with monkeypatch.context() as other:
        other.setattr(execution, "maker", lambda: "vendor_id : GenuineIntel")
        assert not by_few_rows()
        assert not fast_bfloat16(CPU)
    with monkeypatch.context() as other:
        other.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
        assert not by_few_rows()
    monkeypatch.setattr(execution, "capabilities", lambda: {"avx512_vnni": True})
    assert by_few_rows()
    assert not fast_bfloat16(CPU)


class Layers(nn.Module):
    """Products of every kind of width: a multiple of 48, of 32 and of 16, and one of none; with a bias and without."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        widths = (64, 96, 32, 80, 50, 64)
        self.parts = nn.ModuleList(
            nn.Linear(before, after, bias=number % 2 == 0, dtype=dtype)
            for number, (before, after) in enumerate(pairwise(widths))
        )
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = torch.nn.functional.silu(part(x)) + 0.5
        return x


def inputs(rows: int, dtype: torch.dtype, number: int = 0) -> Tensor:
    return torch.randn((1, rows, 64), generator=torch.Generator().manual_seed(number)).to(dtype)


def region(rows: int, dtype: torch.dtype) -> Region:
    (found,) = [step for step in cut(trace(Layers(dtype), inputs(rows, dtype))).steps if isinstance(step, Region)]
    return found


@pytest.mark.slow
@HERE
@NEEDS_COMPILER
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_inductor_takes_it_for_any_number_of_rows_with_one_layout_of_weights(dtype: torch.dtype) -> None:
    told = "_mm512_dpbf16_ps" if dtype == torch.bfloat16 else "_mm512_fmadd_ps"
    layouts = []
    for rows in (1, 5, 17):
        code = compiled(region(rows, dtype), settings(CPU))
        assert code.source.count(f"{told}(") == len(Layers(dtype).parts)
        layouts.append(list(code.constants.values()))
    assert layouts[0] == layouts[1] == layouts[2]
    assert all(one.block in (48, 32, 16) and one.pairs == (2 if dtype == torch.bfloat16 else 1) for one in layouts[0])


@pytest.mark.slow
@HERE
@NEEDS_COMPILER
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_products_are_the_plain_ones_and_a_row_is_the_same_whatever_is_beside_it(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    function, store, most = Layers(dtype), Store(settings(CPU), tmp_path), inputs(max(COUNTS), dtype)
    wanted, whole = copy.deepcopy(function).double()(most.double()), None
    for rows in sorted(COUNTS, reverse=True):
        ready, x = Regional(function, Regions(store), never), most[:, :rows].contiguous()
        ready(x)  # records
        made = ready(x)
        assert torch.allclose(made.double(), wanted[:, :rows], atol=CLOSE[dtype]), rows
        whole = made if whole is None else whole
        assert torch.equal(made, whole[:, :rows]), rows


class Learned(nn.Module):
    """A product with what is no constant, in the order of rows, as a batch of them."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.bmm(x * 2, y * 3)


@pytest.mark.slow
@HERE
@NEEDS_COMPILER
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_matrices_that_are_made_in_the_round_are_multiplied_as_well(dtype: torch.dtype, tmp_path: Path) -> None:
    x, y = (torch.randn(shape, dtype=dtype) for shape in ((2, 5, 64), (2, 64, 96)))
    ready = Regional(Learned(), Regions(Store(settings(CPU), tmp_path)), never)
    ready(x, y)
    wanted = torch.bmm(x.double() * 2, y.double() * 3)
    assert torch.allclose(ready(x, y).double(), wanted, atol=1e-3 if dtype == torch.float32 else 2, rtol=0.02)
