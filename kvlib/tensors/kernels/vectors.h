// Vectors as wide as this processor's, and the softmax of a tile of scores in them. Shared by the
// kernels for numbers and for codes; compiled into each.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>

namespace {

constexpr int TILE = 16;  // tokens that are taken in together
constexpr float LOG2E = 1.44269504f;

// Vectors as wide as this processor's; their arithmetic is the compiler's (GCC and Clang alike).
#if defined(__AVX512F__)
constexpr int WIDE = 16;
#elif defined(__AVX__)
constexpr int WIDE = 8;
#else
constexpr int WIDE = 4;
#endif
typedef float Vector __attribute__((vector_size(WIDE * 4)));
typedef int32_t Ints __attribute__((vector_size(WIDE * 4)));
typedef float Loose __attribute__((vector_size(WIDE * 4), aligned(4), may_alias));

inline float load(const float* p) { return *p; }
inline float load(const _Float16* p) { return static_cast<float>(*p); }
inline float load(const uint16_t* p) {  // bfloat16: the upper half of a float32
  const uint32_t bits = static_cast<uint32_t>(*p) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

inline Vector load_wide(const float* p) { return *reinterpret_cast<const Loose*>(p); }
inline Vector load_wide(const _Float16* p) {
  typedef _Float16 Half __attribute__((vector_size(WIDE * 2), aligned(2), may_alias));
  return __builtin_convertvector(*reinterpret_cast<const Half*>(p), Vector);
}
inline Vector load_wide(const uint16_t* p) {
  typedef uint16_t Half __attribute__((vector_size(WIDE * 2), aligned(2), may_alias));
  typedef uint32_t Bits __attribute__((vector_size(WIDE * 4)));
  return (Vector)(__builtin_convertvector(*reinterpret_cast<const Half*>(p), Bits) << 16);
}

// Adds up neighbours at a distance: of each group of 2 * S lanes of a and of b, S lanes are left.
template <int S, int... I>
inline Vector fold(Vector a, Vector b, std::integer_sequence<int, I...>) {
  constexpr auto low = [](int p) { return p / (2 * S) * 2 * S + p % S + (p % (2 * S) < S ? 0 : WIDE); };
  return __builtin_shufflevector(a, b, low(I)...) + __builtin_shufflevector(a, b, (low(I) + S)...);
}

// The sums of WIDE vectors, in order, as one vector: 3 instructions each instead of 8.
template <int S>
inline Vector sums_of(Vector* v) {
  if constexpr (S == 0) {
    return v[0];
  } else {
    for (int i = 0; i < S; i++)
      v[i] = fold<S>(v[i], v[i + S], std::make_integer_sequence<int, WIDE>());
    return sums_of<S / 2>(v);
  }
}

// exp(x) for x <= 0, to about 1e-7: 2^n times a polynomial.
inline Vector exp_of(Vector x) {
  x = x > -87.0f ? x : Vector{} - 87.0f;
  const Vector y = x * LOG2E;
  const Ints n = __builtin_convertvector(y - 0.5f, Ints);
  const Vector f = y - __builtin_convertvector(n, Vector);
  Vector p = f * 1.535336188e-4f + 1.339887440e-3f;
  p = p * f + 9.618437357e-3f;
  p = p * f + 5.550332471e-2f;
  p = p * f + 2.402264791e-1f;
  p = p * f + 6.931472028e-1f;
  p = p * f + 1.0f;
  return (Vector)((Ints)p + (n << 23));
}

// What one query keeps while its keys go by: the running maximum, and the sum of weights by lane.
struct Running {
  float peak = -INFINITY;
  Vector total = {};
};

// Turns the tile's scores into weights; returns the factor by which earlier sums shrink.
inline float weigh(Vector* score, int n, Running& run) {
  if (n < TILE) {
    alignas(64) float each[TILE];
    std::memcpy(each, score, sizeof(each));
    for (int t = n; t < TILE; t++) each[t] = -INFINITY;
    std::memcpy(score, each, sizeof(each));
  }
  Vector most = score[0];
  for (int i = 1; i < TILE / WIDE; i++) most = most > score[i] ? most : score[i];
  float high = run.peak;
  for (int lane = 0; lane < WIDE; lane++) high = std::max(high, most[lane]);
  float shrink = 1;
  if (high > run.peak) {
    shrink = std::exp(run.peak - high);
    run.peak = high;
    run.total *= shrink;
  }
  for (int i = 0; i < TILE / WIDE; i++) {
    // A score of minus infinity would leave exp(-87) behind, which is not nothing. So would NaN, which
    // is to be seen in what comes out.
    const Vector weight = score[i] == score[i] ? exp_of(score[i] - high) : score[i];
    score[i] = score[i] == Vector{} - INFINITY ? Vector{} : weight;
    run.total += score[i];
  }
  return shrink;
}

}  // namespace
