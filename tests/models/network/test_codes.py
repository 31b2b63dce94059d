"""Linear layers of codes in int8 and in 4 bits: what weights become, the product that they stand for, and faults."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from specbench.models.checkpoints.quantise import KERNELS
from specbench.models.network.packed import (
    Int4Linear,
    Int8Linear,
    adds_bytes,
    gpu_sums,
    group_tiles,
    int4_tiles,
    int8_tiles,
    most_of,
    rounded,
    step,
    sums,
)

kinds = pytest.mark.parametrize("kind", [Int8Linear, Int4Linear])


def weight(rows: int = 24, columns: int = 96) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(rows, columns) * torch.logspace(-3, 2, rows)[:, None]


def layer(some: Tensor, bias: bool = False) -> nn.Linear:
    found = nn.Linear(some.shape[1], some.shape[0], bias=bias).requires_grad_(False)
    found.weight.data = some
    return found


# --- what weights become ----------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("columns", [32, 576, 16640, 28672, 53248])
def test_no_sum_is_beyond_32_bits(columns: int) -> None:
    assert most_of(columns) * 8 * 127 * columns < 2**31
    assert most_of(columns) == 127 or (most_of(columns) + 1) * 8 * 127 * columns >= 2**31


def test_tiles_hold_four_or_eight_columns_of_sixteen_rows_at_a_time() -> None:
    codes = torch.randint(-8, 8, (20, 64), dtype=torch.int8)
    eights = int8_tiles(codes[:, :58]).view(2, 15, 16, 4).to(torch.int16) - 128
    fours = int4_tiles(codes).view(2, 8, 16, 4)  # two to a byte
    for row, column in ((row, column) for row in range(32) for column in range(64)):
        wanted = codes[row, column] if row < 20 else 0
        byte = int(fours[row // 16, column // 8, row % 16, column % 4])
        assert (byte & 15 if column % 8 < 4 else byte >> 4) - 8 == wanted
        if column < 60:
            assert eights[row // 16, column // 4, row % 16, column % 4] == (wanted if column < 58 else 0)
    groups = torch.randint(-127, 128, (20, 2), dtype=torch.int8)
    assert torch.equal(group_tiles(groups).view(2, 2, 16).transpose(1, 2).reshape(32, 2)[:20], groups)


# --- products ---------------------------------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize(("columns", "bias"), [(96, False), (70, True), (1, True)])
def test_it_is_the_product_of_rounded_factors(kind: type[Int8Linear | Int4Linear], columns: int, bias: bool) -> None:
    one, x = layer(weight(columns=columns), bias), torch.randn(2, 3, columns) * 3
    if kind is Int4Linear:
        codes, groups, scale = rounded(one.weight)
        exact = (codes.double() * groups.repeat_interleave(32, 1) * scale.double()[:, None])[:, :columns]
    else:
        b = step(one.weight)
        exact = b.double() * (one.weight / b).round().double()
    a = step(x.view(6, columns))
    wanted = (a * (x.view(6, columns) / a).round()).double() @ exact.t()
    wanted = wanted if one.bias is None else wanted + one.bias.double()
    assert torch.allclose(kind(one, tiled=False)(x).view(6, 24).double(), wanted, rtol=1e-5, atol=1e-4)
    assert kind(one, tiled=False)(x.bfloat16()).dtype == torch.bfloat16


def test_in_int8_it_is_nearly_the_layer_itself() -> None:
    torch.manual_seed(0)
    one, x = nn.Linear(64, 96), torch.randn(2, 3, 64) * 3
    assert torch.allclose(Int8Linear(one, tiled=False)(x), one(x), atol=0.1 * float(one(x).detach().std()))


@pytest.mark.processor
def test_sums_are_whole_also_where_a_processor_adds_products_of_bytes_in_16_bits() -> None:
    torch.manual_seed(0)
    large, some = torch.full((3, 320), 127, dtype=torch.int8), torch.randint(-127, 128, (5, 320), dtype=torch.int8)
    for codes in (large, -large, some):
        assert sums(codes, large).tolist() == (codes.long() @ large.long().t()).tolist()
    assert sums(large[:, :1], some[:, :1].contiguous()).tolist() == (127 * some[:, 0].long()).repeat(3, 1).tolist()


@pytest.mark.processor
@pytest.mark.skipif(not adds_bytes(), reason="torch's product of bytes is right where a processor has VNNI")
@pytest.mark.parametrize("rows", [1, 5, 16, 17, 32, 33])
@pytest.mark.parametrize(("columns", "out"), [(5, 7), (64, 24), (101, 96)])
def test_the_product_of_a_gpu_is_the_same_on_padded_codes(rows: int, columns: int, out: int) -> None:
    torch.manual_seed(0)
    codes, weight = (torch.randint(-127, 128, (n, columns), dtype=torch.int8) for n in (rows, out))
    found = gpu_sums(codes, F.pad(weight, (0, -columns % 8, 0, -out % 8)))
    assert found[:, :out].tolist() == (codes.long() @ weight.long().t()).tolist()
    assert not found[:, out:].any()


class Launched(TorchDispatchMode):
    """The operators that a GPU would run, and the shapes of its products of bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels, self.products = 0, list[tuple[int, ...]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.split("::")[1]
        self.kernels += name not in ("view", "t", "slice", "scalar_tensor", "detach")
        if name == "_int_mm":
            self.products.append((*args[0].shape, args[1].shape[1]))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("bias", [False, True])
def test_a_gpu_is_given_products_of_bytes_in_the_shapes_that_it_takes(bias: bool) -> None:
    one = Int8Linear(nn.Linear(37, 21, bias, device="meta", dtype=torch.bfloat16))  # no CPU's, and without numbers
    assert tuple(one.weight.shape) == (24, 40)
    for rows in (1, 5, 17, 40):
        with Launched() as launched:
            found = one(torch.empty(1, rows, 37, device="meta", dtype=torch.bfloat16))
        assert (found.shape, found.dtype) == ((1, rows, 21), torch.bfloat16)
        assert launched.products == [(32 if rows <= 32 else 64, 40, 24)]
        assert launched.kernels == pytest.approx(KERNELS, abs=3)


@kinds
def test_a_row_is_the_same_bit_for_bit_whatever_else_is_in_the_pass(kind: type[Int8Linear | Int4Linear]) -> None:
    one, x = kind(layer(weight()), tiled=False), torch.randn(17, 96)
    whole = one(x)
    assert all(torch.equal(whole[i : i + 1], one(x[i : i + 1])) for i in range(17))
    assert torch.equal(whole[3:8], one(x[3:8]))


def test_the_largest_numbers_do_not_overflow_and_zeros_stay_zeros() -> None:
    one = layer(torch.stack([torch.full((64,), 1e4), torch.zeros(64)]))
    found = Int8Linear(one, tiled=False)(torch.stack([torch.full((64,), -3e4), torch.zeros(64)]))
    assert found[:, 1].tolist() == [0, 0]
    assert found[1].tolist() == [0, 0]
    assert found[0, 0].item() == pytest.approx(-64 * 3e8, rel=1e-5)


@kinds
@pytest.mark.parametrize("fault", [float("nan"), float("inf")])
def test_what_is_no_number_stays_none_in_its_own_row(kind: type[Int8Linear | Int4Linear], fault: float) -> None:
    x = torch.randn(2, 96)
    x[0, 5] = fault
    found = kind(layer(weight()), tiled=False)(x)
    assert not found[0].isfinite().any()
    assert found[1].isfinite().all()
