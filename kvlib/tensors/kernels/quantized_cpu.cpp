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
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "vectors.h"
#include "work_items.h"

// Compiled once for each head_dim and group of query heads; 0 leaves both to be given when called.
#ifndef HEAD_DIM
#define HEAD_DIM 0
#endif
#ifndef GROUP
#define GROUP 0
#endif

namespace {

constexpr int64_t MOST_HEADS = 8;  // an item takes so many

// A format and where its blocks are; the order of these numbers is that of quantized_cpu.py.
struct Side {
  const uint8_t* data;
  int64_t num_blocks, block_stride, head_stride;           // in bytes
  int64_t row_bytes, scale_offset, num_scales, group;      // group: numbers of a row with one scale
  int64_t bits, fp8, channel, has_minimum, scale_type;     // scale_type: 0 static, 1, 2 and 4 bytes
  float zero, scale;                                       // the code of zero; a static scale
};

struct Args {
  const float* q;
  Side side[2];  // keys, values
  void* out;
  float* lse;
  const int32_t *table, *row_seq, *row_first, *row_end;
  int64_t rows, kv_heads, group, head_dim, block_size, table_stride, num_seqs;
  float scale;
};

// Scales and minima of one block of one head as float32, wherever they came from.
struct Scales {
  std::vector<float> scale, low;

  void load(const Side& s, const uint8_t* block, int64_t count) {
    scale.resize(count);
    low.resize(count);
    if (s.scale_type == 0) std::fill(scale.begin(), scale.end(), s.scale);
    if (s.scale_type) widen(s.scale_type, block + s.scale_offset, count, scale.data());
    if (s.has_minimum)
      widen(s.scale_type, block + s.scale_offset + count * s.scale_type, count, low.data());
    else
      for (int64_t i = 0; i < count; i++) low[i] = -s.zero * scale[i];
  }

 private:
  template <class Stored>
  static float number(const uint8_t* from) {
    Stored stored;
    std::memcpy(&stored, from, sizeof(stored));
    if constexpr (sizeof(Stored) == 1) return std::ldexp(1.0f, stored);
    return static_cast<float>(stored);
  }
  template <class Stored>
  static void widen(const uint8_t* from, int64_t count, float* to) {
    int64_t i = 0;
    if constexpr (sizeof(Stored) == 2) {  // sixteen at a time, which the compiler does not see itself
      typedef _Float16 Halves __attribute__((vector_size(32), aligned(1), may_alias));
      typedef float Floats __attribute__((vector_size(64), aligned(4), may_alias));
      for (; i + 16 <= count; i += 16)
        *reinterpret_cast<Floats*>(to + i) =
            __builtin_convertvector(*reinterpret_cast<const Halves*>(from + 2 * i), Floats);
    }
    for (; i < count; i++) to[i] = number<Stored>(from + i * sizeof(Stored));
  }
  static void widen(int64_t type, const uint8_t* from, int64_t count, float* to) {
    if (type == 4) return widen<float>(from, count, to);
    if (type == 2) return widen<_Float16>(from, count, to);
    widen<int8_t>(from, count, to);
  }
};

// e4m3: where its exponent is 0 the rest counts in steps of 2^-9, else it gets float32's exponent. Not
// by a product with 2^120: sums may be reordered here, and a scale times 2^120 is infinite.
inline float of_fp8(uint8_t code) {
  const int32_t rest = code & 0x7f;
  float number = static_cast<float>(rest) * 0x1p-9f;
  if (rest & 0x78) {
    const int32_t bits = (rest << 20) + (120 << 23);
    std::memcpy(&number, &bits, 4);
  }
  return code & 0x80 ? -number : number;
}

// The general way to one number of a block: any sizes, any group.
inline float number_at(const Side& s, const uint8_t* block, const Scales& found, int64_t token,
                       int64_t d, int64_t head_dim) {
  const uint8_t byte = block[token * s.row_bytes + d % s.row_bytes];
  const int64_t shift = s.bits * (d / s.row_bytes);
  const float code = s.fp8 ? of_fp8(byte) : static_cast<float>(byte >> shift & ((1 << s.bits) - 1));
  const int64_t at = s.channel ? d : token * (head_dim / s.group) + d / s.group;
  return found.low[at] + found.scale[at] * code;
}

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
  std::vector<float> query(group * dim), weight(group * TILE), peak(group, -INFINITY);
  std::vector<float> sum(group * dim, 0.0f), total(group, 0.0f), numbers(dim);
  const float* q = a.q + (row * a.kv_heads + head) * group * dim;
  for (int64_t i = 0; i < group * dim; i++) query[i] = q[i] * a.scale;
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
          for (int64_t d = 0; d < dim; d++) dot += query[g * dim + d] * numbers[d];
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
      for (int t = 0; t < n; t++) {
        for (int64_t d = 0; d < dim; d++)
          numbers[d] = number_at(a.side[1], data[1], scales[1], at + t, d, dim);
        for (int64_t g = 0; g < group; g++)
          for (int64_t d = 0; d < dim; d++) sum[g * dim + d] += weight[g * TILE + t] * numbers[d];
      }
    }
  });
  for (int64_t g = 0; g < group; g++) {
    float* mine = part + g * (dim + 2);
    mine[0] = peak[g];
    mine[1] = total[g];
    std::memcpy(mine + 2, sum.data() + g * dim, dim * sizeof(float));
  }
}

#if HEAD_DIM

typedef uint8_t Bytes __attribute__((vector_size(WIDE), aligned(1), may_alias));
constexpr int STEPS = HEAD_DIM / WIDE;
constexpr int TOKENS = GROUP <= 1 ? 8 : GROUP <= 4 ? 4 : 2;
constexpr int STRETCH = STEPS % 4 == 0 && GROUP <= 4 ? 4 : STEPS % 2 == 0 ? 2 : 1;
static_assert(HEAD_DIM % WIDE == 0, "a fast head_dim is a multiple of the vector width");

// Bytes as whole numbers. By name where there is one instruction for it: GCC 12 makes a dozen of it.
inline Ints widened(const uint8_t* p) {
#if defined(__AVX512F__)
  return (Ints)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#elif defined(__AVX2__)
  return (Ints)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#else
  return __builtin_convertvector(*reinterpret_cast<const Bytes*>(p), Ints);
#endif
}

// A vector of codes of a row, as floats. KIND is the bits of a code, or 0 for fp8.
template <int KIND>
inline Vector codes_at(const uint8_t* row, int step) {
  constexpr int BITS = KIND ? KIND : 8, PER_PLANE = HEAD_DIM * BITS / 8;
  const int d = step * WIDE;
  const Ints wide = widened(row + d % PER_PLANE);
  if constexpr (KIND == 8) {
    return __builtin_convertvector(wide, Vector);
  } else if constexpr (KIND == 0) {
    const Ints rest = wide & 0x7f, bits = (rest << 20) + (120 << 23);
    const Vector small = __builtin_convertvector(rest, Vector) * 0x1p-9f;
    const Ints size = (rest & 0x78) != 0 ? bits : (Ints)small;
    return (Vector)(size | (wide & 0x80) << 24);
  } else {
    return __builtin_convertvector(wide >> BITS * (d / PER_PLANE) & ((1 << BITS) - 1), Vector);
  }
}

// What is needed to read one side of one block.
struct Block {
  const uint8_t* codes;
  const float *scale, *low;
  int groups;           // scales of a row
  int group_of[STEPS];  // for each vector of a row, looked up since a division costs more

  template <int KIND, bool CHANNEL>
  inline Vector at(int64_t token, int step) const {
    constexpr int ROW_BYTES = HEAD_DIM * (KIND ? KIND : 8) / 8;
    const Vector code = codes_at<KIND>(codes + token * ROW_BYTES, step);
    if constexpr (CHANNEL) return load_wide(low + step * WIDE) + load_wide(scale + step * WIDE) * code;
    const int64_t mine = token * groups + group_of[step];
    return low[mine] + scale[mine] * code;
  }
};

// One KV head of one query token: its queries, and what they have gathered so far.
struct Head {
  Vector query[GROUP][STEPS], sum[GROUP][STEPS];
  Running run[GROUP];

  void begin(const Args& a, int64_t row, int64_t head) {
    const float* q = a.q + (row * a.kv_heads + head) * GROUP * HEAD_DIM;
    for (int g = 0; g < GROUP; g++) {
      run[g] = Running();
      for (int i = 0; i < STEPS; i++) {
        query[g][i] = load_wide(q + g * HEAD_DIM + i * WIDE) * a.scale;
        sum[g][i] = Vector{};
      }
    }
  }

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

// Whether whole vectors lie in one plane of bits, and have one scale.
bool whole_vectors(const Side& s) {
  return HEAD_DIM * s.bits / 8 % WIDE == 0 && (s.channel || s.group % WIDE == 0);
}

void fast(const Args& a, int64_t row, int64_t head, int64_t heads, int64_t from, int64_t to,
          float* part) {
  const Side &keys = a.side[0], &values = a.side[1];
  const Score score_of = made_for(keys).first;
  const Add add = made_for(values).second;
  Head mine[MOST_HEADS];
  Scales scales[2];
  for (int64_t h = 0; h < heads; h++) mine[h].begin(a, row, head + h);
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
