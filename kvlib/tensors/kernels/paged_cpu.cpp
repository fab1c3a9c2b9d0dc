// Attention of single query tokens over blocks, read where they lie. See paged_cpu.py.
//
// A work item is one query token, a few neighbouring KV heads and one run of positions. It goes through
// the keys once, in tiles of 16 tokens: scores, a running maximum, weights, weighted values. Items of
// one query are merged by their log-sum-exp. The queries of a KV head share every key that is read.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "heads.h"
#include "work_items.h"

// Compiled once for each type, too.
#ifndef TYPE
#define TYPE float  // or _Float16, or uint16_t for bfloat16
#endif

namespace {

using T = TYPE;

constexpr int64_t AHEAD = TILE;  // how many tokens before their use rows are asked for

struct Args {
  const void *q, *k, *v;
  void* out;
  float* lse;
  const int32_t *table, *row_seq, *row_first, *row_end;
  int64_t rows, kv_heads, group, head_dim, block_size;
  int64_t table_stride, block_stride, head_stride, token_stride;  // in numbers, not bytes
  float scale;
};

// Walks through positions one by one: where each one's row lies, without a division for each.
class Walk {
 public:
  Walk(const Args& a, int64_t row, int64_t position)
      : a_(a), table_(a.table + a.row_seq[row] * a.table_stride) {
    block_ = position / a.block_size;
    left_ = a.block_size - position % a.block_size;
    offset_ = start() + (a.block_size - left_) * a.token_stride;
  }
  // Head 0's row of the present position, as an offset into keys and values; goes to the next.
  inline int64_t next() {
    if (left_ == 0) {
      block_++;
      left_ = a_.block_size;
      offset_ = start();
    }
    const int64_t here = offset_;
    offset_ += a_.token_stride;
    left_--;
    return here;
  }

 private:
  int64_t start() const { return table_[block_] * a_.block_stride; }
  const Args& a_;
  const int32_t* table_;
  int64_t block_, left_, offset_;
};

#if HEAD_DIM

// Asks for a cache line of a row, once, when the vector that begins in it comes up. It is to come to
// the second cache: so many lines under way at once would fill the first one's queue.
inline void ask_for(const T* row, int i) {
  if (i * WIDE * sizeof(T) % 64 == 0) __builtin_prefetch(row + i * WIDE, 0, 2);
}

// One KV head of one query token, and how it takes in keys and values of this type.
struct Head : Gathered {
  // Takes in the n tokens whose rows lie at `where`; the other entries repeat one of them. With each
  // line that is used, the one of a later token at `soon` is asked for.
  void tile(const T* keys, const T* values, const int64_t* where, const int64_t* soon, int n) {
    // Scores: a few tokens at a time, so that each load of a query serves all of them.
    Vector dot[GROUP][TILE];
    for (int first = 0; first < TILE; first += TOKENS) {
      Vector x[GROUP][TOKENS] = {};
      for (int i = 0; i < STEPS; i++) {
        Vector k[TOKENS];
        for (int t = 0; t < TOKENS; t++) {
          k[t] = load_wide(keys + where[first + t] + i * WIDE);
          ask_for(keys + soon[first + t], i);
        }
        for (int g = 0; g < GROUP; g++)
          for (int t = 0; t < TOKENS; t++) x[g][t] += query[g][i] * k[t];
      }
      for (int g = 0; g < GROUP; g++)
        for (int t = 0; t < TOKENS; t++) dot[g][first + t] = x[g][t];
    }
    float shrink[GROUP];
    alignas(64) float weight[GROUP][TILE];
    for (int g = 0; g < GROUP; g++) {
      Vector score[TILE / WIDE];
      for (int i = 0; i < TILE / WIDE; i++) score[i] = sums_of<WIDE / 2>(dot[g] + i * WIDE);
      shrink[g] = weigh(score, n, run[g]);
      std::memcpy(weight[g], score, sizeof(score));
    }
    // Weighted values: a stretch of the head at a time stays in registers for the whole tile.
    for (int i = 0; i < STEPS; i += STRETCH) {
      Vector x[GROUP][STRETCH];
      for (int g = 0; g < GROUP; g++)
        for (int j = 0; j < STRETCH; j++) x[g][j] = sum[g][i + j] * shrink[g];
      for (int t = 0; t < n; t++) {
        Vector v[STRETCH];
        for (int j = 0; j < STRETCH; j++) {
          v[j] = load_wide(values + where[t] + (i + j) * WIDE);
          ask_for(values + soon[t], i + j);
        }
        for (int g = 0; g < GROUP; g++)
          for (int j = 0; j < STRETCH; j++) x[g][j] += weight[g][t] * v[j];
      }
      for (int g = 0; g < GROUP; g++)
        for (int j = 0; j < STRETCH; j++) sum[g][i + j] = x[g][j];
    }
  }
};

// The heads that one item takes at most: what they gather has to stay in the caches too.
constexpr int MAX_HEADS = std::clamp<int>((1 << 15) / sizeof(Head), 1, 8);

void item(const Args& a, int64_t row, int64_t head, int64_t heads, int64_t from, int64_t to,
          float* part) {
  const T* keys = static_cast<const T*>(a.k) + head * a.head_stride;
  const T* values = static_cast<const T*>(a.v) + head * a.head_stride;
  Head mine[MAX_HEADS];
  for (int64_t h = 0; h < heads; h++) mine[h].begin(queries<T>(a, row, head + h), a.scale);
  Walk walk(a, row, from), ahead(a, row, std::min(from + AHEAD, to - 1));
  int64_t left_ahead = std::max<int64_t>(0, to - from - AHEAD);
  for (int64_t at = from; at < to; at += TILE) {
    const int n = static_cast<int>(std::min<int64_t>(TILE, to - at));
    const int soon_n = static_cast<int>(std::min<int64_t>(TILE, left_ahead));
    int64_t where[TILE], soon[TILE];
    for (int t = 0; t < n; t++) where[t] = walk.next();
    for (int t = n; t < TILE; t++) where[t] = where[0];
    for (int t = 0; t < TILE; t++) soon[t] = t < soon_n ? ahead.next() : where[t];
    left_ahead -= soon_n;
    for (int64_t h = 0; h < heads; h++)
      mine[h].tile(keys + h * a.head_stride, values + h * a.head_stride, where, soon, n);
  }
  for (int64_t h = 0; h < heads; h++) mine[h].end(part + h * GROUP * (HEAD_DIM + 2));
}

#else

// Any sizes: the same, in plain loops, and one head at a time.
constexpr int MAX_HEADS = 1;

void item(const Args& a, int64_t row, int64_t head, int64_t, int64_t from, int64_t to, float* part) {
  const int64_t dim = a.head_dim, group = a.group;
  const T* keys = static_cast<const T*>(a.k) + head * a.head_stride;
  const T* values = static_cast<const T*>(a.v) + head * a.head_stride;
  GatheredInLoops mine(queries<T>(a, row, head), dim, group, a.scale);
  Walk walk(a, row, from);
  for (int64_t at = from; at < to; at += TILE) {
    const int n = static_cast<int>(std::min<int64_t>(TILE, to - at));
    int64_t where[TILE];
    for (int t = 0; t < n; t++) {
      where[t] = walk.next();
      for (int64_t g = 0; g < group; g++) {
        float dot = 0;
        for (int64_t d = 0; d < dim; d++) dot += mine.query[g * dim + d] * load(keys + where[t] + d);
        mine.weight[g * TILE + t] = dot;
      }
    }
    mine.weigh_tile(n);
    for (int t = 0; t < n; t++)
      for (int64_t g = 0; g < group; g++)
        for (int64_t d = 0; d < dim; d++)
          mine.sum[g * dim + d] += mine.weight[g * TILE + t] * load(values + where[t] + d);
  }
  mine.end(part);
}

#endif

// How many heads an item takes: as many as make one run of memory of about 64 KiB in each block. A
// jump to another place costs more than any arithmetic here, and longer runs jump less often.
int64_t heads_together(const Args& a) {
  const int64_t head_bytes = a.block_size * a.token_stride * static_cast<int64_t>(sizeof(T));
  if (a.head_stride != a.block_size * a.token_stride) return 1;
  return std::clamp<int64_t>((1 << 16) / head_bytes, 1, std::min<int64_t>(a.kv_heads, MAX_HEADS));
}

}  // namespace

// Returns 0; 1 where the sizes are not those it was compiled for; 2 where a row or a block does not
// exist. Then nothing is written.
extern "C" int kvlib_paged_attention(const void* q, const void* k, const void* v, void* out,
                                     float* lse, const int32_t* table, const int32_t* row_seq,
                                     const int32_t* row_first, const int32_t* row_end,
                                     const int64_t* sizes, float scale, int threads) {
  const Args a{q,        k,        v,        out,      lse,      table,    row_seq, row_first, row_end,
               sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], sizes[6], sizes[7],
               sizes[8], scale};
  if (HEAD_DIM && (a.head_dim != HEAD_DIM || a.group != GROUP)) return 1;
  if (!all_there(a, sizes[9], sizes[10])) return 2;
  // A tile is one block of 16.
  run<T>(a, threads, heads_together(a), TILE, item);
  return 0;
}
