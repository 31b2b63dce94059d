"""Products of codes: our operators give what torch's give, bit for bit, with and without instructions for bytes."""

import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from specbench.models.execution import int8_operators
from specbench.models.execution.compiled import settings
from specbench.models.execution.int8_operators import MANY, ONE, PRODUCT, joined
from specbench.models.execution.region_code import Regional, Regions, Store, compiled
from specbench.models.execution.regions import cut, trace
from specbench.models.network.packed import Int4Linear, Int8Linear
from tests.support.tiers import NEEDS_COMPILER, never
from tests.support.toys import CPU

KINDS = (Int8Linear, Int4Linear)
COLUMNS, HEIGHTS, COUNTS = (1, 5, 31, 32, 33, 64, 100, 129, 320), (1, 15, 16, 17, 40), (1, 2, 3, 5, 8, 9, 17)
pytestmark = [pytest.mark.slow, NEEDS_COMPILER]


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    int8_operators.missing.cache_clear()
    assert not int8_operators.missing()


def layers() -> Iterator[nn.Linear]:
    """Of all widths and heights, one in two with a bias; with rows of zeros, and of one large number."""
    torch.manual_seed(0)
    for number, (columns, height) in enumerate(product(COLUMNS, HEIGHTS)):
        one = nn.Linear(columns, height, bias=number % 2 == 0).requires_grad_(False)
        one.weight[0] = 0
        one.weight[-1, -1] = 50
        yield one


def rows(count: int, columns: int) -> Tensor:
    """Numbers of many sizes; one row of zeros, one with what is none."""
    x = torch.randn(count, columns) * torch.logspace(-30, 30, count)[:, None]
    x[count // 2] = 0
    x[count // 3, columns // 2] = torch.tensor([torch.nan, torch.inf, 3.0])[count % 3]
    return x


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_torchs_bit_for_bit(kind: type[Int8Linear | Int4Linear]) -> None:
    for layer in layers():
        ours, theirs = kind(layer, tiled=True), kind(layer, tiled=False)
        for count in COUNTS:
            x = rows(count, layer.in_features)
            for given in (x, x.bfloat16(), x.double()[None], x.repeat(1, 2)[:, ::2]):
                found, wanted = ours(given), theirs(given)
                assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
                assert torch.equal(found.isnan(), wanted.isnan())
                assert torch.equal(found.nan_to_num(), wanted.nan_to_num()), (layer, count)


PLAINLY = """
import torch
from torch import nn
from specbench.models.execution import int8_operators
int8_operators.missing = lambda: ""
torch.ops.load_library(str(int8_operators.built("-DPLAIN")))
from specbench.models.network.packed import Int4Linear, Int8Linear
for kind in (Int8Linear, Int4Linear):
    for columns, height, count in ((33, 17, 1), (100, 40, 9), (129, 5, 3)):
        layer, x = nn.Linear(columns, height), torch.randn(count, columns)
        assert torch.equal(kind(layer, tiled=True)(x), kind(layer, tiled=False)(x)), (kind, columns)
print("equal")
"""


def test_they_are_the_same_where_the_processor_has_no_instructions_for_bytes() -> None:
    done = subprocess.run([sys.executable, "-c", PLAINLY], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("equal\n", 0), done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_the_same_whatever_else_is_in_the_pass(kind: type[Int8Linear | Int4Linear]) -> None:
    torch.manual_seed(0)
    one, x = kind(nn.Linear(96, 33), tiled=True), torch.randn(21, 96)
    whole = one(x)
    assert all(torch.equal(whole[i : i + 1], one(x[i : i + 1])) for i in range(21))
    assert torch.equal(whole[4:17], one(x[4:17]))


class Block(nn.Module):
    """Three layers that read one tensor, and two that read another, which is written to between them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.some = nn.ModuleList(Int8Linear(nn.Linear(32, height), tiled=True) for height in (48, 16, 5))
        self.others = nn.ModuleList(Int4Linear(nn.Linear(32, 8), tiled=True) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y = x * 3
        first = self.others[0](y) + self.others[1](y)
        y.mul_(2)
        return torch.cat([layer(x) for layer in self.some] + [first, self.others[2](y)], -1)


def test_layers_that_read_the_same_tensor_are_one_call() -> None:
    block, x = Block().requires_grad_(False), torch.randn(3, 32)
    (region,) = cut(trace(block, x)).steps
    assert not isinstance(region, str)
    before, after = (
        [node.target for node in graph.nodes if node.target in (ONE, MANY)]
        for graph in (region.graph, joined(region.graph, ()))
    )
    assert (before, after) == ([ONE] * 6, [MANY, MANY, ONE])


class Plain(nn.Module):
    """The same with weights that are not quantised; two of the layers read a view of the tensor."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.some = nn.ModuleList(nn.Linear(32, height, bias=False) for height in (48, 16, 5))
        self.others = nn.ModuleList(nn.Linear(32, 8, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        y = x * 3
        view = y[None]
        first = self.others[0](view) + self.others[1](view)
        y.mul_(2)
        return torch.cat([layer(x) for layer in self.some] + [first[0], self.others[2](y)], -1)


def test_products_of_the_same_tensor_are_one_by_all_weights() -> None:
    block, x = Plain().requires_grad_(False), torch.randn(3, 32)
    (region,) = cut(trace(block, x)).steps
    assert not isinstance(region, str)
    graph = joined(region.graph, [len(weight) for weight in region.weights])
    assert [sum(node.target is PRODUCT for node in one.nodes) for one in (region.graph, graph)] == [6, 3]
    weights = {f"w{number}": nn.Parameter(weight, False) for number, weight in enumerate(region.weights)}
    (found,) = GraphModule(weights, graph)(x)
    assert torch.allclose(found, block(x), atol=1e-5)


class Parallel(nn.Module):
    """Two layers that read a tensor, one that reads what they give, and two that read the first tensor again."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(32, 32, bias=False) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        first, second, third, *rest = self.layers
        return third(first(x) + second(x)) + sum(layer(x) for layer in rest)  # type: ignore[no-any-return]


def test_weights_that_do_not_follow_each_other_are_other_products() -> None:
    block, x = Parallel().requires_grad_(False), torch.randn(3, 32)
    (region,) = cut(trace(block, x)).steps
    assert not isinstance(region, str)
    graph = joined(region.graph, [len(weight) for weight in region.weights])
    assert sum(node.target is PRODUCT for node in graph.nodes) == 3
    layouts = compiled(region, settings(CPU)).constants.values()
    assert sorted(one.weights for one in layouts) == [(0, 1), (2,), (3, 4)]


def test_compiled_rounds_give_what_eager_ones_give() -> None:
    block, x = Block().requires_grad_(False), torch.randn(3, 32)
    wanted = block(x)
    compiled = Regional(block, Regions(Store(settings(CPU))), never)
    compiled(x)
    assert torch.equal(compiled(x), wanted)


def test_machine_code_is_compiled_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = int8_operators.built()
    monkeypatch.setattr(int8_operators.subprocess, "run", lambda *_, **__: never(None))
    assert int8_operators.built() == file
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path))
    with pytest.raises(AssertionError):
        int8_operators.built()


def test_machine_code_that_others_may_have_written_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    file = int8_operators.built()
    mode = file.stat().st_mode
    monkeypatch.setattr(int8_operators.subprocess, "run", lambda *_, **__: never(None))
    file.chmod(0o777)
    try:
        with pytest.raises(PermissionError, match="can be written by other users"):
            int8_operators.load(file)
        with pytest.raises(AssertionError):
            int8_operators.built()
    finally:
        file.chmod(mode)


def test_why_there_are_none_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path))
    broken = tmp_path / "broken.cpp"
    broken.write_text("int here is no program")
    monkeypatch.setattr(int8_operators, "SOURCE", broken)
    int8_operators.missing.cache_clear()
    try:
        assert int8_operators.missing().startswith("products of codes were not compiled: ")
    finally:
        int8_operators.missing.cache_clear()
