#include "worker_lib/process/crc32c.h"

#include <algorithm>
#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

namespace ddprun {
namespace {

constexpr std::uint32_t kPolynomial = 0x82f63b78;  // Castagnoli's, bits reversed
constexpr std::size_t kWord = 8;

// [k][byte]: what a byte does that is followed by k zeros.
constexpr auto make_tables() {
  std::array<std::array<std::uint32_t, 256>, kWord> tables{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t remainder = i;
    for (int bit = 0; bit < 8; ++bit) {
      remainder = (remainder >> 1) ^ ((remainder & 1) != 0 ? kPolynomial : 0);
    }
    tables[0][i] = remainder;
  }
  for (std::size_t k = 1; k < kWord; ++k) {
    for (std::size_t i = 0; i < 256; ++i) {
      const std::uint32_t before = tables[k - 1][i];
      tables[k][i] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}
constexpr auto kTables = make_tables();

std::uint32_t plain_byte(std::uint32_t crc, char byte) {
  return (crc >> 8) ^ kTables[0][(crc ^ static_cast<std::uint8_t>(byte)) & 0xff];
}

std::uint64_t word_at(const char* bytes) {
  std::uint64_t word = 0;
  std::memcpy(&word, bytes, kWord);
  return word;
}

std::uint64_t plain_word(std::uint64_t crc, std::uint64_t word) {
  word ^= crc;
  std::uint32_t sum = 0;
  for (std::size_t k = 0; k < kWord; ++k) sum ^= kTables[kWord - 1 - k][(word >> (8 * k)) & 0xff];
  return sum;
}

// Sums groups of four words, and copies them if there is a place.
using SumGroups = void(std::uint64_t* lanes, char* to, const char* from, std::size_t groups);

void plain_groups(std::uint64_t* lanes, char* to, const char* from, std::size_t groups) {
  if (to != nullptr) std::memcpy(to, from, groups * 4 * kWord);
  for (; groups > 0; --groups, from += 4 * kWord) {
    for (std::size_t i = 0; i < 4; ++i) lanes[i] = plain_word(lanes[i], word_at(from + i * kWord));
  }
}

#if defined(__x86_64__)

constexpr std::size_t kGroup = 4 * kWord;
// Below this, the copy is to stay in the caches.
constexpr std::size_t kPastCaches = std::size_t{64} << 10;
// Groups that the caches hold between copying and summing.
constexpr std::size_t kPiece = 512;

__attribute__((target("sse4.2"))) void fast_groups(std::uint64_t* lanes, char* to, const char* from,
                                                   std::size_t groups) {
  const bool is_aligned = reinterpret_cast<std::uintptr_t>(to) % 16 == 0;
  const bool goes_past_caches = to != nullptr && is_aligned && groups * kGroup >= kPastCaches;
  if (to != nullptr && !goes_past_caches && groups > kPiece) {
    for (; groups > kPiece; groups -= kPiece, from += kPiece * kGroup, to += kPiece * kGroup) {
      fast_groups(lanes, to, from, kPiece);
    }
  }
  if (to != nullptr && !goes_past_caches) std::memcpy(to, from, groups * kGroup);
  std::uint64_t a = lanes[0];
  std::uint64_t b = lanes[1];
  std::uint64_t c = lanes[2];
  std::uint64_t d = lanes[3];
  for (; groups > 0; --groups, from += kGroup) {
    if (goes_past_caches) {
      const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
      const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 16));
      _mm_stream_si128(reinterpret_cast<__m128i*>(to), low);
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + 16), high);
      to += kGroup;
    }
    _mm_prefetch(from + 1024, _MM_HINT_NTA);
    a = _mm_crc32_u64(a, word_at(from));
    b = _mm_crc32_u64(b, word_at(from + kWord));
    c = _mm_crc32_u64(c, word_at(from + 2 * kWord));
    d = _mm_crc32_u64(d, word_at(from + 3 * kWord));
  }
  lanes[0] = a;
  lanes[1] = b;
  lanes[2] = c;
  lanes[3] = d;
}

SumGroups* choose() { return __builtin_cpu_supports("sse4.2") ? fast_groups : plain_groups; }
void make_visible() { _mm_sfence(); }

#elif defined(__ARM_FEATURE_CRC32)

void fast_groups(std::uint64_t* lanes, char* to, const char* from, std::size_t groups) {
  if (to != nullptr) std::memcpy(to, from, groups * 4 * kWord);
  for (; groups > 0; --groups, from += 4 * kWord) {
    for (std::size_t i = 0; i < 4; ++i) {
      lanes[i] = __crc32cd(static_cast<std::uint32_t>(lanes[i]), word_at(from + i * kWord));
    }
  }
}

SumGroups* choose() { return fast_groups; }
void make_visible() {}

#else

SumGroups* choose() { return plain_groups; }
void make_visible() {}

#endif

SumGroups* const sum_groups = choose();

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint64_t crc = ~std::uint32_t{0};
  for (; bytes.size() >= kWord; bytes.remove_prefix(kWord)) {
    crc = plain_word(crc, word_at(bytes.data()));
  }
  auto rest = static_cast<std::uint32_t>(crc);
  for (const char byte : bytes) rest = plain_byte(rest, byte);
  return ~rest;
}

// Groups begin at multiples of their size in the stream. `to`: where the bytes are copied, or null.
void StreamSum::take(char* to, const char* from, std::size_t size) {
  const auto advance = [&](std::size_t part) {
    if (to != nullptr) to += part;
    from += part;
    size_ += part;
    size -= part;
  };
  const auto begin_group = [&](std::size_t part) {
    std::memcpy(begun_ + size_ % kGroup, from, part);
    if (to != nullptr) std::memcpy(to, from, part);
    advance(part);
  };
  if (size == 0) return;
  if (const std::size_t begun = size_ % kGroup; begun != 0) {
    begin_group(std::min(size, kGroup - begun));
    if (size_ % kGroup == 0) sum_groups(lanes_, nullptr, begun_, 1);
  }
  if (const std::size_t groups = size / kGroup; groups > 0) {
    sum_groups(lanes_, to, from, groups);
    advance(groups * kGroup);
  }
  if (size > 0) begin_group(size);
}

std::uint32_t StreamSum::finish() {
  make_visible();
  if (const std::size_t begun = size_ % kGroup; begun > 0) {
    std::memset(begun_ + begun, 0, kGroup - begun);
    sum_groups(lanes_, nullptr, begun_, 1);
  }
  const std::uint64_t all[] = {lanes_[0], lanes_[1], lanes_[2], lanes_[3], size_};
  return crc32c({reinterpret_cast<const char*>(all), sizeof all});
}

std::uint32_t stream_sum(std::string_view bytes) {
  StreamSum sum;
  sum.add(bytes.data(), bytes.size());
  return sum.finish();
}

}  // namespace ddprun
