// How the work of a call is cut into items and put together again, whatever the keys are stored as.
// `Args` has the query rows, the tables and the sizes under the same names in every kernel.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

constexpr int64_t LEAST_TOKENS = 256, ITEMS_PER_THREAD = 8;

inline void store(float* p, float value) { *p = value; }
inline void store(_Float16* p, float value) { *p = static_cast<_Float16>(value); }
inline void store(uint16_t* p, float value) {  // round to nearest, ties to even
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  *p = static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Merges the parts of one query token and one KV head, which lie `step` numbers apart.
template <class T, class Args>
void merge(const Args& a, int64_t row, int64_t head, const float* parts, int64_t num_parts,
           int64_t step) {
  const int64_t dim = a.head_dim;
  for (int64_t g = 0; g < a.group; g++) {
    const float* first = parts + g * (dim + 2);
    const int64_t query = (row * a.kv_heads + head) * a.group + g;
    T* out = static_cast<T*>(a.out) + query * dim;
    float peak = -INFINITY, total = 0;
    for (int64_t p = 0; p < num_parts; p++) peak = std::max(peak, first[p * step]);
    std::vector<float> whole(dim, 0.0f);
    for (int64_t p = 0; p < num_parts; p++) {
      const float* part = first + p * step;
      if (part[1] == 0) continue;  // it saw nothing; its peak says so too, but not where all is NaN
      const float weight = std::exp(part[0] - peak);
      total += part[1] * weight;
      for (int64_t d = 0; d < dim; d++) whole[d] += weight * part[2 + d];
    }
    a.lse[query] = total == 0 ? -INFINITY : peak + std::log(total);
    const float share = total == 0 ? 0 : 1 / total;
    for (int64_t d = 0; d < dim; d++) store(out + d, whole[d] * share);
  }
}

struct Item {
  int64_t row, head, heads, from, to, part;
};

// How many tokens an item takes: each should be worth starting, and each thread should find several.
template <class Args>
int64_t tokens_together(const Args& a, int64_t heads_together, int threads) {
  if (threads <= 1) return INT64_MAX / 2;
  int64_t seen = 0;
  for (int64_t row = 0; row < a.rows; row++) seen += std::max(0, a.row_end[row] - a.row_first[row]);
  const int64_t items = ITEMS_PER_THREAD * threads * heads_together;
  return std::max<int64_t>(LEAST_TOKENS, seen * a.kv_heads / items);
}

// Does all items and merges them: T is the type of the output. An item takes `heads_together` heads, and
// runs end at multiples of `multiple`, so that nothing is read in two that is best read whole.
template <class T, class Args, class Do>
void run(const Args& a, int threads, int64_t heads_together, int64_t multiple, Do item) {
  std::vector<Item> items;
  std::vector<int64_t> first_part(a.rows + 1);
  const int64_t split_tokens = tokens_together(a, heads_together, threads);
  int64_t parts = 0;
  for (int64_t row = 0; row < a.rows; row++) {
    first_part[row] = parts;
    for (int64_t at = a.row_first[row]; at < a.row_end[row]; parts++) {
      const int64_t cut = (at + split_tokens) / multiple * multiple;
      const int64_t to = std::min<int64_t>(std::max(cut, at + 1), a.row_end[row]);
      for (int64_t head = 0; head < a.kv_heads; head += heads_together)
        items.push_back({row, head, std::min(heads_together, a.kv_heads - head), at, to, parts});
      at = to;
    }
  }
  first_part[a.rows] = parts;
  const int64_t size = a.group * (a.head_dim + 2), step = a.kv_heads * size;
  const int64_t num_items = static_cast<int64_t>(items.size());
  std::vector<float> found(parts * step);
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (threads > 1)
  for (int64_t i = 0; i < num_items; i++) {
    const Item& x = items[i];
    item(a, x.row, x.head, x.heads, x.from, x.to, found.data() + x.part * step + x.head * size);
  }
  for (int64_t row = 0; row < a.rows; row++)
    for (int64_t head = 0; head < a.kv_heads; head++)
      merge<T>(a, row, head, found.data() + first_part[row] * step + head * size,
            first_part[row + 1] - first_part[row], step);
}

// Whether every row names a sequence of the table, and positions whose blocks there are.
template <class Args>
bool all_there(const Args& a, int64_t num_seqs, int64_t num_blocks) {
  for (int64_t row = 0; row < a.rows; row++) {
    const int64_t seq = a.row_seq[row], first = a.row_first[row], end = a.row_end[row];
    if (first >= end) continue;
    if (seq < 0 || seq >= num_seqs || first < 0 || end > a.table_stride * a.block_size) return false;
    const int32_t* table = a.table + seq * a.table_stride;
    for (int64_t i = first / a.block_size; i <= (end - 1) / a.block_size; i++)
      if (table[i] < 0 || table[i] >= num_blocks) return false;
  }
  return true;
}

}  // namespace
