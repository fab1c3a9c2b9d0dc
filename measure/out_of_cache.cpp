// Puts bytes out of every cache of the processor, so that reading them is reading memory.
#include <cstdint>

#if defined(__x86_64__)
#include <emmintrin.h>

extern "C" int put_out_of_cache(const char* first, int64_t num_bytes) {
  for (int64_t i = 0; i < num_bytes; i += 64) _mm_clflush(first + i);
  _mm_mfence();
  return 0;
}
#else
extern "C" int put_out_of_cache(const char*, int64_t) { return 1; }
#endif
