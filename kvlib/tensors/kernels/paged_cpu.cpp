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
constexpr int64_t AHEAD = TILE;  // how many tokens before their use rows are asked for
constexpr int64_t LEAST_TOKENS = 256, ITEMS_PER_THREAD = 8;
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
constexpr int STEPS = HEAD_DIM / WIDE;
// How much is kept in registers at once; a group and its tokens share about half of them.
constexpr int TOKENS = GROUP <= 1 ? 8 : GROUP <= 4 ? 4 : 2;
constexpr int STRETCH = STEPS % 4 == 0 && GROUP <= 4 ? 4 : STEPS % 2 == 0 ? 2 : 1;
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

// Asks for a cache line of a row, once, when the vector that begins in it comes up. It is to come to
// the second cache: so many lines under way at once would fill the first one's queue.
inline void ask_for(const T* row, int i) {
  if (i * WIDE * sizeof(T) % 64 == 0) __builtin_prefetch(row + i * WIDE, 0, 2);
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
    // A score of minus infinity would leave exp(-87) behind, which is not nothing.
    const Vector weight = exp_of(score[i] - high);
    score[i] = score[i] > -INFINITY ? weight : Vector{};
    run.total += score[i];
  }
  return shrink;
}

// One KV head of one query token: its queries, and what they have gathered so far.
struct Head {
  Vector query[GROUP][STEPS], sum[GROUP][STEPS];
  Running run[GROUP];

  void begin(const Args& a, int64_t row, int64_t head) {
    const T* q = static_cast<const T*>(a.q) + (row * a.kv_heads + head) * GROUP * HEAD_DIM;
    for (int g = 0; g < GROUP; g++) {
      run[g] = Running();
      for (int i = 0; i < STEPS; i++) {
        query[g][i] = load_wide(q + g * HEAD_DIM + i * WIDE) * a.scale;
        sum[g][i] = Vector{};
      }
    }
  }

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

// The heads that one item takes at most: what they gather has to stay in the caches too.
constexpr int MAX_HEADS = std::clamp<int>((1 << 15) / sizeof(Head), 1, 8);

void item(const Args& a, int64_t row, int64_t head, int64_t heads, int64_t from, int64_t to,
          float* part) {
  const T* keys = static_cast<const T*>(a.k) + head * a.head_stride;
  const T* values = static_cast<const T*>(a.v) + head * a.head_stride;
  Head mine[MAX_HEADS];
  for (int64_t h = 0; h < heads; h++) mine[h].begin(a, row, head + h);
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
  std::vector<float> query(group * dim), weight(group * TILE), peak(group, -INFINITY);
  std::vector<float> sum(group * dim, 0.0f), total(group, 0.0f);
  const T* q = static_cast<const T*>(a.q) + (row * a.kv_heads + head) * group * dim;
  for (int64_t i = 0; i < group * dim; i++) query[i] = load(q + i) * a.scale;
  Walk walk(a, row, from);
  for (int64_t at = from; at < to; at += TILE) {
    const int n = static_cast<int>(std::min<int64_t>(TILE, to - at));
    int64_t where[TILE];
    for (int t = 0; t < n; t++) {
      where[t] = walk.next();
      for (int64_t g = 0; g < group; g++) {
        float dot = 0;
        for (int64_t d = 0; d < dim; d++) dot += query[g * dim + d] * load(keys + where[t] + d);
        weight[g * TILE + t] = dot;
      }
    }
    for (int64_t g = 0; g < group; g++) {
      float* mine = weight.data() + g * TILE;
      const float high = std::max(peak[g], *std::max_element(mine, mine + n));
      const float shrink = std::exp(peak[g] - high);
      peak[g] = high;
      total[g] *= shrink;
      for (int t = 0; t < n; t++) total[g] += mine[t] = std::exp(mine[t] - high);
      for (int64_t d = 0; d < dim; d++) sum[g * dim + d] *= shrink;
    }
    for (int t = 0; t < n; t++)
      for (int64_t g = 0; g < group; g++)
        for (int64_t d = 0; d < dim; d++)
          sum[g * dim + d] += weight[g * TILE + t] * load(values + where[t] + d);
  }
  for (int64_t g = 0; g < group; g++) {
    float* mine = part + g * (dim + 2);
    mine[0] = peak[g];
    mine[1] = total[g];
    std::memcpy(mine + 2, sum.data() + g * dim, dim * sizeof(float));
  }
}

#endif

// Merges the parts of one query token and one KV head, which lie `step` numbers apart.
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
  int64_t row, head, heads, from, to, part;
};

// How many heads an item takes: as many as make one run of memory of about 64 KiB in each block. A
// jump to another place costs more than any arithmetic here, and longer runs jump less often.
int64_t heads_together(const Args& a) {
  const int64_t head_bytes = a.block_size * a.token_stride * static_cast<int64_t>(sizeof(T));
  if (a.head_stride != a.block_size * a.token_stride) return 1;
  return std::clamp<int64_t>((1 << 16) / head_bytes, 1, std::min<int64_t>(a.kv_heads, MAX_HEADS));
}

// How many tokens an item takes: each should be worth starting, and each thread should find several.
int64_t tokens_together(const Args& a, int threads) {
  if (threads <= 1) return INT64_MAX / 2;
  int64_t seen = 0;
  for (int64_t row = 0; row < a.rows; row++) seen += std::max(0, a.row_end[row] - a.row_first[row]);
  const int64_t items = ITEMS_PER_THREAD * threads * heads_together(a);
  return std::max<int64_t>(LEAST_TOKENS, seen * a.kv_heads / items);
}

void run(const Args& a, int threads) {
  std::vector<Item> items;
  std::vector<int64_t> first_part(a.rows + 1);
  const int64_t together = heads_together(a), split_tokens = tokens_together(a, threads);
  int64_t parts = 0;
  for (int64_t row = 0; row < a.rows; row++) {
    first_part[row] = parts;
    for (int64_t at = a.row_first[row]; at < a.row_end[row]; parts++) {
      // Runs end at multiples of the tile, so that no block of 16 is read in two.
      const int64_t cut = (at + split_tokens) / TILE * TILE;
      const int64_t to = std::min<int64_t>(std::max(cut, at + 1), a.row_end[row]);
      for (int64_t head = 0; head < a.kv_heads; head += together)
        items.push_back({row, head, std::min(together, a.kv_heads - head), at, to, parts});
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
      merge(a, row, head, found.data() + first_part[row] * step + head * size,
            first_part[row + 1] - first_part[row], step);
}

// Whether every row names a sequence of the table, and positions whose blocks there are.
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
  run(a, threads);
  return 0;
}
