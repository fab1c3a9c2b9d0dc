// What the queries of one KV head gather while its keys go by: in vectors where the sizes are constants,
// in plain loops for all others. The kernels for numbers and for codes say how keys are read.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "vectors.h"

// Compiled once for each head_dim and group of query heads; 0 leaves a size to be given when called.
#ifndef HEAD_DIM
#define HEAD_DIM 0
#endif
#ifndef GROUP
#define GROUP 0
#endif

namespace {

// The queries of one KV head of a query token, one behind the other.
template <class T, class Args>
inline const T* queries(const Args& a, int64_t row, int64_t head) {
  return static_cast<const T*>(a.q) + (row * a.kv_heads + head) * a.group * a.head_dim;
}

#if HEAD_DIM

constexpr int STEPS = HEAD_DIM / WIDE;
// How much is kept in registers at once; a group and its tokens share about half of them.
constexpr int TOKENS = GROUP <= 1 ? 8 : GROUP <= 4 ? 4 : 2;
constexpr int STRETCH = STEPS % 4 == 0 && GROUP <= 4 ? 4 : STEPS % 2 == 0 ? 2 : 1;
static_assert(HEAD_DIM % WIDE == 0, "a fast head_dim is a multiple of the vector width");

// One KV head of one query token: its queries, and what they have gathered so far.
struct Gathered {
  Vector query[GROUP][STEPS], sum[GROUP][STEPS];
  Running run[GROUP];

  template <class T>
  void begin(const T* q, float scale) {
    for (int g = 0; g < GROUP; g++) {
      run[g] = Running();
      for (int i = 0; i < STEPS; i++) {
        query[g][i] = load_wide(q + g * HEAD_DIM + i * WIDE) * scale;
        sum[g][i] = Vector{};
      }
    }
  }

  // Gives what `merge` takes: for each query the highest score, the sum of weights, weighted values.
  void end(float* part) const {
    for (int g = 0; g < GROUP; g++) {
      float* mine = part + g * (HEAD_DIM + 2);
      mine[0] = run[g].peak;
      mine[1] = 0;
      for (int lane = 0; lane < WIDE; lane++) mine[1] += run[g].total[lane];
      std::memcpy(mine + 2, sum[g], HEAD_DIM * sizeof(float));
    }
  }
};

#endif

// The same for any sizes.
struct GatheredInLoops {
  const int64_t dim, group;
  std::vector<float> query, weight, peak, sum, total;

  template <class T>
  GatheredInLoops(const T* q, int64_t head_dim, int64_t num_queries, float scale)
      : dim(head_dim), group(num_queries), query(group * dim), weight(group * TILE),
        peak(group, -INFINITY), sum(group * dim, 0.0f), total(group, 0.0f) {
    for (int64_t i = 0; i < group * dim; i++) query[i] = load(q + i) * scale;
  }

  // Turns the scores of a tile's n tokens into weights; what was gathered before shrinks.
  void weigh_tile(int n) {
    for (int64_t g = 0; g < group; g++) {
      float* mine = weight.data() + g * TILE;
      const float high = std::max(peak[g], *std::max_element(mine, mine + n));
      const float shrink = std::exp(peak[g] - high);
      peak[g] = high;
      total[g] *= shrink;
      for (int t = 0; t < n; t++) total[g] += mine[t] = std::exp(mine[t] - high);
      for (int64_t d = 0; d < dim; d++) sum[g * dim + d] *= shrink;
    }
  }

  void end(float* part) const {
    for (int64_t g = 0; g < group; g++) {
      float* mine = part + g * (dim + 2);
      mine[0] = peak[g];
      mine[1] = total[g];
      std::memcpy(mine + 2, sum.data() + g * dim, dim * sizeof(float));
    }
  }
};

}  // namespace
