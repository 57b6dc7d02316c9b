// A whole safetensors file in memory, for tests that write or read one.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "worker_lib/checkpoint/safetensors.h"

namespace ddprun::safetensors {

struct Array {
  std::string name;
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::string_view bytes;
};

struct Content {
  Metadata metadata;  // without the checksum
  std::vector<Array> arrays;
};

inline std::string pack(const Content& content) {
  std::string data;
  std::vector<Place> places;
  for (const Array& array : content.arrays) {
    places.push_back({array.name, array.dtype, array.shape, data.size(), array.bytes.size()});
    data += array.bytes;
  }
  return pack_head(content.metadata, places, data) + data;
}

// The arrays point into `file`.
inline Content unpack(std::string_view file) {
  Head head = read_head(file, file.size());
  const std::string_view data = file.substr(head.size);
  check_crc(head, continue_crc(head.crc, data));
  Content content{std::move(head.metadata), {}};
  for (const Place& place : head.places) {
    content.arrays.push_back(
        {place.name, place.dtype, place.shape, data.substr(place.begin, place.size)});
  }
  return content;
}

}  // namespace ddprun::safetensors
