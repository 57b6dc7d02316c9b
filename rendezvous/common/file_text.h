// The whole of a small file of the kernel's (/proc, /sys); empty where it cannot be read. Any thread.
// Not for files that others write: theirs may have any size.
#pragma once

#include <fstream>
#include <sstream>
#include <string>

namespace ddprun {

inline std::string file_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace ddprun
