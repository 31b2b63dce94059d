"""Linear layers in 4 bits: what weights become, the product that they stand for, and how codes lie in memory."""

import pytest
import torch
from torch import Tensor, nn

from specbench.models.network.packed import Int4Linear, group_tiles, int4_tiles, most_of, rounded, step


def weight(rows: int = 24, columns: int = 96) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(rows, columns) * torch.logspace(-3, 2, rows)[:, None]


def layer(some: Tensor, bias: bool = False) -> nn.Linear:
    found = nn.Linear(some.shape[1], some.shape[0], bias=bias).requires_grad_(False)
    found.weight.data = some
    return found


def test_weights_become_codes_of_4_bits_with_a_scale_for_every_group() -> None:
    some = weight()
    codes, groups, scale = rounded(some)
    assert (codes.shape, groups.shape, scale.shape) == ((24, 96), (24, 3), (24,))
    assert (int(codes.min()), int(codes.max())) == (-8, 7)
    back = codes.float() * groups.repeat_interleave(32, 1) * scale[:, None]
    assert float((back - some).norm() / some.norm()) < 0.09
    coarse = (some.view(24, 3, 32).abs().amax(-1, keepdim=True) / 8).expand(-1, -1, 32).reshape(24, 96)
    plainly = (some / coarse).round().clamp(-8, 7) * coarse
    assert (back - some).square().sum() < 0.95 * (plainly - some).square().sum(), "errors are weighed"


def test_what_codes_can_say_is_kept_as_it_is() -> None:
    torch.manual_seed(0)
    codes, groups = torch.randint(-7, 8, (4, 64)), torch.tensor([[127, -64], [127, 1], [30, 127], [127, 127]])
    codes[:, ::32] = -8
    some = codes * groups.repeat_interleave(32, 1) * 2.0**-9
    found, values, scale = rounded(some)
    assert torch.equal(found.float() * values.repeat_interleave(32, 1) * scale[:, None], some)


def test_rows_and_groups_of_zeros_stay_zeros() -> None:
    some = weight()
    some[3], some[5, :32] = 0, 0
    codes, _, _ = rounded(some)
    assert not codes[3].any()
    assert not codes[5, :32].any()
    assert Int4Linear(layer(some), tiled=False)(torch.randn(2, 96))[:, 3].tolist() == [0, 0]


@pytest.mark.parametrize(("columns", "bias"), [(96, False), (70, True), (1, True)])
def test_it_is_the_product_of_rounded_factors(columns: int, bias: bool) -> None:
    one = layer(weight(columns=columns), bias)
    x = torch.randn(2, 3, columns) * 3
    codes, groups, scale = rounded(one.weight)
    exact = (codes.double() * groups.repeat_interleave(32, 1) * scale.double()[:, None])[:, :columns]
    a = step(x.view(6, columns))
    wanted = (a * (x.view(6, columns) / a).round()).double() @ exact.t()
    wanted = wanted if one.bias is None else wanted + one.bias.double()
    found = Int4Linear(one, tiled=False)(x)
    assert torch.allclose(found.view(6, 24).double(), wanted, rtol=1e-5, atol=1e-4)
    assert Int4Linear(one, tiled=False)(x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("columns", [32, 576, 16640, 28672, 53248])
def test_no_sum_is_beyond_32_bits(columns: int) -> None:
    largest = most_of(columns) * 8 * 127 * columns
    assert largest < 2**31
    assert most_of(columns) == 127 or (most_of(columns) + 1) * 8 * 127 * columns >= 2**31


def test_tiles_hold_eight_columns_of_sixteen_rows_at_a_time_two_to_a_byte() -> None:
    codes = torch.randint(-8, 8, (20, 64), dtype=torch.int8)
    found, groups = int4_tiles(codes).view(2, 8, 16, 4), torch.randint(-127, 128, (20, 2), dtype=torch.int8)
    for row in range(32):
        for column in range(64):
            byte = int(found[row // 16, column // 8, row % 16, column % 4])
            half = byte & 15 if column % 8 < 4 else byte >> 4
            assert half - 8 == (codes[row, column] if row < 20 else 0)
    values = group_tiles(groups).view(2, 2, 16)
    assert torch.equal(values.transpose(1, 2).reshape(32, 2)[:20], groups)


@pytest.mark.parametrize("fault", [float("nan"), float("inf")])
def test_what_is_no_number_stays_none_in_its_own_row(fault: float) -> None:
    x = torch.randn(2, 96)
    x[0, 5] = fault
    found = Int4Linear(layer(weight()), tiled=False)(x)
    assert found[0].isnan().all()
    assert found[1].isfinite().all()
