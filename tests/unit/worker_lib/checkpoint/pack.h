// A whole safetensors file, for tests that write one.
#pragma once

#include <string>

#include "worker_lib/checkpoint/safetensors.h"

namespace ddprun::safetensors {

inline std::string pack(const Content& content) {
  std::string file = pack_head(content);
  for (const Array& array : content.arrays) file += array.bytes;
  return file;
}

}  // namespace ddprun::safetensors
