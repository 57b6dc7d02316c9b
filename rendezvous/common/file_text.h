// The whole of a small file of the kernel's (/proc, /sys); empty where it cannot be read. Any thread.
// Not for files that others write: theirs may have any size.
#pragma once

#include <string>

namespace ddprun {

std::string file_text(const std::string& path);

}  // namespace ddprun
