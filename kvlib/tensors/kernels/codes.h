// A format of codes, and how numbers are read from its blocks: one by one, or a vector at a time where
// the head size is a constant. See ../codes.py for where each byte lies.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "heads.h"

namespace {

// A format and where its blocks are; the order of these numbers is that of quantized_cpu.py.
struct Side {
  const uint8_t* data;
  int64_t num_blocks, block_stride, head_stride;           // in bytes
  int64_t row_bytes, scale_offset, num_scales, group;      // group: numbers of a row with one scale
  int64_t bits, fp8, channel, has_minimum, scale_type;     // scale_type: 0 static, 1, 2 and 4 bytes
  float zero, scale;                                       // the code of zero; a static scale
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

#if HEAD_DIM

typedef uint8_t Bytes __attribute__((vector_size(WIDE), aligned(1), may_alias));

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

// Whether whole vectors lie in one plane of bits, and have one scale.
bool whole_vectors(const Side& s) {
  return HEAD_DIM * s.bits / 8 % WIDE == 0 && (s.channel || s.group % WIDE == 0);
}

#endif

}  // namespace
