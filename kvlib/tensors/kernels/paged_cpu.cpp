// Attention of single query tokens over blocks, read where they lie. See paged_cpu.py.
//
// A work item is one query token, one KV head and one run of positions. It goes through the keys once,
// in tiles of 16 tokens: scores, a running maximum, weights, weighted values. Items of one query are
// merged by their log-sum-exp. The queries of a KV head share every key that is read (G at a time).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
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
constexpr int64_t AHEAD = 2 * TILE;  // how many tokens before their use rows are asked for
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

// Walks through positions one by one: the address of each one's row, without a division for each.
class Rows {
 public:
  Rows(const Side& side, int64_t position) : side_(side), position_(position) { look_up(); }
  inline const T* next() {
    if (left_ == 0) look_up();
    const T* row = row_;
    row_ += side_.a.token_stride;
    position_++;
    left_--;
    return row;
  }

 private:
  void look_up() {
    row_ = side_.at(position_);
    left_ = side_.a.block_size - position_ % side_.a.block_size;
  }
  const Side& side_;
  int64_t position_, left_ = 0;
  const T* row_ = nullptr;
};

// What one query keeps while its keys go by: the running maximum, sum of weights, weighted values.
struct Running {
  float peak = -INFINITY, total = 0;
};

// Turns the tile's scores into weights; returns the factor by which earlier sums shrink.
inline float weigh(float* score, int n, Running& run) {
  float high = run.peak;
  for (int t = 0; t < TILE; t++) {
    score[t] = t < n ? score[t] : -INFINITY;
    high = std::max(high, score[t]);
  }
  const float shrink = high > run.peak ? std::exp(run.peak - high) : 1.0f;
  float more = 0;
  for (int t = 0; t < TILE; t++) {
    score[t] = t < n ? exp_of(score[t] - high) : 0.0f;
    more += score[t];
  }
  run.peak = high;
  run.total = run.total * shrink + more;
  return shrink;
}

#if HEAD_DIM

// Vectors as wide as this processor's; their arithmetic is the compiler's (GCC and Clang alike).
#if defined(__AVX512F__)
constexpr int WIDE = 16;
#elif defined(__AVX__)
constexpr int WIDE = 8;
#else
constexpr int WIDE = 4;
#endif
typedef float Vector __attribute__((vector_size(WIDE * 4)));
typedef float Loose __attribute__((vector_size(WIDE * 4), aligned(4), may_alias));
constexpr int STEPS = HEAD_DIM / WIDE;
static_assert(HEAD_DIM % WIDE == 0, "a fast head_dim is a multiple of the vector width");

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

void item(const Args& a, int64_t row, int64_t head, int64_t from, int64_t to, float* part) {
  const int32_t* table = a.table + a.row_seq[row] * a.table_stride;
  const Side keys{static_cast<const T*>(a.k) + head * a.head_stride, table, a};
  const Side values{static_cast<const T*>(a.v) + head * a.head_stride, table, a};
  Vector query[GROUP][STEPS], sum[GROUP][STEPS] = {};
  alignas(64) float score[GROUP][TILE];
  Running run[GROUP];
  const T* q = static_cast<const T*>(a.q) + (row * a.kv_heads + head) * GROUP * HEAD_DIM;
  for (int g = 0; g < GROUP; g++)
    for (int i = 0; i < STEPS; i++) query[g][i] = load_wide(q + g * HEAD_DIM + i * WIDE) * a.scale;
  Rows next_key(keys, from), next_value(values, from);
  Rows ahead_key(keys, std::min(from + AHEAD, to - 1)), ahead_value(values, std::min(from + AHEAD, to - 1));
  int64_t ahead = std::max<int64_t>(0, to - from - AHEAD);
  for (int64_t at = from; at < to; at += TILE) {
    const int n = static_cast<int>(std::min<int64_t>(TILE, to - at));
    const T *key[TILE], *value[TILE];
    for (int t = 0; t < TILE; t++) {
      key[t] = t < n ? next_key.next() : key[0];
      value[t] = t < n ? next_value.next() : value[0];
      if (ahead > 0) {
        prefetch_row(ahead_key.next(), HEAD_DIM);
        prefetch_row(ahead_value.next(), HEAD_DIM);
        ahead--;
      }
    }
    float shrink[GROUP];
    for (int g = 0; g < GROUP; g++) {
      for (int block = 0; block < TILE; block += WIDE) {
        Vector dot[WIDE];
        for (int t = 0; t < WIDE; t++) {
          Vector x = query[g][0] * load_wide(key[block + t]);
          for (int i = 1; i < STEPS; i++) x += query[g][i] * load_wide(key[block + t] + i * WIDE);
          dot[t] = x;
        }
        const Vector scores = sums_of<WIDE / 2>(dot);
        std::memcpy(score[g] + block, &scores, sizeof(scores));
      }
      shrink[g] = weigh(score[g], n, run[g]);
    }
    for (int i = 0; i < STEPS; i++) {
      Vector x[GROUP];
      for (int g = 0; g < GROUP; g++) x[g] = sum[g][i] * shrink[g];
      for (int t = 0; t < n; t++) {
        const Vector v = load_wide(value[t] + i * WIDE);
        for (int g = 0; g < GROUP; g++) x[g] += score[g][t] * v;
      }
      for (int g = 0; g < GROUP; g++) sum[g][i] = x[g];
    }
  }
  for (int g = 0; g < GROUP; g++) {
    float* mine = part + g * (HEAD_DIM + 2);
    mine[0] = run[g].peak;
    mine[1] = run[g].total;
    std::memcpy(mine + 2, sum[g], HEAD_DIM * sizeof(float));
  }
}

#else

// Any sizes: the same, in plain loops.
void item(const Args& a, int64_t row, int64_t head, int64_t from, int64_t to, float* part) {
  const int64_t dim = a.head_dim, group = a.group;
  const int32_t* table = a.table + a.row_seq[row] * a.table_stride;
  const Side keys{static_cast<const T*>(a.k) + head * a.head_stride, table, a};
  const Side values{static_cast<const T*>(a.v) + head * a.head_stride, table, a};
  std::vector<float> query(group * dim), sum(group * dim, 0.0f), score(group * TILE);
  std::vector<Running> run(group);
  const T* q = static_cast<const T*>(a.q) + (row * a.kv_heads + head) * group * dim;
  for (int64_t i = 0; i < group * dim; i++) query[i] = load(q + i) * a.scale;
  Rows next_key(keys, from), next_value(values, from);
  for (int64_t at = from; at < to; at += TILE) {
    const int n = static_cast<int>(std::min<int64_t>(TILE, to - at));
    for (int t = 0; t < n; t++) {
      const T* key = next_key.next();
      for (int64_t g = 0; g < group; g++) {
        float dot = 0;
        for (int64_t d = 0; d < dim; d++) dot += query[g * dim + d] * load(key + d);
        score[g * TILE + t] = dot;
      }
    }
    for (int64_t g = 0; g < group; g++) {
      const float shrink = weigh(score.data() + g * TILE, n, run[g]);
      for (int64_t d = 0; d < dim; d++) sum[g * dim + d] *= shrink;
    }
    for (int t = 0; t < n; t++) {
      const T* value = next_value.next();
      for (int64_t g = 0; g < group; g++) {
        const float weight = score[g * TILE + t];
        for (int64_t d = 0; d < dim; d++) sum[g * dim + d] += weight * load(value + d);
      }
    }
  }
  for (int64_t g = 0; g < group; g++) {
    float* mine = part + g * (dim + 2);
    mine[0] = run[g].peak;
    mine[1] = run[g].total;
    std::memcpy(mine + 2, sum.data() + g * dim, dim * sizeof(float));
  }
}

#endif

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
  if (HEAD_DIM && (a.head_dim != HEAD_DIM || a.group != GROUP)) return 1;
  run(a, sizes[9], threads);
  return 0;
}
