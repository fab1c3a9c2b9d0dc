// A few rows of activations times large weights, read where they lie, and whole layers made of that.
// See few_rows.py and decode_step.py.
//
// A decode step has one row for each sequence, so it waits for the weights to come from memory. Each
// weight is read once for all rows, in tiles of a few of its own; what comes before and after the product
// (norm, rotary turn, gate, residual) is done on the rows while they are in the nearest cache.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "vectors.h"

namespace {

constexpr int OUTS = WIDE == 16 ? 8 : 4;  // rows of a weight in a tile
constexpr int ROWS = WIDE == 16 ? 3 : 2;  // rows of x against them: their sums fill the registers
constexpr int64_t RUN = 768;              // numbers of a row at a time, so that a tile stays in the cache
constexpr int64_t ITEM_BYTES = 1 << 16;   // of weights: worth starting a thread's turn for

struct Args {
  const float* x;              // [rows, in]
  const float* norm;           // [in], or null: x as it is
  const float* weights[3];     // each [outs[i], in]
  const float* add;            // [rows, out] or null
  const float *cos, *sin;      // [rows, head_dim / 2], for the first `turned` heads of the output
  float* out;                  // [rows, out]
  int64_t outs[3];
  int64_t rows, in, gated, turned, head_dim;
  float eps;
};

inline Vector load_some(const float* p, int64_t n) {
  Vector v = {};
  std::memcpy(&v, p, n * sizeof(float));
  return v;
}

// Adds the dot products of M rows of x with a tile's rows, over n numbers. It asks for nothing ahead:
// the processor sees the runs by itself, and asking took a third of the bandwidth (measured).
template <int M>
inline void dots(const float* x, int64_t in, int64_t n, const float* const* w, float* found) {
  Vector sum[M][OUTS] = {};
  const int64_t whole = n / WIDE * WIDE;
  for (int64_t i = 0; i < whole; i += WIDE) {
    Vector z[M];
    for (int m = 0; m < M; m++) z[m] = load_wide(x + m * in + i);
    for (int o = 0; o < OUTS; o++) {
      const Vector y = load_wide(w[o] + i);
      for (int m = 0; m < M; m++) sum[m][o] += z[m] * y;
    }
  }
  if (whole < n)
    for (int o = 0; o < OUTS; o++) {
      const Vector y = load_some(w[o] + whole, n - whole);
      for (int m = 0; m < M; m++) sum[m][o] += load_some(x + m * in + whole, n - whole) * y;
    }
  // One sum a lane, in order; lanes behind the last sum add nothing.
  constexpr int VECTORS = (M * OUTS + WIDE - 1) / WIDE;
  Vector each[VECTORS][WIDE] = {};
  for (int i = 0; i < M * OUTS; i++) each[i / WIDE][i % WIDE] = sum[i / OUTS][i % OUTS];
  for (int i = 0; i < VECTORS; i++) {
    const Vector sums = load_wide(found + i * WIDE) + sums_of<WIDE / 2>(each[i]);
    std::memcpy(found + i * WIDE, &sums, sizeof(sums));
  }
}

inline float silu(float x) { return x / (1 + std::exp(-x)); }

// One tile: a few outputs of a weight, or half as many with their gates, for all rows of x.
void tile(const Args& a, const float* x, int64_t number, int64_t out_size, float* found) {
  int which = 0;
  const int64_t each = a.gated ? OUTS / 2 : OUTS;
  int64_t column = 0;  // where this weight's outputs begin
  while (number >= (a.outs[which] + each - 1) / each) {
    number -= (a.outs[which] + each - 1) / each;
    column += a.outs[which++];
  }
  const int64_t first = number * each, last = a.outs[which] - 1;
  const int64_t count = std::min(each, a.outs[which] - first);
  const float* w[OUTS];
  for (int n = 0; n < OUTS; n++) {
    const float* weight = a.gated && n >= each ? a.weights[1] : a.weights[which];
    w[n] = weight + std::min(first + n % each, last) * a.in;
  }
  std::fill_n(found, a.rows * OUTS + WIDE, 0.0f);
  for (int64_t at = 0; at < a.in; at += RUN) {
    const float* part[OUTS];
    for (int o = 0; o < OUTS; o++) part[o] = w[o] + at;
    const int64_t n = std::min(RUN, a.in - at);
    for (int64_t m = 0; m < a.rows; m += ROWS) {
      const float* from = x + m * a.in + at;
      switch (std::min<int64_t>(ROWS, a.rows - m)) {
        case 1: dots<1>(from, a.in, n, part, found + m * OUTS); break;
        case 2: dots<2>(from, a.in, n, part, found + m * OUTS); break;
        default: dots<ROWS>(from, a.in, n, part, found + m * OUTS);
      }
    }
  }
  for (int64_t m = 0; m < a.rows; m++)
    for (int64_t o = 0; o < count; o++) {
      const float* both = found + m * OUTS + o;
      const float value = a.gated ? silu(both[0]) * both[each] : both[0];
      const int64_t where = m * out_size + column + first + o;
      a.out[where] = a.add ? a.add[where] + value : value;
    }
}

void normalise(const Args& a, float* y) {
  for (int64_t m = 0; m < a.rows; m++) {
    const float* x = a.x + m * a.in;
    float squares = 0;
    for (int64_t i = 0; i < a.in; i++) squares += x[i] * x[i];
    const float scale = 1 / std::sqrt(squares / a.in + a.eps);
    for (int64_t i = 0; i < a.in; i++) y[m * a.in + i] = a.norm[i] * (x[i] * scale);
  }
}

void turn(const Args& a, int64_t out_size) {
  const int64_t half = a.head_dim / 2;
  for (int64_t m = 0; m < a.rows; m++)
    for (int64_t h = 0; h < a.turned; h++) {
      float* first = a.out + m * out_size + h * a.head_dim;
      const float *cos = a.cos + m * half, *sin = a.sin + m * half;
      for (int64_t i = 0; i < half; i++) {
        const float one = first[i], other = first[half + i];
        first[i] = one * cos[i] - other * sin[i];
        first[half + i] = other * cos[i] + one * sin[i];
      }
    }
}

// The whole product: norm before, weights by tile, turn after.
void multiply(const Args& a, int threads) {
  std::vector<float> normed(a.norm ? a.rows * a.in : 0);
  if (a.norm) normalise(a, normed.data());
  const float* in = a.norm ? normed.data() : a.x;
  const int64_t each = a.gated ? OUTS / 2 : OUTS;
  int64_t out_size = 0, tiles = 0;
  for (int i = 0; i < (a.gated ? 1 : 3); i++) {
    out_size += a.outs[i];
    tiles += (a.outs[i] + each - 1) / each;
  }
  const int64_t together = std::max<int64_t>(1, ITEM_BYTES / (OUTS * 4 * a.in));
  const int64_t items = (tiles + together - 1) / together;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    std::vector<float> found(a.rows * OUTS + WIDE);
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < items; i++)
      for (int64_t t = i * together; t < std::min(tiles, (i + 1) * together); t++)
        tile(a, in, t, out_size, found.data());
  }
  if (a.turned) turn(a, out_size);
}

// The attention kernel of paged_cpu.cpp, compiled for the sizes of the model.
typedef int Attend(const void*, const void*, const void*, void*, float*, const int32_t*,
                   const int32_t*, const int32_t*, const int32_t*, const int64_t*, float, int);

// As decode_step.py has it.
struct Layers {
  float* x;                       // [rows, hidden], in and out
  const float* const* weights;    // for each layer q, k, v, o, gate, up, down and the two norms
  const float *cos, *sin;
  float *keys, *values;           // of layer 0
  const int64_t* slots;           // [rows]
  Attend* attend;
  const int32_t *table, *row_seq, *row_first, *row_end;
  int64_t attend_sizes[11];       // rows, kv_heads, group, head_dim, block_size, strides, ...
  int64_t layers, layer_stride, hidden, inner;
  float eps, scale;
  int32_t threads;
};

// Puts the new keys and values where their slots are, and the queries side by side.
void spread(const Layers& a, const float* heads, float* q, float* keys, float* values) {
  const int64_t rows = a.attend_sizes[0], kv = a.attend_sizes[1], dim = a.attend_sizes[3];
  const int64_t q_size = kv * a.attend_sizes[2] * dim, size = q_size + 2 * kv * dim;
  for (int64_t m = 0; m < rows; m++) {
    const float* from = heads + m * size;
    std::memcpy(q + m * q_size, from, q_size * sizeof(float));
    const int64_t block = a.slots[m] / a.attend_sizes[4], offset = a.slots[m] % a.attend_sizes[4];
    for (int64_t h = 0; h < kv; h++) {
      const int64_t to =
          block * a.attend_sizes[6] + h * a.attend_sizes[7] + offset * a.attend_sizes[8];
      std::memcpy(keys + to, from + q_size + h * dim, dim * sizeof(float));
      std::memcpy(values + to, from + q_size + (kv + h) * dim, dim * sizeof(float));
    }
  }
}

}  // namespace

extern "C" void kvlib_few_rows(const float* x, const float* norm, const float* weight, float* out,
                               int64_t rows, int64_t in, int64_t out_size, float eps, int threads) {
  multiply({x, norm, {weight}, nullptr, nullptr, nullptr, out, {out_size}, rows, in, 0, 0, 0, eps},
           threads);
}

// All layers of a step; returns what the attention kernel does, 0 where all is well.
extern "C" int kvlib_all_layers(const Layers* step) {
  const Layers& a = *step;
  const int64_t rows = a.attend_sizes[0], kv = a.attend_sizes[1], group = a.attend_sizes[2];
  const int64_t dim = a.attend_sizes[3], q_size = kv * group * dim, size = q_size + 2 * kv * dim;
  std::vector<float> heads(rows * size), q(rows * q_size), seen(rows * q_size);
  std::vector<float> lse(rows * kv * group), inner(rows * a.inner);
  for (int64_t i = 0; i < a.layers; i++) {
    const float* const* w = a.weights + 9 * i;
    float *keys = a.keys + i * a.layer_stride, *values = a.values + i * a.layer_stride;
    multiply({a.x, w[7], {w[0], w[1], w[2]}, nullptr, a.cos, a.sin, heads.data(),
              {q_size, kv * dim, kv * dim}, rows, a.hidden, 0, kv * (group + 1), dim, a.eps},
             a.threads);
    spread(a, heads.data(), q.data(), keys, values);
    const int refused = a.attend(q.data(), keys, values, seen.data(), lse.data(), a.table, a.row_seq,
                                 a.row_first, a.row_end, a.attend_sizes, a.scale, a.threads);
    if (refused) return refused;
    multiply({seen.data(), nullptr, {w[3]}, a.x, nullptr, nullptr, a.x, {a.hidden}, rows, q_size},
             a.threads);
    multiply({a.x, w[8], {w[4], w[5]}, nullptr, nullptr, nullptr, inner.data(), {a.inner, a.inner},
              rows, a.hidden, 1, 0, 0, a.eps},
             a.threads);
    multiply({inner.data(), nullptr, {w[6]}, a.x, nullptr, nullptr, a.x, {a.hidden}, rows, a.inner},
             a.threads);
  }
  return 0;
}
