// Products of rows of numbers with matrices of 8-bit or 4-bit codes, at the speed at which memory gives the codes.
//
// y[m, n] = scale(x)[m] * scale[n] * sum over k of code(x)[m, k] * code[n, k]   (+ bias[n])
//
// The sums are whole numbers: their order, the number of threads, and whether the processor has an instruction for them
// (AVX-512 VNNI), change nothing. Knows how codes lie in memory; must not know how they are chosen.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#if defined(__AVX512VNNI__) && defined(__AVX512BW__) && !defined(PLAIN)
#include <immintrin.h>
#define VNNI 1
#define UNROLL _Pragma("GCC unroll 16")  // so that all sums are registers
#endif

namespace {

using at::Tensor;

constexpr int64_t TALL = 16, GROUP = 32, AHEAD = 2048;  // weights' rows of a tile; columns of a group; bytes fetched ahead

// Weights in tiles of 16 rows, and where the results go. 8 bits, raised by 128: [tiles, columns / 4, 16, 4]. 4 bits, raised
// by 8: [tiles, columns / 8, 16, 4], columns 0 ... 3 of each eight in the lower halves of the bytes, 4 ... 7 in the upper.
struct Layer {
  const uint8_t* codes;
  const int8_t* groups;  // of 4 bits: what a code of every group of columns is worth [tiles, columns / 32, 16]
  const float *scale, *bias;
  int64_t rows, stride;  // stride: bytes of a tile
  float* out;
};

// Rows of x as codes of -127 ... 127, with zeros to the end of a group, and the sums of their groups. A row that has what
// is no number is given a scale that is none.
struct Rows {
  int64_t count, columns, groups;
  std::vector<int8_t> codes;
  std::vector<int32_t> sums;
  std::vector<float> scale;

  Rows(const float* x, int64_t m, int64_t k)
      : count(m), columns(k), groups((k + GROUP - 1) / GROUP), codes(m * groups * GROUP), sums(m * groups), scale(m) {
    at::parallel_for(0, m, 16, [&](int64_t from, int64_t to) {
      for (int64_t row = from; row < to; ++row) {
        scale[row] = quantise(x + row * k, codes.data() + row * groups * GROUP, k);
        for (int64_t g = row * groups; g < (row + 1) * groups; ++g) sums[g] = sum(codes.data() + g * GROUP);
      }
    });
  }

  static int32_t sum(const int8_t* group) {
    int32_t found = 0;
    for (int i = 0; i < GROUP; ++i) found += group[i];
    return found;
  }

  static float quantise(const float* __restrict x, int8_t* __restrict found, int64_t columns) {
    uint32_t most = 0;  // magnitudes have the order of their bits, and what is no number is above all of them
    for (int64_t i = 0; i < columns; ++i) {
      uint32_t bits;
      std::memcpy(&bits, x + i, sizeof bits);
      most = std::max(most, bits & 0x7fffffffu);
    }
    float largest;
    std::memcpy(&largest, &most, sizeof largest);
    if (!(largest <= std::numeric_limits<float>::max())) return std::numeric_limits<float>::quiet_NaN();
    const float step = std::max(largest / 127.0f, std::numeric_limits<float>::min());
    for (int64_t i = 0; i < columns; ++i) found[i] = static_cast<int8_t>(std::nearbyint(x[i] / step));
    return step;
  }
};

// M rows of x times a tile: the sums of products of codes.
struct Eight {
  static constexpr int MOST = 8;  // rows of x at once

  template <int M>
  static void sums(const Rows& x, const Layer& layer, int64_t tile, int64_t m, int32_t (&found)[M][TALL]) {
    const int64_t width = x.groups * GROUP;
    const uint8_t* at = layer.codes + tile * layer.stride;
    const int8_t* row = x.codes.data() + m * width;
    int32_t start[M] = {};  // takes off what the raise of the weights adds
    for (int j = 0; j < M; ++j)
      for (int64_t g = 0; g < x.groups; ++g) start[j] -= 128 * x.sums[(m + j) * x.groups + g];
#ifdef VNNI
    __m512i total[M];
    UNROLL for (int j = 0; j < M; ++j) total[j] = _mm512_set1_epi32(start[j]);
    for (int64_t k = 0; k < x.columns; k += 4, at += 64) {
      const __m512i some = _mm512_loadu_si512(at);
      _mm_prefetch(at + AHEAD, _MM_HINT_T0);
      UNROLL for (int j = 0; j < M; ++j) total[j] = _mm512_dpbusd_epi32(total[j], some, four(row + j * width + k));
    }
    UNROLL for (int j = 0; j < M; ++j) _mm512_storeu_si512(found[j], total[j]);
#else
    for (int j = 0; j < M; ++j) {
      std::fill(found[j], found[j] + TALL, start[j]);
      for (int64_t k = 0; k < x.columns; k += 4)
        for (int n = 0; n < TALL; ++n)
          for (int i = 0; i < 4; ++i) found[j][n] += int32_t(at[k * TALL + n * 4 + i]) * row[j * width + k + i];
    }
#endif
  }

#ifdef VNNI
  static __m512i four(const int8_t* codes) {  // the same four for all rows of a tile
    int32_t all;
    std::memcpy(&all, codes, sizeof all);
    return _mm512_set1_epi32(all);
  }
#endif
};

struct Four {
  static constexpr int MOST = 8;

  template <int M>
  static void sums(const Rows& x, const Layer& layer, int64_t tile, int64_t m, int32_t (&found)[M][TALL]) {
    const int64_t width = x.groups * GROUP;
    const uint8_t* at = layer.codes + tile * layer.stride;
    const int8_t* worth = layer.groups + tile * x.groups * TALL;
    const int8_t* row = x.codes.data() + m * width;
    const int32_t* start = x.sums.data() + m * x.groups;
#ifdef VNNI
    const __m512i low = _mm512_set1_epi8(15);
    __m512i total[M];
    UNROLL for (int j = 0; j < M; ++j) total[j] = _mm512_setzero_si512();
    for (int64_t g = 0; g < x.groups; ++g, worth += TALL) {
      __m512i sum[M];
      UNROLL for (int j = 0; j < M; ++j) sum[j] = _mm512_set1_epi32(-8 * start[j * x.groups + g]);
      UNROLL for (int k = 0; k < GROUP; k += 8, at += 64) {
        const __m512i both = _mm512_loadu_si512(at);
        const __m512i first = _mm512_and_si512(both, low), second = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
        _mm_prefetch(at + AHEAD, _MM_HINT_T0);
        UNROLL for (int j = 0; j < M; ++j) {
          const int8_t* codes = row + j * width + g * GROUP + k;
          sum[j] = _mm512_dpbusd_epi32(sum[j], first, Eight::four(codes));
          sum[j] = _mm512_dpbusd_epi32(sum[j], second, Eight::four(codes + 4));
        }
      }
      const __m512i times = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(worth)));
      UNROLL for (int j = 0; j < M; ++j) total[j] = _mm512_add_epi32(total[j], _mm512_mullo_epi32(sum[j], times));
    }
    UNROLL for (int j = 0; j < M; ++j) _mm512_storeu_si512(found[j], total[j]);
#else
    for (int j = 0; j < M; ++j) {
      std::fill(found[j], found[j] + TALL, 0);
      for (int64_t g = 0; g < x.groups; ++g)
        for (int n = 0; n < TALL; ++n) {
          int32_t sum = -8 * start[j * x.groups + g];
          for (int k = 0; k < GROUP; ++k) {
            const uint8_t both = at[g * 256 + k / 8 * 64 + n * 4 + k % 4];
            sum += int32_t(k % 8 < 4 ? both & 15 : both >> 4) * row[j * width + g * GROUP + k];
          }
          found[j][n] += sum * worth[g * TALL + n];
        }
    }
#endif
  }
};

// M rows of x from m on times a tile.
template <class Bits, int M>
void put(const Rows& x, const Layer& layer, int64_t tile, int64_t m) {
  int32_t found[M][TALL];
  Bits::template sums<M>(x, layer, tile, m, found);
  const int64_t first = tile * TALL, last = std::min(first + TALL, layer.rows);
  for (int j = 0; j < M; ++j)
    for (int64_t n = first; n < last; ++n) {
      const float y = static_cast<float>(found[j][n - first]) * (x.scale[m + j] * layer.scale[n]);
      layer.out[(m + j) * layer.rows + n] = layer.bias ? y + layer.bias[n] : y;
    }
}

// The same for some rows of x, at most M.
template <class Bits, int M>
void put_some(int64_t rows, const Rows& x, const Layer& layer, int64_t tile, int64_t m) {
  if (rows == M) return put<Bits, M>(x, layer, tile, m);
  if constexpr (M > 1) put_some<Bits, M - 1>(rows, x, layer, tile, m);
}

template <class Bits>
void put_all(const Rows& x, const Layer& layer, int64_t tile) {
  for (int64_t m = 0; m < x.count; m += Bits::MOST)
    put_some<Bits, Bits::MOST>(std::min<int64_t>(Bits::MOST, x.count - m), x, layer, tile, m);
}

void multiply(const Rows& x, const std::vector<Layer>& layers) {
  int64_t tiles = 0;
  for (const Layer& layer : layers) tiles += (layer.rows + TALL - 1) / TALL;
  at::parallel_for(0, tiles, 1, [&](int64_t from, int64_t to) {
    int64_t start = 0;
    for (const Layer& layer : layers) {
      const int64_t end = start + (layer.rows + TALL - 1) / TALL;
      for (int64_t tile = std::max(from, start); tile < std::min(to, end); ++tile)
        layer.groups ? put_all<Four>(x, layer, tile - start) : put_all<Eight>(x, layer, tile - start);
      start = end;
    }
  });
}

using Tensors = std::vector<Tensor>;
using Perhaps = c10::List<std::optional<Tensor>>;

// x [..., k] times each of several layers that have k columns.
Tensors linears(const Tensor& x, at::TensorList codes, const Perhaps& groups, at::TensorList scales, const Perhaps& biases) {
  const Tensor rows = x.to(at::kFloat).contiguous();
  auto shape = x.sizes().vec();
  const int64_t k = shape.back();
  Tensors found, kept;
  std::vector<Layer> layers;
  for (size_t i = 0; i < codes.size(); ++i) {
    shape.back() = scales[i].size(0);
    found.push_back(at::empty(shape, rows.options()));
    const std::optional<Tensor> worth = groups.get(i), bias = biases.get(i);
    if (bias) kept.push_back(bias->to(at::kFloat).contiguous());
    layers.push_back({codes[i].const_data_ptr<uint8_t>(), worth ? worth->const_data_ptr<int8_t>() : nullptr,
                      scales[i].const_data_ptr<float>(), bias ? kept.back().const_data_ptr<float>() : nullptr,
                      shape.back(), codes[i].size(1), found.back().mutable_data_ptr<float>()});
  }
  multiply(Rows(rows.const_data_ptr<float>(), x.numel() / k, k), layers);
  for (Tensor& one : found) one = one.to(x.scalar_type());
  return found;
}

Tensor linear(const Tensor& x, const Tensor& codes, const std::optional<Tensor>& groups, const Tensor& scale,
              const std::optional<Tensor>& bias) {
  return linears(x, {codes}, Perhaps({groups}), {scale}, Perhaps({bias}))[0];
}

}  // namespace

TORCH_LIBRARY_IMPL(specbench, CPU, library) {
  library.impl("linear", &linear);
  library.impl("linears", &linears);
}
