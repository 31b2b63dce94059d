"""Our kernel for products of few rows: inductor takes it, and it gives what plain products give."""

import copy
import ctypes
import shutil
import subprocess
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.codegen.cpp_utils import GemmBlocking
from torch._inductor.cpu_vec_isa import VecAMX, VecAVX2, VecAVX512, VecISA

from specbench.models.execution import compiled as execution
from specbench.models.execution import few_rows
from specbench.models.execution.compiled import by_few_rows, capabilities, fast_bfloat16, settings
from specbench.models.execution.region_code import Regional, Regions, Store, compiled
from specbench.models.execution.regions import Region, cut, trace
from tests.laws.mutants import Mutant, catches, mutants
from tests.support.tiers import NEEDS_COMPILER, never
from tests.support.toys import CPU

WITHOUT_AMX = pytest.mark.skipif(
    bool(capabilities().get("amx_bf16")), reason="this processor has AMX, which inductor uses"
)
DTYPES = [torch.float32, pytest.param(torch.bfloat16, marks=WITHOUT_AMX)]
CLOSE = {torch.float32: 1e-5, torch.bfloat16: 0.1}
COUNTS = (1, 8, 9, 17, 27)
HERE = pytest.mark.skipif(not by_few_rows(), reason="this processor has inductor's own kernels, see by_few_rows")


@pytest.fixture
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that multiplies bfloat16, without AMX."""
    monkeypatch.setattr(execution, "capabilities", lambda: {"avx512_vnni": True, "avx512_bf16": True})
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")


@pytest.mark.usefixtures("_wide")
def test_it_is_used_where_it_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert by_few_rows()
    assert fast_bfloat16(CPU)
    with monkeypatch.context() as other:
        other.setattr(execution, "capabilities", lambda: {"avx512_bf16": True})  # before VNNI
        assert not by_few_rows()
        assert not fast_bfloat16(CPU)
    with monkeypatch.context() as other:
        other.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
        assert not by_few_rows()
    monkeypatch.setattr(execution, "capabilities", lambda: {"avx512_vnni": True})
    assert by_few_rows()
    assert fast_bfloat16(CPU), "each bfloat16 is made a float32"


# --- which products it takes ------------------------------------------------------------------------------------------


TAKEN = [  # dtype, K, alpha, processor, whether it multiplies bfloat16, whether the product is taken
    (torch.float32, 63, 1.0, VecAVX512, False, True),
    (torch.float32, 64, 2.0, VecAVX512, False, False),
    (torch.bfloat16, 64, 1.0, VecAVX512, True, True),
    (torch.bfloat16, 63, 1.0, VecAVX512, True, False),  # the last number would have no pair
    (torch.bfloat16, 64, 1.0, VecAVX512, False, True),  # as float32
    (torch.bfloat16, 64, 1.0, VecAVX2, True, False),
    (torch.float32, 64, 1.0, VecAMX, True, True),
    (torch.bfloat16, 64, 1.0, VecAMX, True, False),  # inductor has a kernel for matrix units
]


@pytest.mark.parametrize(("dtype", "k", "alpha", "processor", "bfloat16", "taken"), TAKEN)
def test_it_takes_the_products_that_it_can_compute(
    dtype: torch.dtype, k: int, alpha: float, processor: type[VecISA], bfloat16: bool, taken: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VecAVX512, "is_avx512_bf16_supported", lambda self: bfloat16)
        patch.setattr(few_rows, "pick_vec_isa", processor)
        assert few_rows.fits(SimpleNamespace(input_dtype=dtype), 5, 48, k, alpha) == taken


def takes(case: int) -> partial[None]:
    return partial(test_it_takes_the_products_that_it_can_compute, *TAKEN[case])


CHOICES: dict[str, Mutant] = {
    "an odd number of bfloat16": (few_rows.fits, " and k % pairs == 0", "", takes(3)),
    "a product that is scaled": (few_rows.fits, " and alpha == 1", "", takes(1)),
    "bfloat16 on any processor": (few_rows.fits, "multiplies and ", "", takes(5)),
    "bfloat16 where a matrix unit is faster": (
        few_rows.fits,
        " and (pairs == 1 or not isinstance(has, VecAMX))",
        "",
        takes(7),
    ),
}


@mutants(CHOICES)
def test_a_product_that_it_cannot_compute_is_caught(mutant: Mutant) -> None:
    catches(*mutant)


@pytest.mark.parametrize(("rows", "columns"), few_rows.BLOCKS)
def test_the_sums_of_a_block_fit_into_the_registers(rows: int, columns: int) -> None:
    assert columns % 16 == 0
    assert (rows + 1) * columns // 16 + 1 <= 32  # sums, a row of B and a number of A


# --- the kernel, with vectors of plain C++ in the place of the processor's --------------------------------------------

VECTORS = r"""
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
namespace at { struct BFloat16 { uint16_t bits; }; }
namespace c10 {
template <int n> struct ForcedUnroll {
    template <class F, class... A> void operator()(const F& f, A... a) const {
        if constexpr (n > 1) ForcedUnroll<n - 1>{}(f, a...);
        f(std::integral_constant<int, n - 1>{}, a...);
    }
};
}
struct __m256i { uint16_t x[16]; };
struct __m512 { float x[16]; };
struct __m512i { uint32_t x[16]; };
struct __m512bh { uint32_t x[16]; explicit __m512bh(__m512i v) { std::memcpy(x, v.x, sizeof x); } };
constexpr int _MM_HINT_T0 = 0;
inline void _mm_prefetch(const char*, int) {}
template <class V> V read(const void* at) { V v; std::memcpy(&v, at, sizeof v); return v; }
template <class V, class F> V each(F f) { V v; for (int i = 0; i < 16; ++i) v.x[i] = f(i); return v; }
inline float number(uint32_t bits) { return read<float>(&(bits <<= 16)); }
inline __m512 _mm512_loadu_ps(const void* at) { return read<__m512>(at); }
inline __m512i _mm512_loadu_si512(const void* at) { return read<__m512i>(at); }
inline __m256i _mm256_loadu_si256(const __m256i* at) { return read<__m256i>(at); }
inline void _mm512_storeu_ps(float* at, __m512 v) { std::memcpy(at, v.x, sizeof v.x); }
inline __m512 _mm512_castsi512_ps(__m512i v) { return read<__m512>(v.x); }
inline __m512i _mm512_maskz_mov_epi16(uint32_t mask, __m512i a) {
    auto half = [&](int bit, uint32_t kept) { return mask >> bit & 1 ? kept : 0u; };
    return each<__m512i>([&](int i) { return a.x[i] & (half(2 * i, 0xffffu) | half(2 * i + 1, 0xffff0000u)); });
}
inline __m512 _mm512_setzero_ps() { return each<__m512>([](int) { return 0.f; }); }
inline __m512 _mm512_set1_ps(float a) { return each<__m512>([&](int) { return a; }); }
inline __m512i _mm512_set1_epi32(int32_t a) { return each<__m512i>([&](int) { return a; }); }
inline __m512i _mm512_cvtepu16_epi32(__m256i a) { return each<__m512i>([&](int i) { return a.x[i]; }); }
inline __m512i _mm512_slli_epi32(__m512i a, int n) { return each<__m512i>([&](int i) { return a.x[i] << n; }); }
inline __m512i _mm512_or_si512(__m512i a, __m512i b) { return each<__m512i>([&](int i) { return a.x[i] | b.x[i]; }); }
inline __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) {
    return each<__m512>([&](int i) { return a.x[i] * b.x[i] + c.x[i]; });
}
inline __m512 _mm512_dpbf16_ps(__m512 c, __m512bh a, __m512bh b) {
    return each<__m512>([&](int i) {
        return c.x[i] + number(a.x[i] >> 16) * number(b.x[i] >> 16) + number(a.x[i]) * number(b.x[i]);
    });
}
"""
RUN = r"""
extern "C" void run(const {0}* A, const {0}* B, float* C, int64_t M, int64_t N, int64_t K, bool accum) {{
    if (accum) few_rows<true>(A, B, C, M, N, K, K + 2, N, N + 1);
    else few_rows<false>(A, B, C, M, N, K, K + 2, N, N + 1);
}}
"""
M, K, ROWS, COLUMNS = 3, 6, 2, 32  # the last row is a block of its own


def kernel(dtype: torch.dtype, local: bool, dots: bool, folder: Path, rows: int = 0) -> Any:
    """The kernel as machine code, made for `rows`. local: it makes the pairs of B itself. dots: the processor
    multiplies pairs."""
    blocks = GemmBlocking(ROWS, COLUMNS, few_rows.PAIRS[dtype])
    with patch.object(few_rows.FewRows, "tried", rows):
        made = few_rows.FewRows("few_rows", dtype, dtype, torch.float32, torch.float32, blocks)
    made.use_local_vnni_blocking(local)
    source, library = folder / "kernel.cpp", folder / "kernel.so"
    with patch.object(few_rows, "multiplies_pairs", lambda: dots):
        text = made.codegen_define(None) + RUN.format(made.get_common_options()["input_t"])  # type: ignore[no-untyped-call]
    source.write_text(VECTORS + text)
    compiler = next(filter(None, map(shutil.which, execution.COMPILERS)))
    subprocess.run([compiler, "-std=c++17", "-O0", "-shared", "-fPIC", source, "-o", library], check=True)
    return ctypes.CDLL(str(library)).run


KERNELS = {  # name: (dtype, it makes the pairs of B itself, the processor multiplies pairs, rows for which it is made)
    "float32": (torch.float32, False, False, 0),
    "pairs of bfloat16": (torch.bfloat16, False, True, 0),
    "bfloat16": (torch.bfloat16, True, True, 0),
    "halves of pairs of bfloat16": (torch.bfloat16, False, False, 0),
    "halves of bfloat16": (torch.bfloat16, True, False, 0),
    "float32, for one row": (torch.float32, False, False, 1),
}


@pytest.mark.parametrize(
    ("rows", "found"), [(0, [2, 3, 4]), (1, []), (3, [3]), (4, [4]), (5, [4]), (6, [4, 2]), (15, [4, 3])]
)
def test_blocks_have_the_rows_that_occur(rows: int, found: list[int]) -> None:
    assert few_rows.blocks_of(rows, 4) == found


@pytest.mark.parametrize(("varies", "rows"), [(False, 5), (True, 0)])
def test_a_kernel_is_made_for_the_rows_of_the_product_unless_they_vary(varies: bool, rows: int) -> None:
    few_rows.fits(SimpleNamespace(input_dtype=torch.float32), 5, 48, 64, 1.0, dynamic_M=varies)
    blocks = GemmBlocking(ROWS, COLUMNS, 1)
    assert few_rows.FewRows("few_rows", *[torch.float32] * 4, blocks).rows == rows


@NEEDS_COMPILER
@pytest.mark.parametrize("how", KERNELS)
def test_the_kernel_multiplies_and_adds(how: str, tmp_path: Path) -> None:
    dtype, local, dots, rows = KERNELS[how]
    laid = dtype == torch.bfloat16 and not local
    width = COLUMNS if laid else 2 * COLUMNS  # of these inductor gives it one block at a time
    generator = torch.Generator().manual_seed(0)
    a, b, before = (
        torch.randint(-8, 8, size, generator=generator) for size in ((M, K + 2), (K, width), (M, width + 1))
    )
    laid_out = b.reshape(K // 2, 2, width).transpose(1, 2) if laid else b
    given = [a.to(dtype), laid_out.to(dtype).contiguous()]
    run = kernel(dtype, local, dots, tmp_path, rows)
    for accum in (False, True):
        c = before.float()
        tensors = (ctypes.c_void_p(x.data_ptr()) for x in (*given, c))
        run(*tensors, *map(ctypes.c_int64, (M, width, K)), ctypes.c_bool(accum))
        assert torch.equal(c[:, :width], (a[:, :K] @ b + accum * before[:, :width]).float())
        assert torch.equal(c[:, width], before[:, width].float())


# name: (kernel, a part of its source, what takes its place)
WRONG: dict[str, tuple[str, str, str]] = {
    "sums begin at zero": ("float32", "vc[i] = _mm512_loadu_ps(C + (i / COLS) * ldc + (i % COLS) * 16)",
                           "vc[i] = _mm512_setzero_ps()"),
    "sums begin at what was there": ("float32", "if constexpr (accum)", "if constexpr (true)"),
    "the last rows left out": ("float32", "int64_t row = m;", "int64_t row = m + 1;"),
    "columns of the first block": ("float32", "A + m * lda, B + n, C", "A + m * lda, B, C"),
    "the first number of a pair twice": ("bfloat16", "wide(k + 1)", "wide(k)"),
    "the first half twice": ("halves of bfloat16", "_mm512_maskz_mov_epi16(0xAAAAAAAAu, x)",
                             "_mm512_slli_epi32(x, 16)"),
    "the second half with the first": ("halves of pairs of bfloat16", "_mm512_maskz_mov_epi16(0xAAAAAAAAu, x)",
                                       "_mm512_maskz_mov_epi16(0xFFFFFFFFu, x)"),
    "a number of a row for a pair": ("pairs of bfloat16", "k += {{pairs}}", "k += 1"),
}  # fmt: skip


@pytest.mark.slow
@NEEDS_COMPILER
@pytest.mark.mutant(test=test_the_kernel_multiplies_and_adds)
@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_kernel_is_caught(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    how, right, wrong = WRONG[what]
    assert few_rows.KERNEL.count(right) == 1
    monkeypatch.setattr(few_rows, "KERNEL", few_rows.KERNEL.replace(right, wrong))
    with pytest.raises(AssertionError):
        test_the_kernel_multiplies_and_adds(how, tmp_path)


# --- in inductor ------------------------------------------------------------------------------------------------------


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
    told = "_mm512_dpbf16_ps" if dtype == torch.bfloat16 and few_rows.multiplies_pairs() else "_mm512_fmadd_ps"
    layouts = []
    for rows in (1, 17):
        code = compiled(region(rows, dtype), settings(CPU))
        assert code.source.count(f"{told}(") == len(Layers(dtype).parts)
        layouts.append(list(code.constants.values()))
    assert layouts[0] == layouts[1]
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
