// The safetensors container: named arrays and a map of strings in one piece of memory, as Python's
// `safetensors` writes and reads it; plus a CRC-32 of ours over the whole file, kept in its
// metadata so that the file stays a plain safetensors file. Bytes to values and back, pure; nothing
// of Torch.
//
// Layout: u64 little-endian length of the header; the header, a JSON object {"__metadata__":
// {string: string}, name: {"dtype", "shape", "data_offsets": [begin, end]}}; the data, without
// holes. Our header is padded with spaces so that the data begins at a multiple of 64. The checksum
// is taken with the eight hex digits of the checksum itself as zeros.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/common/result.h"

namespace ddprun::safetensors {

struct Array {
  std::string name;
  std::string dtype;  // "F32", "I64", … as in the format
  std::vector<std::int64_t> shape;
  std::string_view bytes;  // whoever made the Array says how long they live
};

using Metadata = std::map<std::string, std::string>;

struct Content {
  Metadata metadata;  // without the checksum
  std::vector<Array> arrays;
};

// Size in bytes of one element; 0 for a dtype that the format does not know.
std::int64_t element_size(std::string_view dtype);

// What the file has before the data: the length, the header, and in it the checksum over the whole
// file. The arrays' bytes in their order, without holes, are the rest. Readers in Python want every
// array at a multiple of its element's size: have those with large elements first. Error:
// kInvalidArgument for what no reader would take (a header above 100 MB, text that is not UTF-8).
Result<std::string> pack_head(const Content& content);

// The whole file.
Result<std::string> pack(const Content& content);

// The arrays point into `file`. Errors: kDataLoss with what is wrong (cut off, checksum, not the
// format).
Result<Content> unpack(std::string_view file);

}  // namespace ddprun::safetensors
