// Attention of single query tokens over blocks, read where they lie. See paged_cpu.py.
//
// A work item is one query token, one KV head and one run of positions. It goes through the keys once,
// in tiles of 16 tokens: scores, a running maximum, weights, weighted values. Items of one query are
// merged by their log-sum-exp. The queries of a KV head share every key that is read (G at a time).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

// Compiled once for each type, head_dim and group; 0 leaves a size to be given when it is called.
#ifndef HEAD_DIM
#define HEAD_DIM 0
#endif
#ifndef GROUP
#define GROUP 0
#endif
#ifndef TYPE
#define TYPE float  // or _Float16, or uint16_t for bfloat16
#endif

namespace {

using T = TYPE;

constexpr int TILE = 16;
constexpr float LOG2E = 1.44269504f;

struct Args {
  const void *q, *k, *v;
  void* out;
  float* lse;
  const int32_t *table, *row_seq, *row_first, *row_end;
  int64_t rows, kv_heads, group, head_dim, block_size;
  int64_t table_stride, block_stride, head_stride, token_stride;  // in numbers, not bytes
  float scale;
};

inline float load(const float* p) { return *p; }
inline float load(const _Float16* p) { return static_cast<float>(*p); }
inline float load(const uint16_t* p) {  // bfloat16: the upper half of a float32
  const uint32_t bits = static_cast<uint32_t>(*p) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
inline void store(float* p, float value) { *p = value; }
inline void store(_Float16* p, float value) { *p = static_cast<_Float16>(value); }
inline void store(uint16_t* p, float value) {  // round to nearest, ties to even
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  *p = static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// exp(x) for x <= 0, to about 1e-7: 2^n times a polynomial. A call of std::exp would not vectorise.
inline float exp_of(float x) {
  const float y = std::max(x, -87.0f) * LOG2E;
  const int32_t n = static_cast<int32_t>(y - 0.5f);
  const float f = y - static_cast<float>(n);
  float p = f * 1.535336188e-4f + 1.339887440e-3f;
  p = p * f + 9.618437357e-3f;
  p = p * f + 5.550332471e-2f;
  p = p * f + 2.402264791e-1f;
  p = p * f + 6.931472028e-1f;
  p = p * f + 1.0f;
  int32_t bits;
  std::memcpy(&bits, &p, 4);
  bits += n << 23;
  std::memcpy(&p, &bits, 4);
  return p;
}

inline void prefetch_row(const T* p, int64_t head_dim) {
  for (int64_t byte = 0; byte < head_dim * static_cast<int64_t>(sizeof(T)); byte += 64)
    __builtin_prefetch(reinterpret_cast<const char*>(p) + byte);
}

// Where the keys or values of a position lie, for one sequence and one KV head.
struct Side {
  const T* base;
  const int32_t* table;
  const Args& a;
  inline const T* at(int64_t position) const {
    const int64_t block = table[position / a.block_size];
    return base + block * a.block_stride + (position % a.block_size) * a.token_stride;
  }
};

void item(const Args& a, int64_t row, int64_t head, int64_t from, int64_t to, float* part) {
  constexpr int MAX_D = HEAD_DIM ? HEAD_DIM : 512, MAX_G = GROUP ? GROUP : 64;
  const int64_t dim = HEAD_DIM ? HEAD_DIM : a.head_dim, group = GROUP ? GROUP : a.group;
  const int32_t* table = a.table + a.row_seq[row] * a.table_stride;
  const Side keys{static_cast<const T*>(a.k) + head * a.head_stride, table, a};
  const Side values{static_cast<const T*>(a.v) + head * a.head_stride, table, a};
  alignas(64) float query[MAX_G][MAX_D], sum[MAX_G][MAX_D], score[MAX_G][TILE];
  float peak[MAX_G], total[MAX_G];
  const T* q = static_cast<const T*>(a.q) + (row * a.kv_heads + head) * group * dim;
  for (int g = 0; g < group; g++) {
    peak[g] = -INFINITY;
    total[g] = 0;
    for (int d = 0; d < dim; d++) query[g][d] = load(q + g * dim + d) * a.scale, sum[g][d] = 0;
  }
  for (int64_t at = from; at < to;) {
    const int64_t room = a.block_size - at % a.block_size;
    const int n = static_cast<int>(std::min<int64_t>({TILE, room, to - at}));
    const T* k = keys.at(at);
    const T* v = values.at(at);
    const int64_t ahead = std::min(at + 2 * TILE, to - 1);
    const int64_t ahead_room = a.block_size - ahead % a.block_size;
    const int ahead_n = static_cast<int>(std::min<int64_t>(n, ahead_room));
    const T* next_k = keys.at(ahead);
    const T* next_v = values.at(ahead);
    for (int t = 0; t < n; t++) {
      const T* __restrict key = k + t * a.token_stride;
      if (t < ahead_n) {
        prefetch_row(next_k + t * a.token_stride, dim);
        prefetch_row(next_v + t * a.token_stride, dim);
      }
      for (int g = 0; g < group; g++) {
        float dot = 0;
        for (int d = 0; d < dim; d++) dot += query[g][d] * load(key + d);
        score[g][t] = dot;
      }
    }
    for (int g = 0; g < group; g++) {
      for (int t = n; t < TILE; t++) score[g][t] = -INFINITY;
      float high = peak[g];
      for (int t = 0; t < TILE; t++) high = std::max(high, score[g][t]);
      if (high > peak[g]) {
        const float shrink = std::exp(peak[g] - high);
        total[g] *= shrink;
        for (int d = 0; d < dim; d++) sum[g][d] *= shrink;
        peak[g] = high;
      }
      float more = 0;
      for (int t = 0; t < TILE; t++) {
        const float weight = t < n ? exp_of(score[g][t] - high) : 0.0f;
        score[g][t] = weight;
        more += weight;
      }
      total[g] += more;
    }
    for (int t = 0; t < n; t++) {
      const T* __restrict value = v + t * a.token_stride;
      for (int g = 0; g < group; g++) {
        const float weight = score[g][t];
        for (int d = 0; d < dim; d++) sum[g][d] += weight * load(value + d);
      }
    }
    at += n;
  }
  for (int g = 0; g < group; g++) {
    float* mine = part + g * (dim + 2);
    mine[0] = peak[g];
    mine[1] = total[g];
    std::memcpy(mine + 2, sum[g], dim * sizeof(float));
  }
}

// Merges the parts of one query token and one KV head.
void merge(const Args& a, int64_t row, int64_t head, const float* parts, int64_t num_parts) {
  const int64_t dim = a.head_dim, step = a.group * (dim + 2);
  std::vector<float> whole(dim);
  for (int64_t g = 0; g < a.group; g++) {
    const float* first = parts + g * (dim + 2);
    const int64_t query = (row * a.kv_heads + head) * a.group + g;
    T* out = static_cast<T*>(a.out) + query * dim;
    float peak = -INFINITY, total = 0;
    for (int64_t p = 0; p < num_parts; p++) peak = std::max(peak, first[p * step]);
    std::fill(whole.begin(), whole.end(), 0.0f);
    for (int64_t p = 0; p < num_parts; p++) {
      const float* part = first + p * step;
      if (part[0] == -INFINITY) continue;
      const float weight = std::exp(part[0] - peak);
      total += part[1] * weight;
      for (int64_t d = 0; d < dim; d++) whole[d] += weight * part[2 + d];
    }
    a.lse[query] = total > 0 ? peak + std::log(total) : -INFINITY;
    const float share = total > 0 ? 1 / total : 0;
    for (int64_t d = 0; d < dim; d++) store(out + d, whole[d] * share);
  }
}

struct Item {
  int64_t row, head, from, to, part;
};

void run(const Args& a, int64_t split_tokens, int threads) {
  std::vector<Item> items;
  std::vector<int64_t> first(a.rows * a.kv_heads + 1);
  for (int64_t row = 0; row < a.rows; row++)
    for (int64_t head = 0; head < a.kv_heads; head++) {
      first[row * a.kv_heads + head] = static_cast<int64_t>(items.size());
      for (int64_t at = a.row_first[row]; at < a.row_end[row];) {
        // Runs end at multiples of the tile, so that no block of 16 is read in two.
        const int64_t cut = (at + split_tokens) / TILE * TILE;
        const int64_t to = std::min<int64_t>(std::max(cut, at + 1), a.row_end[row]);
        items.push_back({row, head, at, to, static_cast<int64_t>(items.size())});
        at = to;
      }
    }
  first.back() = static_cast<int64_t>(items.size());
  const int64_t part_size = a.group * (a.head_dim + 2), num_items = first.back();
  std::vector<float> parts(num_items * part_size);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (threads > 1)
  for (int64_t i = 0; i < num_items; i++) {
    const Item& x = items[i];
    item(a, x.row, x.head, x.from, x.to, parts.data() + x.part * part_size);
  }
  for (int64_t i = 0; i + 1 < static_cast<int64_t>(first.size()); i++)
    merge(a, i / a.kv_heads, i % a.kv_heads, parts.data() + first[i] * part_size,
             first[i + 1] - first[i]);
}

}  // namespace

// Returns 0, or 1 where the sizes are not those it was compiled for.
extern "C" int kvlib_paged_attention(const void* q, const void* k, const void* v, void* out,
                                     float* lse, const int32_t* table, const int32_t* row_seq,
                                     const int32_t* row_first, const int32_t* row_end,
                                     const int64_t* sizes, float scale, int threads) {
  const Args a{q,        k,        v,        out,      lse,      table,    row_seq, row_first, row_end,
               sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5], sizes[6], sizes[7],
               sizes[8], scale};
  const bool fits = HEAD_DIM ? a.head_dim == HEAD_DIM : a.head_dim <= 512;
  if (!fits || !(GROUP ? a.group == GROUP : a.group <= 64)) return 1;
  run(a, sizes[9], threads);
  return 0;
}
