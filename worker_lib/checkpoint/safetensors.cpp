#include "worker_lib/checkpoint/safetensors.h"

#include <zlib.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cassert>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include "ddprun/error.h"

namespace ddprun::safetensors {
namespace {

namespace json = boost::json;

constexpr std::size_t kLengthSize = 8;
constexpr std::size_t kAlignment = 64;
constexpr std::uint64_t kMostHeaderBytes = 100'000'000;  // the limit of Python's reader
constexpr const char* kChecksumKey = "ddprun_crc32";
constexpr std::string_view kNoChecksum = "00000000";

[[noreturn]] void damaged(std::string what) {
  throw Failure(ErrorCode::kDataLoss, std::move(what));
}

// Where in the header the checksum's digits stand. Quotes inside JSON strings are escaped, so this
// sequence can only be the key itself.
std::optional<std::size_t> checksum_position(std::string_view header) {
  const std::string key = "\"" + std::string(kChecksumKey) + "\":\"";
  const std::size_t at = header.find(key);
  if (at == std::string_view::npos || at + key.size() + kNoChecksum.size() > header.size()) {
    return std::nullopt;
  }
  return at + key.size();
}

// Of a head in which the checksum's own digits stand.
std::uint32_t crc_of_head(std::string_view head, std::size_t digits_at) {
  std::uint32_t crc = continue_crc(0, head.substr(0, digits_at));
  crc = continue_crc(crc, kNoChecksum);
  return continue_crc(crc, head.substr(digits_at + kNoChecksum.size()));
}

std::string digits_of(std::uint32_t crc) {
  char digits[9];
  std::snprintf(digits, sizeof digits, "%08x", crc);
  return digits;
}

std::string header_of(const Metadata& metadata, const std::vector<Place>& places) {
  json::object strings;
  for (const auto& [key, value] : metadata) strings[key] = value;
  strings[kChecksumKey] = kNoChecksum;
  json::object header;
  header["__metadata__"] = std::move(strings);
  for (const Place& place : places) {
    header[place.name] = {{"dtype", place.dtype},
                          {"shape", json::array(place.shape.begin(), place.shape.end())},
                          {"data_offsets", {place.begin, place.begin + place.size}}};
  }
  std::string text = json::serialize(header);
  const std::size_t used = kLengthSize + text.size();
  text.append((kAlignment - used % kAlignment) % kAlignment, ' ');
  return text;
}

// As the JSON parser that has to read it sees it.
bool is_utf8(std::string_view text) {
  json::error_code error;
  json::parse(json::serialize(json::string_view(text.data(), text.size())), error);
  return !error;
}

template <typename Number>
std::optional<Number> number_of(const json::value& value) {
  json::error_code error;
  const Number number = value.to_number<Number>(error);
  return error ? std::nullopt : std::optional<Number>(number);
}

// Size in bytes of one element; 0 for a dtype that the format does not know.
std::int64_t element_size(std::string_view dtype) {
  constexpr std::pair<std::string_view, std::int64_t> kSizes[] = {
      {"BOOL", 1},        {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1},     {"F8_E5M2", 1},
      {"F8_E4M3FNUZ", 1}, {"I16", 2}, {"U16", 2}, {"F8_E5M2FNUZ", 1}, {"F16", 2},
      {"BF16", 2},        {"I32", 4}, {"U32", 4}, {"F32", 4},         {"I64", 8},
      {"U64", 8},         {"F64", 8}, {"C64", 8}};
  for (const auto& [name, size] : kSizes) {
    if (name == dtype) return size;
  }
  return 0;
}

// One entry of the header, checked against the data that is there.
Place place_of(std::string_view name, const json::value& entry, std::uint64_t data_size) {
  const std::string who = "array '" + std::string(name) + "'";
  const json::object* fields = entry.if_object();
  const json::value* dtype = fields ? fields->if_contains("dtype") : nullptr;
  const json::value* shape = fields ? fields->if_contains("shape") : nullptr;
  const json::value* offsets = fields ? fields->if_contains("data_offsets") : nullptr;
  if (!dtype || !dtype->is_string() || !shape || !shape->is_array() || !offsets ||
      !offsets->is_array() || offsets->get_array().size() != 2) {
    damaged(who + " is not described as safetensors has it");
  }
  Place place{std::string(name), std::string(dtype->get_string()), {}};
  std::int64_t count = element_size(place.dtype);
  if (count == 0) damaged(who + " has the unknown type '" + place.dtype + "'");
  for (const json::value& size : shape->get_array()) {
    const auto dimension = number_of<std::int64_t>(size);
    if (!dimension || *dimension < 0 || __builtin_mul_overflow(count, *dimension, &count)) {
      damaged(who + " has an impossible shape");
    }
    place.shape.push_back(*dimension);
  }
  const auto begin = number_of<std::uint64_t>(offsets->get_array()[0]);
  const auto end = number_of<std::uint64_t>(offsets->get_array()[1]);
  if (!begin || !end || *begin > *end || *end - *begin != static_cast<std::uint64_t>(count)) {
    damaged(who + " has a place that contradicts its shape");
  }
  if (*end > data_size) {
    damaged("it is cut off: " + who + " ends at byte " + std::to_string(*end) + " of " +
            std::to_string(data_size) + " bytes of data");
  }
  place.begin = *begin;
  place.size = *end - *begin;
  return place;
}

}  // namespace

std::uint32_t continue_crc(std::uint32_t crc, std::string_view bytes) {
  return static_cast<std::uint32_t>(
      crc32_z(crc, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

std::string pack_head(const Metadata& metadata, const std::vector<Place>& places,
                      std::string_view data) {
  const std::string header = header_of(metadata, places);
  if (header.size() > kMostHeaderBytes) {
    throw UsageError(
        "the names, notes and states besides the tensors are " + std::to_string(header.size()) +
        " bytes, and safetensors has room for 100,000,000: keep large data in buffers");
  }
  if (!is_utf8(header)) {
    for (const auto& [key, value] : metadata) {
      if (is_utf8(key) && is_utf8(value)) continue;
      throw UsageError("the note or state '" + key +
                       "' is not UTF-8 text, which safetensors needs");
    }
    throw UsageError("the name of a tensor is not UTF-8 text, which safetensors needs");
  }
  std::string head;
  head.reserve(kLengthSize + header.size());
  for (std::size_t i = 0; i < kLengthSize; ++i) {
    head.push_back(static_cast<char>((header.size() >> (8 * i)) & 0xff));
  }
  head += header;

  const auto digits_at = checksum_position(header);
  assert(digits_at);
  const std::size_t at = kLengthSize + *digits_at;
  const std::uint32_t crc = continue_crc(crc_of_head(head, at), data);
  head.replace(at, kNoChecksum.size(), digits_of(crc));
  return head;
}

std::uint64_t head_size(std::string_view first_bytes, std::uint64_t file_size) {
  if (first_bytes.size() < kLengthSize) damaged("it is cut off in its first 8 bytes");
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthSize; ++i) {
    length |= std::uint64_t{static_cast<unsigned char>(first_bytes[i])} << (8 * i);
  }
  if (length > kMostHeaderBytes) damaged("its header's length is impossible");
  if (length > file_size - kLengthSize) damaged("it is cut off in its header");
  return kLengthSize + length;
}

Head read_head(std::string_view bytes, std::uint64_t file_size) {
  Head head;
  head.size = head_size(bytes, file_size);
  if (bytes.size() < head.size) damaged("it is cut off in its header");
  bytes = bytes.substr(0, head.size);
  const std::string_view header = bytes.substr(kLengthSize);
  const std::uint64_t data_size = file_size - head.size;

  json::error_code error;
  const json::value parsed = json::parse({header.data(), header.size()}, error);
  if (error || !parsed.is_object()) damaged("its header is not JSON");

  for (const auto& [name, entry] : parsed.get_object()) {
    if (name != "__metadata__") head.places.push_back(place_of(name, entry, data_size));
  }
  std::sort(head.places.begin(), head.places.end(), [](const Place& a, const Place& b) {
    return std::pair(a.begin, a.size) < std::pair(b.begin, b.size);
  });
  std::uint64_t used = 0;
  for (const Place& place : head.places) {
    if (place.begin != used)
      damaged("array '" + place.name + "' does not begin where the one before it ends");
    used += place.size;
  }
  if (used != data_size) damaged("its data is longer than its header says");

  const json::value* metadata = parsed.get_object().if_contains("__metadata__");
  if (metadata && !metadata->is_object()) damaged("its metadata is not an object");
  if (metadata) {
    for (const auto& [key, value] : metadata->get_object()) {
      if (!value.is_string()) damaged("its metadata holds something that is no string");
      head.metadata.emplace(key, value.get_string());
    }
  }
  if (head.metadata.erase(kChecksumKey) > 0) {
    const auto digits_at = checksum_position(header);
    if (!digits_at) damaged("its checksum cannot be read");
    const std::size_t at = kLengthSize + *digits_at;
    head.checksum = bytes.substr(at, kNoChecksum.size());
    head.crc = crc_of_head(bytes, at);
  } else if (head.metadata.count("ddprun_format") > 0) {
    damaged("its checksum is missing");
  }
  return head;
}

void check_crc(const Head& head, std::uint32_t crc) {
  if (head.checksum && digits_of(crc) != *head.checksum) {
    damaged("its checksum does not match its content");
  }
}

}  // namespace ddprun::safetensors
