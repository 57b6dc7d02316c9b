// A folder of a test's own that is gone after it.
#pragma once

#include <fstream>
#include <iterator>
#include <string>

#include "tests/support/temporary_tree.h"

namespace ddprun::test {

class TempFolder : public TemporaryTree {
 public:
  std::string file(const std::string& name) const { return *this / name; }
};

inline void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace ddprun::test
