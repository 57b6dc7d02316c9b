#include "worker_lib/train/event_record.h"

#include <bit>
#include <type_traits>

#include "worker_lib/process/crc32c.h"

namespace ddprun::event_record {
namespace {

template <typename Unsigned>
void append_little_endian(std::string& bytes, Unsigned value) {
  for (std::size_t i = 0; i < sizeof value; ++i) {
    bytes.push_back(static_cast<char>((value >> (8 * i)) & 0xff));
  }
}

// The checksum of data that holds checksums itself would be weak: TFRecord stores it turned and
// shifted.
std::uint32_t masked_crc(std::string_view bytes) {
  return std::rotr(crc32c(bytes), 15) + 0xa282ead8;
}

// protobuf's wire types
enum class Wire : std::uint8_t { kVarint = 0, k64Bit = 1, kBytes = 2, k32Bit = 5 };

void append_varint(std::string& message, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) message.push_back(static_cast<char>((value & 0x7f) | 0x80));
  message.push_back(static_cast<char>(value));
}

void append_key(std::string& message, unsigned field, Wire wire) {
  append_varint(message, (field << 3) | static_cast<unsigned>(wire));
}

void append_bytes(std::string& message, unsigned field, std::string_view bytes) {
  append_key(message, field, Wire::kBytes);
  append_varint(message, bytes.size());
  message.append(bytes);
}

void append_integer(std::string& message, unsigned field, std::int64_t value) {
  append_key(message, field, Wire::kVarint);
  append_varint(message, static_cast<std::uint64_t>(value));
}

template <typename Float>
void append_float(std::string& message, unsigned field, Float value) {
  using Bits = std::conditional_t<sizeof value == 8, std::uint64_t, std::uint32_t>;
  append_key(message, field, sizeof value == 8 ? Wire::k64Bit : Wire::k32Bit);
  append_little_endian(message, std::bit_cast<Bits>(value));
}

std::string event_at(double wall_time, std::int64_t step) {
  std::string event;
  append_float(event, 1, wall_time);
  append_integer(event, 2, step);
  return event;
}

}  // namespace

std::string version_event(double wall_time) {
  std::string event;
  append_float(event, 1, wall_time);
  append_bytes(event, 3, "brain.Event:2");
  return event;
}

std::string start_event(double wall_time, std::int64_t step) {
  std::string session_log;
  append_integer(session_log, 1, 1);
  std::string event = event_at(wall_time, step);
  append_bytes(event, 7, session_log);
  return event;
}

std::string scalar_event(double wall_time, std::int64_t step, std::string_view tag, float value) {
  std::string scalar;
  append_bytes(scalar, 1, tag);
  append_float(scalar, 2, value);
  std::string summary;
  append_bytes(summary, 1, scalar);
  std::string event = event_at(wall_time, step);
  append_bytes(event, 5, summary);
  return event;
}

std::string record(std::string_view event) {
  std::string bytes;
  append_little_endian(bytes, std::uint64_t{event.size()});
  append_little_endian(bytes, masked_crc(bytes));
  bytes.append(event);
  append_little_endian(bytes, masked_crc(event));
  return bytes;
}

}  // namespace ddprun::event_record
