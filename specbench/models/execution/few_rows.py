"""Products of few rows in inductor, by a kernel that reads every weight once, at memory bandwidth.

Speculation pays if a pass over K + 1 rows takes little longer than one over a single row. inductor's
kernels take 1.8 times as long over five rows as over one on an AMD EPYC, 1.5 times on an Intel Xeon,
and convert every bfloat16 weight to float32 first (`tests/benchmarks/few_rows.py`).
"""

import math
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch._inductor.compile_fx
from torch import Tensor
from torch._inductor.codegen import cpp_micro_gemm
from torch._inductor.codegen.common import KernelTemplate
from torch._inductor.cpu_vec_isa import VecAMX, VecAVX512, VecAVX512VNNI, pick_vec_isa

BLOCKS = ((8, 48), (8, 32), (16, 16))  # rows and columns whose sums fit into 32 registers, the best first
PAIRS = {torch.float32: 1, torch.bfloat16: 2}  # numbers of a row per multiply-add instruction
AHEAD = 2048  # bytes

KERNEL = r"""
template <int64_t M, int64_t N, bool accum>
inline void {{kernel_name}}_kernel(
    const {{input_t}}* {{restrict_keyword}} A,
    const {{input2_t}}* {{restrict_keyword}} B,
    {{output_t}}* {{restrict_keyword}} C,
    int64_t K, int64_t lda, int64_t ldb, int64_t ldc
) {
    constexpr int COLS = N / 16;
    {{vector}} va, vb[COLS];
{%- if pairs == 2 and not dots %}
    __m512i both[COLS];
    auto alone = [](__m512i x, auto half) {
        if constexpr (half == 0) return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
        else return _mm512_castsi512_ps(_mm512_maskz_mov_epi16(0xAAAAAAAAu, x));
    };
{%- endif %}
    __m512 vc[M * COLS];
    c10::ForcedUnroll<M * COLS>{}([&](auto i) {
        if constexpr (accum) vc[i] = _mm512_loadu_ps(C + (i / COLS) * ldc + (i % COLS) * 16);
        else vc[i] = _mm512_setzero_ps();
    });
    auto compute = [&](auto i, int64_t k, auto half) {
        constexpr int row = i / COLS, col = i % COLS;
        if constexpr (col == 0) {
{%- if pairs == 2 %}
            int32_t pair;
            std::memcpy(&pair, A + row * lda + k, sizeof pair);
            va = {{one}}_mm512_set1_epi32(pair){{of_pair}};
{%- else %}
            va = _mm512_set1_ps(A[row * lda + k]);
{%- endif %}
        }
        if constexpr (row == 0) {
{%- if pairs == 2 and not dots %}
            if constexpr (half == 0) {
{%- endif %}
{%- if pack_vnni_B_locally and pairs == 2 %}
            auto wide = [&](int64_t at) {
                auto some = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(B + at * ldb + col * 16));
                return _mm512_cvtepu16_epi32(some);
            };
            {{loaded}}[col] = _mm512_or_si512(wide(k), _mm512_slli_epi32(wide(k + 1), 16));
{%- else %}
            auto at = B + k * ldb + col * 16 * {{pairs}};
            {{loaded}}[col] = {{load}}(at);
            _mm_prefetch(reinterpret_cast<const char*>(at) + {{ahead}}, _MM_HINT_T0);
{%- endif %}
{%- if pairs == 2 and not dots %}
            }
            vb[col] = alone(both[col], half);
{%- endif %}
        }
{%- if dots %}
        vc[i] = _mm512_dpbf16_ps(vc[i], (__m512bh)va, (__m512bh)vb[col]);
{%- else %}
        vc[i] = _mm512_fmadd_ps(va, vb[col], vc[i]);
{%- endif %}
    };
    for (int64_t k = 0; k < K; k += {{pairs}}) {
        c10::ForcedUnroll<M * COLS>{}(compute, k, std::integral_constant<int, 0>{});
{%- if pairs == 2 and not dots %}
        c10::ForcedUnroll<M * COLS>{}(compute, k, std::integral_constant<int, 1>{});
{%- endif %}
    }
    c10::ForcedUnroll<M * COLS>{}([&](auto i) { _mm512_storeu_ps(C + (i / COLS) * ldc + (i % COLS) * 16, vc[i]); });
}
{{declare_kernel}} {
    for (int64_t m = 0; m < M; m += {{block_m}}) {
        for (int64_t n = 0; n < N; n += {{block_n}}) {
            switch (std::min<int64_t>(M - m, {{block_m}})) {
{%- for some in rows %}
            case {{some}}:
                {{kernel_name}}_kernel<{{some}}, {{block_n}}, accum>(
                    A + m * lda, B + n, C + m * ldc + n, K, lda, ldb, ldc);
                break;
{%- endfor %}
            default:
                for (int64_t row = m; row < std::min<int64_t>(M, m + {{block_m}}); row++)
                    {{kernel_name}}_kernel<1, {{block_n}}, accum>(
                        A + row * lda, B + n, C + row * ldc + n, K, lda, ldb, ldc);
            }
        }
    }
}
"""


class FewRows(cpp_micro_gemm.CppMicroGemm):
    """C = A · B, or C += A · B, for A [M, K], and B [K, N] in blocks, of float32 or bfloat16, and C of float32."""

    tried = 0  # M of the product for which a kernel is chosen, 0 if it varies: inductor gives it to `fits` alone

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self.rows = type(self).tried

    def codegen_define(self, kernel: Any) -> str:
        pairs, blocks = PAIRS[self.input_dtype], self.register_blocking
        dots = pairs == 2 and multiplies_pairs()
        halves = pairs == 2 and not dots
        options = {
            **self.get_common_options(),  # type: ignore[no-untyped-call]
            "declare_kernel": self.get_kernel_declaration(),  # type: ignore[no-untyped-call]
            "block_m": blocks.block_m,
            "block_n": blocks.block_n,
            "rows": blocks_of(self.rows, blocks.block_m),
            "pairs": pairs,
            "dots": dots,
            "vector": "__m512i" if dots else "__m512",
            "loaded": "both" if halves else "vb",
            "one": "alone(" if halves else "",
            "of_pair": ", half)" if halves else "",
            "load": "_mm512_loadu_si512" if pairs == 2 else "_mm512_loadu_ps",
            "ahead": AHEAD,
        }
        text: str = KernelTemplate._template_from_string(KERNEL).render(options)
        return text

    def get_b_layout(self) -> Any:
        kinds = cpp_micro_gemm.LayoutType
        return kinds.VNNI2 if PAIRS[self.input_dtype] == 2 else kinds.NORMAL


def blocks_of(rows: int, block: int) -> list[int]:
    """The numbers of rows of blocks that a matrix has, but for one row: only these are compiled. 0 rows: all."""
    whole, rest = divmod(rows, block)
    return [one for one in ([block] * (whole > 0) + [rest] if rows else range(2, block + 1)) if one > 1]


def multiplies_pairs() -> bool:
    """Whether the processor has an instruction for pairs of bfloat16; else each is made a float32, which is a shift."""
    has = pick_vec_isa()
    return isinstance(has, VecAVX512) and has.is_avx512_bf16_supported()


def fits(config: Any, m: int, n: int, k: int, alpha: float, *_: Any, **more: Any) -> bool:
    """Whether the processor's instructions support this product, and no matrix unit (AMX) is there for it."""
    FewRows.tried = 0 if more.get("dynamic_M") else m
    pairs, has = PAIRS[config.input_dtype], pick_vec_isa()
    multiplies = isinstance(has, VecAVX512) and (pairs == 1 or not isinstance(has, VecAMX))
    return multiplies and alpha == 1 and k % pairs == 0


@cache
def offer() -> None:
    """Add the kernel to inductor's candidates for a processor."""
    made: list[Any] = []
    for dtype, pairs in PAIRS.items():
        blocks = [(*block, pairs) for block in BLOCKS]
        kinds: dict[str, Any] = {"input_dtype": dtype, "output_dtype": torch.float32, "extra_check": fits}
        made += cpp_micro_gemm.generate_gemm_config(VecAVX512VNNI, blocks, **kinds)  # type: ignore[no-untyped-call]
    cpp_micro_gemm.register_micro_gemm(*made)(FewRows)  # type: ignore[no-untyped-call]


# --- onednn -----------------------------------------------------------------------------------------------------------
# Matrix products by oneDNN: where they are faster than torch's, and their layout.

ROWS = (1, 4, 5)  # numbers of rows as which a single row may be multiplied: two or three were faster on no processor
TURNS = 9  # repetitions of all timings; the least time counts
CLEAR = 0.1  # share of a single row's time: a gain that exceeds noise
PROBED = 64 << 20  # bytes of weights that are timed together: more than a processor's caches
FASTER_ON = "AuthenticAMD"  # measured there; on an Intel Xeon plain float32 is as fast as compiled


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., in] → x · weightᵀ + bias, [..., out], for a weight [out, in] in oneDNN's own layout, or a plain one."""
    return torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")  # type: ignore[no-any-return]


def packed(weight: Tensor) -> Tensor:
    """A weight [out, in] in oneDNN's opaque layout: it can neither be changed nor copied."""
    return torch.ops.mkldnn._reorder_linear_weight.default(weight.detach())  # type: ignore[no-any-return]


@dataclass(eq=False)
class Matrix:
    """A packed weight; a deep copy of its owner shares it.

    rows: a single row is multiplied as this many equal ones, if the kernel for few rows is faster (`settle`).
    """

    weight: Tensor
    rows: int = 1

    @classmethod
    def of(cls, weight: Tensor) -> "Matrix":
        return cls(packed(weight))

    def __deepcopy__(self, memo: dict[int, Any]) -> "Matrix":
        return self

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        if self.rows > 1 and x.numel() == x.shape[-1]:
            wide = product(x.reshape(1, -1).repeat(self.rows, 1), self.weight, bias)
            return wide[:1].view(*x.shape[:-1], -1)
        return product(x, self.weight, bias)


def settle(matrices: Sequence[Matrix], now: Callable[[], float] = time.perf_counter) -> None:
    """Choose the fastest number of rows for single-row products of matrices of one shape [out, in] and dtype.

    A baseline with a slower kernel for one row than the verify pass for a few would bias every speedup upwards.
    If the choice changes a digit, only a clear gain counts, so that it is the same in every run on a machine.
    """
    some = matrices[: max(1, PROBED // (matrices[0].weight.numel() * matrices[0].weight.itemsize))]
    x = torch.ones(1, some[0].weight.shape[1], dtype=some[0].weight.dtype)
    seconds = dict.fromkeys(ROWS, math.inf)
    for turn in range(TURNS):
        for rows in (*ROWS[turn % len(ROWS) :], *ROWS[: turn % len(ROWS)]):  # the first has the coldest cache
            probes = [Matrix(one.weight, rows) for one in some]
            began = now()
            for probe in probes:
                probe(x)
            seconds[rows] = min(seconds[rows], now() - began)
    best = min(seconds, key=lambda rows: (seconds[rows], rows))
    if not rounded_alike(some[0]) and seconds[best] > (1 - CLEAR) * seconds[1]:
        best = 1
    for one in matrices:
        one.rows = best


def rounded_alike(matrix: Matrix) -> bool:
    """Whether a single row has the same digits alone and among several: oneDNN sums the float32
    products of a single row in another order."""
    x = torch.randn(1, matrix.weight.shape[1], generator=torch.Generator().manual_seed(0)).to(matrix.weight.dtype)
    return torch.equal(Matrix(matrix.weight, 1)(x), Matrix(matrix.weight, ROWS[-1])(x))


@cache
def pays() -> bool:
    """Whether packed matrices are known from measurements to be faster on this processor than plain ones."""
    return bool(torch._C._has_mkldnn) and FASTER_ON in maker()


def maker() -> str:
    """The processor's vendor, as the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("vendor_id")), "")


@cache
def dtypes() -> frozenset[torch.dtype]:
    """Those of float32 and bfloat16 that this processor supports: before AVX-512 only float32."""
    found = set()
    for dtype in (torch.float32, torch.bfloat16):
        with suppress(RuntimeError):
            product(torch.ones(1, 2, dtype=dtype), packed(torch.ones(2, 2, dtype=dtype)))
            found.add(dtype)
    return frozenset(found)
