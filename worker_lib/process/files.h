// Whole files: read one, or put one in place so that a reader, or a crash at any instant, finds the
// old file or the new one and never a part. Blocking; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/common/result.h"

namespace ddprun {

// A name beside `path` under which the two functions below build what is new. It ends with this,
// and a crash may leave it behind: whoever owns the folder removes such files.
inline constexpr std::string_view kUnfinishedSuffix = ".unfinished";

// Writes the pieces one after the other aside, fsync, rename, fsync of the folder.
Result<void> write_file_atomically(const std::string& path,
                                   const std::vector<std::string_view>& pieces);

// `link` is a symbolic link to `target` from now on, whatever it named before; with fsync of the
// folder. Error: the file system has no such links, or something that is none has the name (it is
// left alone).
Result<void> link_atomically(const std::string& link, const std::string& target);

Result<std::string> read_file(const std::string& path);

}  // namespace ddprun
