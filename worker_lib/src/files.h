// Whole files: read one, or put one in place so that a reader, or a crash at any instant, finds the
// old file or the new one and never a part. Blocking; any thread.
#pragma once

#include <string>
#include <string_view>

#include "rendezvous/base/result.h"

namespace ddprun {

// A name beside `path` under which write_file_atomically() builds the new file. It ends with this,
// and a crash may leave it behind: whoever owns the folder removes such files.
inline constexpr std::string_view kUnfinishedSuffix = ".unfinished";

// Writes aside, fsync, rename, fsync of the folder.
Result<void> write_file_atomically(const std::string& path, std::string_view bytes);

Result<std::string> read_file(const std::string& path);

}  // namespace ddprun
