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
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::safetensors {

using Metadata = std::map<std::string, std::string>;

// Where in the data an array lies.
struct Place {
  std::string name;
  std::string dtype;  // "F32", "I64", … as in the format
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t size = 0;  // bytes

  template <typename Fields>
  void fields(Fields& field) {
    field(name, dtype, shape, begin, size);
  }
};

// What the file has before the data: the length, the header, and in it the checksum over the whole
// file. The arrays lie in the data in the order of their places, without holes. Readers in Python want
// every array at a multiple of its element's size: have those with large elements first. Throws UsageError
// for what no reader would take (a header above 100 MB, text that is not UTF-8).
std::string pack_head(const Metadata& metadata, const std::vector<Place>& places,
                      std::string_view data);

// What a file has before its data: enough to take the arrays from pieces of the file, one after the other.
struct Head {
  Metadata metadata;                    // without the checksum
  std::vector<Place> places;            // in the order of the data, without holes
  std::uint64_t size = 0;               // the data begins here
  std::optional<std::string> checksum;  // which the file says that it has
  std::uint32_t crc = 0;                // of the head; to be continued over the data
};

// Of a file of this size, whose first bytes (8 will do) are given. This function, read_head() and check_crc() throw
// Failure, kDataLoss, with what is wrong (cut off, checksum, not the format).
std::uint64_t head_size(std::string_view first_bytes, std::uint64_t file_size);
// `bytes`: the first head_size() bytes at least.
Head read_head(std::string_view bytes, std::uint64_t file_size);
std::uint32_t continue_crc(std::uint32_t crc, std::string_view bytes);
// `crc`: of the whole file, or of as much of it as there is.
void check_crc(const Head& head, std::uint32_t crc);

}  // namespace ddprun::safetensors
