// The contents of a small kernel file (/proc, /sys); empty if it cannot be read. Any thread. Not
// for files that other programs write: the size is not bounded.
#pragma once

#include <string>

namespace ddprun {

std::string file_text(const std::string& path);

}  // namespace ddprun
