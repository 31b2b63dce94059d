"""Linear layers in int8: the product that they stand for, rows that depend on nothing but themselves, and faults."""

import pytest
import torch
from torch import Tensor, nn

from specbench.models.network.packed import Int8Linear, int8_tiles, step, sums


def layer(bias: bool = False) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(64, 96, bias=bias)


def tokens(*shape: int) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(*shape, 64) * 3


def plainly(x: Tensor, one: nn.Linear) -> Tensor:
    """The same in float64, number by number: both factors rounded to codes, and multiplied."""
    found = torch.zeros(*x.shape[:-1], one.out_features, dtype=torch.float64)
    weight = one.weight.detach()
    for row, out in zip(x.reshape(-1, 64), found.view(-1, one.out_features), strict=True):
        for index, other in enumerate(weight):
            a, b = step(row[None]).item(), step(other[None]).item()
            out[index] = a * b * ((row / a).round().double() * (other / b).round().double()).sum()
    return found if one.bias is None else found + one.bias.detach().double()


@pytest.mark.parametrize("bias", [False, True])
def test_it_is_the_product_of_rounded_factors(bias: bool) -> None:
    one, x = layer(bias), tokens(2, 3)
    assert torch.allclose(Int8Linear(one, tiled=False)(x).double(), plainly(x, one), rtol=1e-5, atol=1e-5)
    assert torch.allclose(Int8Linear(one, tiled=False)(x), one(x), atol=0.1 * float(one(x).detach().std()))


@pytest.mark.processor
def test_sums_are_whole_also_where_a_processor_adds_products_of_bytes_in_16_bits() -> None:
    torch.manual_seed(0)
    large, some = torch.full((3, 320), 127, dtype=torch.int8), torch.randint(-127, 128, (5, 320), dtype=torch.int8)
    for codes in (large, -large, some):
        assert sums(codes, large).tolist() == (codes.long() @ large.long().t()).tolist()
    assert sums(large[:, :1], some[:, :1].contiguous()).tolist() == (127 * some[:, 0].long()).repeat(3, 1).tolist()


def test_tiles_hold_four_columns_of_sixteen_rows_at_a_time() -> None:
    codes = torch.randint(-127, 128, (20, 10), dtype=torch.int8)
    found = int8_tiles(codes).view(2, 3, 16, 4).to(torch.int16) - 128
    for row in range(32):
        for column in range(12):
            wanted = codes[row, column] if row < 20 and column < 10 else 0
            assert found[row // 16, column // 4, row % 16, column % 4] == wanted


def test_a_row_is_the_same_bit_for_bit_whatever_else_is_in_the_pass() -> None:
    one, x = Int8Linear(layer(), tiled=False), tokens(17)
    whole = one(x)
    assert all(torch.equal(whole[i : i + 1], one(x[i : i + 1])) for i in range(17))
    assert torch.equal(whole[3:8], one(x[3:8]))


def test_the_largest_numbers_do_not_overflow_and_zeros_stay_zeros() -> None:
    one = nn.Linear(64, 2, bias=False)
    one.weight.data = torch.stack([torch.full((64,), 1e4), torch.zeros(64)])
    found = Int8Linear(one, tiled=False)(torch.stack([torch.full((64,), -3e4), torch.zeros(64)]))
    assert found[:, 1].tolist() == [0, 0]
    assert found[1].tolist() == [0, 0]
    assert found[0, 0].item() == pytest.approx(-64 * 3e8, rel=1e-5)


@pytest.mark.parametrize("fault", [float("nan"), float("inf")])
def test_what_is_no_number_stays_none_in_its_own_row(fault: float) -> None:
    one, x = Int8Linear(layer(), tiled=False), tokens(2)
    x[0, 5] = fault
    found = one(x)
    assert not found[0].isfinite().any()
    assert found[1].isfinite().all()


def test_results_have_the_type_of_what_comes_in() -> None:
    assert Int8Linear(layer(), tiled=False)(tokens(2).bfloat16()).dtype == torch.bfloat16
