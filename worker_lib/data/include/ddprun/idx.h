// IDX: the file format of MNIST and its relatives, gzipped or not. Bytes with their dimensions,
// nothing of Torch. Blocking; any thread.
//
// The format, as its authors describe it: two zero bytes, a type byte (0x08: unsigned byte, the
// only one read here), the number of dimensions, each dimension as a big-endian u32, then the
// elements row by row.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rendezvous/common/result.h"

namespace ddprun {

struct IdxArray {
  std::vector<std::int64_t> dimensions;
  std::vector<std::uint8_t> bytes;  // their product
};

// Errors name the file and what is wrong: not found, damaged gzip, cut off, not IDX, too long.
Result<IdxArray> read_idx(const std::string& path);

// folder/name or folder/name.gz, whichever is there; the first is preferred.
Result<IdxArray> read_idx_in(const std::string& folder, const std::string& name);

}  // namespace ddprun
