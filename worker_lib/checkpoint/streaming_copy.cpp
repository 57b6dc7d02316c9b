#include "worker_lib/checkpoint/streaming_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace ddprun {

#ifdef __SSE2__

void streaming_copy(void* to, const void* from, std::size_t size) {
  constexpr std::size_t kLine = 64;
  constexpr std::size_t kWorthIt = 16 * kLine;
  if (size < kWorthIt) {
    std::memcpy(to, from, size);
    return;
  }
  char* target = static_cast<char*>(to);
  const char* source = static_cast<const char*>(from);
  // Whole lines of the destination only: a part of one would be read after all.
  const std::size_t head = (kLine - reinterpret_cast<std::uintptr_t>(target) % kLine) % kLine;
  std::memcpy(target, source, head);
  target += head;
  source += head;
  const std::size_t lines = (size - head) / kLine;
  for (std::size_t i = 0; i < lines; ++i) {
    const auto* in = reinterpret_cast<const __m128i*>(source);
    auto* out = reinterpret_cast<__m128i*>(target);
    const __m128i a = _mm_loadu_si128(in);
    const __m128i b = _mm_loadu_si128(in + 1);
    const __m128i c = _mm_loadu_si128(in + 2);
    const __m128i d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
    source += kLine;
    target += kLine;
  }
  _mm_sfence();  // such stores are ordered with nothing else
  std::memcpy(target, source, size - head - lines * kLine);
}

#else

void streaming_copy(void* to, const void* from, std::size_t size) { std::memcpy(to, from, size); }

#endif

}  // namespace ddprun
