// Attention of single query tokens over blocks of codes, read where they lie. See quantized_cpu.py.
//
// As paged_cpu.cpp, but a vector of keys or values is made in registers, just before it is used:
// minimum + scale * code. No number of the cache is ever written down in full precision.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "codes.h"
#include "heads.h"
#include "work_items.h"

namespace {

constexpr int64_t MOST_HEADS = 8;  // an item takes so many

struct Args {
  const float* q;
  Side side[2];  // keys, values
  void* out;
  float* lse;
  const int32_t *table, *row_seq, *row_first, *row_end;
  int64_t rows, kv_heads, group, head_dim, block_size, table_stride, num_seqs;
  float scale;
};

inline int64_t scales_in_block(const Args& a, const Side& s) {
  return s.channel ? a.head_dim : a.block_size * (a.head_dim / s.group);
}

// Goes through a run of positions block by block: calls with the block and its tokens [t0, t1).
template <class Call>
inline void each_block(const Args& a, int64_t row, int64_t from, int64_t to, Call call) {
  const int32_t* table = a.table + a.row_seq[row] * a.table_stride;
  for (int64_t i = from / a.block_size; i * a.block_size < to; i++) {
    const int64_t first = i * a.block_size;
    const bool more = (i + 1) * a.block_size < to;
    call(table[i], more ? table[i + 1] : -1, std::max<int64_t>(from - first, 0),
         std::min(to - first, a.block_size));
  }
}

// Any sizes, in plain loops.
void general(const Args& a, int64_t row, int64_t head, int64_t from, int64_t to, float* part) {
  const int64_t dim = a.head_dim, group = a.group;
  GatheredInLoops mine(queries<float>(a, row, head), dim, group, a.scale);
  std::vector<float> numbers(dim);
  Scales scales[2];
  each_block(a, row, from, to, [&](int64_t block, int64_t, int64_t t0, int64_t t1) {
    const uint8_t* data[2];
    for (int i = 0; i < 2; i++) {
      data[i] = a.side[i].data + block * a.side[i].block_stride + head * a.side[i].head_stride;
      scales[i].load(a.side[i], data[i], scales_in_block(a, a.side[i]));
    }
    for (int64_t at = t0; at < t1; at += TILE) {
      const int n = static_cast<int>(std::min<int64_t>(TILE, t1 - at));
      for (int t = 0; t < n; t++) {
        for (int64_t d = 0; d < dim; d++)
          numbers[d] = number_at(a.side[0], data[0], scales[0], at + t, d, dim);
        for (int64_t g = 0; g < group; g++) {
          float dot = 0;
          for (int64_t d = 0; d < dim; d++) dot += mine.query[g * dim + d] * numbers[d];
          mine.weight[g * TILE + t] = dot;
        }
      }
      mine.weigh_tile(n);
      for (int t = 0; t < n; t++) {
        for (int64_t d = 0; d < dim; d++)
          numbers[d] = number_at(a.side[1], data[1], scales[1], at + t, d, dim);
        for (int64_t g = 0; g < group; g++)
          for (int64_t d = 0; d < dim; d++)
            mine.sum[g * dim + d] += mine.weight[g * TILE + t] * numbers[d];
      }
    }
  });
  mine.end(part);
}

#if HEAD_DIM

// One KV head of one query token, and how it takes in keys and values of each format.
struct Head : Gathered {
  // The scores of n tokens from `first` on; those behind are of the first token again.
  template <int KIND, bool CHANNEL>
  static void scores(Head& h, const Block& keys, int64_t first, int n, Vector (*score)[TILE / WIDE]) {
    Vector dot[GROUP][TILE];
    int64_t token[TILE];
    for (int t = 0; t < TILE; t++) token[t] = first + (t < n ? t : 0);
    for (int t0 = 0; t0 < TILE; t0 += TOKENS) {
      Vector x[GROUP][TOKENS] = {};
      for (int i = 0; i < STEPS; i++) {
        Vector k[TOKENS];
        for (int t = 0; t < TOKENS; t++)
          k[t] = keys.at<KIND, CHANNEL>(token[t0 + t], i);
        for (int g = 0; g < GROUP; g++)
          for (int t = 0; t < TOKENS; t++) x[g][t] += h.query[g][i] * k[t];
      }
      for (int g = 0; g < GROUP; g++)
        for (int t = 0; t < TOKENS; t++) dot[g][t0 + t] = x[g][t];
    }
    for (int g = 0; g < GROUP; g++)
      for (int i = 0; i < TILE / WIDE; i++) score[g][i] = sums_of<WIDE / 2>(dot[g] + i * WIDE);
  }

  template <int KIND, bool CHANNEL>
  static void add(Head& h, const Block& values, int64_t first, int n, const float (*weight)[TILE],
                  const float* shrink) {
    for (int i = 0; i < STEPS; i += STRETCH) {
      Vector x[GROUP][STRETCH];
      for (int g = 0; g < GROUP; g++)
        for (int j = 0; j < STRETCH; j++) x[g][j] = h.sum[g][i + j] * shrink[g];
      for (int t = 0; t < n; t++)
        for (int j = 0; j < STRETCH; j++) {
          const Vector v = values.at<KIND, CHANNEL>(first + t, i + j);
          for (int g = 0; g < GROUP; g++) x[g][j] += weight[g][t] * v;
        }
      for (int g = 0; g < GROUP; g++)
        for (int j = 0; j < STRETCH; j++) h.sum[g][i + j] = x[g][j];
    }
  }
};

using Score = void (*)(Head&, const Block&, int64_t, int, Vector (*)[TILE / WIDE]);
using Add = void (*)(Head&, const Block&, int64_t, int, const float (*)[TILE], const float*);

template <bool CHANNEL>
std::pair<Score, Add> made_for(const Side& s) {
  if (s.fp8) return {Head::scores<0, CHANNEL>, Head::add<0, CHANNEL>};
  if (s.bits == 8) return {Head::scores<8, CHANNEL>, Head::add<8, CHANNEL>};
  if (s.bits == 4) return {Head::scores<4, CHANNEL>, Head::add<4, CHANNEL>};
  return {Head::scores<2, CHANNEL>, Head::add<2, CHANNEL>};
}

std::pair<Score, Add> made_for(const Side& s) {
  return s.channel ? made_for<true>(s) : made_for<false>(s);
}

void fast(const Args& a, int64_t row, int64_t head, int64_t heads, int64_t from, int64_t to,
          float* part) {
  const Side &keys = a.side[0], &values = a.side[1];
  const Score score_of = made_for(keys).first;
  const Add add = made_for(values).second;
  Head mine[MOST_HEADS];
  Scales scales[2];
  for (int64_t h = 0; h < heads; h++) mine[h].begin(queries<float>(a, row, head + h), a.scale);
  each_block(a, row, from, to, [&](int64_t block, int64_t next, int64_t t0, int64_t t1) {
    for (int64_t h = 0; h < heads; h++) {
      Block read[2];
      for (int i = 0; i < 2; i++) {
        const Side& s = a.side[i];
        const uint8_t* data = s.data + block * s.block_stride + (head + h) * s.head_stride;
        // The same head of the next block comes while this one is used.
        if (next >= 0)
          for (int64_t line = 0; line < s.head_stride; line += 64)
            __builtin_prefetch(data + (next - block) * s.block_stride + line, 0, 3);
        scales[i].load(s, data, scales_in_block(a, s));
        read[i] = {data, scales[i].scale.data(), scales[i].low.data(),
                   static_cast<int>(HEAD_DIM / s.group), {}};
        for (int step = 0; step < STEPS; step++)
          read[i].group_of[step] = static_cast<int>(step * WIDE / s.group);
      }
      for (int64_t at = t0; at < t1; at += TILE) {
        const int n = static_cast<int>(std::min<int64_t>(TILE, t1 - at));
        Vector score[GROUP][TILE / WIDE];
        float shrink[GROUP];
        alignas(64) float weight[GROUP][TILE];
        score_of(mine[h], read[0], at, n, score);
        for (int g = 0; g < GROUP; g++) {
          shrink[g] = weigh(score[g], n, mine[h].run[g]);
          std::memcpy(weight[g], score[g], sizeof(weight[g]));
        }
        add(mine[h], read[1], at, n, weight, shrink);
      }
    }
  });
  for (int64_t h = 0; h < heads; h++) mine[h].end(part + h * GROUP * (HEAD_DIM + 2));
}

#endif

void item(const Args& a, int64_t row, int64_t head, int64_t heads, int64_t from, int64_t to,
          float* part) {
#if HEAD_DIM
  if (whole_vectors(a.side[0]) && whole_vectors(a.side[1]))
    return fast(a, row, head, heads, from, to, part);
#endif
  for (int64_t h = 0; h < heads; h++)
    general(a, row, head + h, from, to, part + h * a.group * (a.head_dim + 2));
}

Side side_of(const uint8_t* data, const int64_t* n, const float* f) {
  return {data, n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9], n[10], n[11], f[0], f[1]};
}

}  // namespace

// Returns 0; 1 where the sizes are not those it was compiled for; 2 where a row or a block does not
// exist. Then nothing is written.
extern "C" int kvlib_quantized_attention(const float* q, const uint8_t* k, const uint8_t* v,
                                         float* out, float* lse, const int32_t* table,
                                         const int32_t* row_seq, const int32_t* row_first,
                                         const int32_t* row_end, const int64_t* sizes,
                                         const int64_t* sides, const float* numbers, float scale,
                                         int threads) {
  const Args a{q,        {side_of(k, sides, numbers), side_of(v, sides + 12, numbers + 2)},
               out,      lse,      table,    row_seq,  row_first, row_end,  sizes[0],
               sizes[1], sizes[2], sizes[3], sizes[4], sizes[5],  sizes[6], scale};
  if (HEAD_DIM && (a.head_dim != HEAD_DIM || a.group != GROUP)) return 1;
  if (!all_there(a, a.num_seqs, std::min(a.side[0].num_blocks, a.side[1].num_blocks))) return 2;
  run<float>(a, threads, MOST_HEADS, a.block_size, item);
  return 0;
}
