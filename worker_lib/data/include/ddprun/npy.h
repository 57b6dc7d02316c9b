// NumPy's .npy files: bytes with their shape and type, nothing of Torch (load_npy in datasets.h
// makes a tensor). Blocking; any thread.
//
// The format is the one that numpy/lib/format.py describes: versions 1.0, 2.0 and 3.0, C and
// Fortran order, little and big endian. Read are bool, integers, floats of 16, 32 and 64 bits and
// complex numbers of two floats; not text, records (structured arrays) and pickled objects.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rendezvous/common/result.h"

namespace ddprun {

struct NpyArray {
  char kind = 'f';       // as NumPy says it: b bool, i integer, u unsigned, f float, c complex
  int element_size = 4;  // bytes of one element
  std::vector<std::int64_t> shape = {};  // empty: one element
  bool is_fortran_order = false;         // the first index changes fastest
  std::vector<std::uint8_t> bytes = {};  // in this machine's byte order

  std::int64_t count() const;  // of elements
};

// Errors name the file, the byte where it goes wrong, and what to try.
Result<NpyArray> read_npy(const std::string& path);
// A file of version 1.0, atomically. The array's bytes must fit its shape.
Result<void> write_npy(const std::string& path, const NpyArray& array);

}  // namespace ddprun
