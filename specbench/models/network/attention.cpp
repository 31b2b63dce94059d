// Attention of few queries over the keys and values of a cache. Slots that a mask hides are not read.
//
// out[q] = sum over visible k of softmax(query[q] · key[k] * scale + mask[q, k]) * value[k], of SIZE numbers
//
// The result of a query depends neither on the other queries nor on the number of threads.

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

using torch::stable::Tensor;

constexpr int64_t WIDE = 16, VECTORS = SIZE / WIDE;  // numbers of a vector, vectors of a key
constexpr int64_t MANY = 4;  // queries for which keys in 16 bits are converted beforehand
constexpr float HIDDEN = -1e29f, LEAST = -87.0f;  // mask of a hidden key, at most; exponent of the least normal number
static_assert(SIZE % WIDE == 0);

typedef float Floats __attribute__((vector_size(WIDE * 4)));
typedef int32_t Whole __attribute__((vector_size(WIDE * 4)));
typedef uint16_t Halves __attribute__((vector_size(WIDE * 2)));
using Lanes = std::make_integer_sequence<int, WIDE>;

struct bfloat16 {
  uint16_t bits;
};

template <class To, class From>
inline To same(const From& from) {
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

inline Floats read(const float* at) { return same<Floats>(*at); }
inline Floats read(const bfloat16* at) { return (Floats)(__builtin_convertvector(same<Halves>(*at), Whole) << 16); }
inline float number(float x) { return x; }
inline float number(bfloat16 x) { return same<float>(uint32_t(x.bits) << 16); }
inline void write(float x, float* at) { *at = x; }

inline void write(float x, bfloat16* at) {  // to the nearest, ties to even
  const uint32_t bits = same<uint32_t>(x);
  at->bits = x != x ? 0x7fc0 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

// Of N numbers next to each other, those of a in the first half and those of b in the second, each added to the one that
// is N / 2 after it.
template <int N, int... LANE>
inline Floats added(const Floats& a, const Floats& b, std::integer_sequence<int, LANE...>) {
  constexpr auto from = [](int lane) { return lane - lane % N + lane % (N / 2) + (lane % N < N / 2 ? 0 : WIDE); };
  return __builtin_shufflevector(a, b, from(LANE)...) + __builtin_shufflevector(a, b, from(LANE) + N / 2 ...);
}

// The products of a query with N visible keys, one per lane, again and again.
template <int N, class T>
inline Floats products(const Floats* query, const T* key, const int32_t* visible) {
  if constexpr (N == 1) {
    const T* at = key + visible[0] * SIZE;
    Floats total = query[0] * read(at);
    for (int i = 1; i < VECTORS; ++i) total += query[i] * read(at + i * WIDE);
    return total;
  } else {
    const Floats first = products<N / 2>(query, key, visible);
    return added<N>(first, products<N / 2>(query, key, visible + N / 2), Lanes());
  }
}

// e^x for x up to 0, within two units of the last place (the polynomial of Cephes).
inline Floats exponential(Floats x) {
  x = x < LEAST ? Floats{} + LEAST : x;
  const Floats shift = Floats{} + 12582912.0f;  // rounds to whole numbers
  const Floats n = (x * 1.44269504f + shift) - shift;
  const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Floats p = Floats{} + 1.9875691500e-4f;
  for (float factor : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
    p = p * r + factor;
  p = p * r * r + r + 1.0f;
  return p * (Floats)((__builtin_convertvector(n, Whole) + 127) << 23);
}

// The keys that are visible, and their masks; all keys with equal masks if none is. Returns their number.
template <class T>
int64_t seen(const T* mask, int64_t keys, int32_t* visible, float* masks) {
  int64_t count = 0;
  for (int64_t begin = 0; begin < keys; begin += WIDE) {
    const int64_t end = std::min(begin + WIDE, keys);
    int some = 0;
    for (int64_t k = begin; k < end; ++k) some += number(mask[k]) > HIDDEN;
    for (int64_t k = begin; some && k < end; ++k) {
      visible[count] = k;
      masks[count] = number(mask[k]);
      count += masks[count] > HIDDEN;
    }
  }
  if (count) return count;
  for (; count < keys; ++count) visible[count] = count;
  std::fill(masks, masks + keys, HIDDEN);
  return keys;
}

// The result of a query from its visible keys and their masks, in memory for the numbers of a vector more.
template <class T, class Read>
void one(const T* query, const Read* key, const Read* value, float scale, T* out, int64_t count, float* weights,
         int32_t* visible) {
  const int64_t whole = (count + WIDE - 1) / WIDE * WIDE;
  std::fill(visible + count, visible + whole, visible[0]);
  std::fill(weights + count, weights + whole, -INFINITY);
  Floats q[VECTORS], most = Floats{} - INFINITY, total{}, found[2][VECTORS] = {};
  for (int i = 0; i < VECTORS; ++i) q[i] = read(query + i * WIDE) * scale;
  for (int64_t k = 0; k < whole; k += WIDE) {
    const Floats x = products<WIDE>(q, key, visible + k) + read(weights + k);
    std::memcpy(weights + k, &x, sizeof x);
    most = x > most ? x : most;
  }
  float largest = most[0];
  for (int i = 1; i < WIDE; ++i) largest = std::max(largest, most[i]);
  for (int64_t k = 0; k < whole; k += WIDE) {
    const Floats x = read(weights + k), weight = x == -INFINITY ? Floats{} : exponential(x - largest);
    std::memcpy(weights + k, &weight, sizeof weight);
    total += weight;
  }
  for (int64_t k = 0; k < whole; k += 2)
    for (int two = 0; two < 2; ++two)
      for (int i = 0; i < VECTORS; ++i)
        found[two][i] += weights[k + two] * read(value + visible[k + two] * SIZE + i * WIDE);
  float sum = 0;
  for (int i = 0; i < WIDE; ++i) sum += total[i];
  for (int i = 0; i < VECTORS; ++i) {
    const Floats mean = (found[0][i] + found[1][i]) / sum;
    for (int lane = 0; lane < WIDE; ++lane) write(mean[lane], out + i * WIDE + lane);
  }
}

// The first keys or values of a head, converted once for many queries.
struct Wide {
  std::vector<float> numbers;
  int64_t done = 0;

  const float* first(int64_t count, const bfloat16* from) {
    if (int64_t(numbers.size()) < count * SIZE) numbers.resize(count * SIZE);
    for (int64_t i = done * SIZE; i < count * SIZE; i += WIDE) {
      const Floats some = read(from + i);
      std::memcpy(numbers.data() + i, &some, sizeof some);
    }
    done = std::max(done, count);
    return numbers.data();
  }
};

// The numbers of a tensor [rows, heads, queries or keys, SIZE or keys]; an axis of one is every place of that axis.
template <class T>
struct View {
  const T* data;
  int64_t steps[3];

  explicit View(const Tensor& x) : data(static_cast<const T*>(x.const_data_ptr())) {
    STD_TORCH_CHECK(x.stride(3) == 1, "the numbers of a head or a mask must be next to each other");
    for (int axis = 0; axis < 3; ++axis) steps[axis] = x.size(axis) > 1 ? x.stride(axis) : 0;
  }

  const T* at(int64_t row, int64_t head, int64_t place) const {
    return data + row * steps[0] + head * steps[1] + place * steps[2];
  }
};

template <class T>
void all(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& mask, float scale, Tensor& found) {
  STD_TORCH_CHECK(key.stride(2) == SIZE && value.stride(2) == SIZE, "the slots of a head must be next to each other");
  const View<T> q(query), k(key), v(value), m(mask);
  T* out = static_cast<T*>(found.mutable_data_ptr());
  const int64_t heads = query.size(1), queries = query.size(2), keys = key.size(2), tasks = query.size(0) * heads * queries;
#pragma omp parallel num_threads(torch::stable::get_num_threads())
  {
    static thread_local std::vector<float> weights;  // kept: large ones would be returned to the system
    static thread_local std::vector<int32_t> visible;
    static thread_local Wide wide_keys, wide_values;
    weights.resize(keys + WIDE);
    visible.resize(keys + WIDE);
    int64_t last = -1;
#pragma omp for schedule(static)
    for (int64_t task = 0; task < tasks; ++task) {
      const int64_t place = task % queries, head = task / queries % heads, row = task / queries / heads;
      const int64_t count = seen(m.at(row, 0, place), keys, visible.data(), weights.data());
      auto with = [&](auto key, auto value) {
        one(q.at(row, head, place), key, value, scale, out + task * SIZE, count, weights.data(), visible.data());
      };
      if (task / queries != last) wide_keys.done = wide_values.done = 0;
      last = task / queries;
      if constexpr (std::is_same_v<T, bfloat16>)
        if (queries >= MANY) {
          const int64_t needed = visible[count - 1] + 1;
          with(wide_keys.first(needed, k.at(row, head, 0)), wide_values.first(needed, v.at(row, head, 0)));
          continue;
        }
      with(k.at(row, head, 0), v.at(row, head, 0));
    }
  }
}

Tensor attend(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& mask, double scale) {
  Tensor out = torch::stable::new_empty(query, query.sizes());
  (query.element_size() == 4 ? all<float> : all<bfloat16>)(query, key, value, mask, scale, out);
  return out;
}

}  // namespace

#define NAMED(size) "attend" #size
#define NAME(size) NAMED(size)

STABLE_TORCH_LIBRARY_IMPL(specbench, CPU, library) { library.impl(NAME(SIZE), TORCH_BOX(&attend)); }
