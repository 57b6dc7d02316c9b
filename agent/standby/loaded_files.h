// The program and the libraries that a process has loaded, to notice when one of them is replaced: what
// is forked from that process would run the old ones. Any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace ddprun::agent {

class LoadedFiles {
 public:
  LoadedFiles() = default;  // none
  // What it executes from now; a file that is gone already counts as changed.
  static LoadedFiles of(pid_t process);

  // The first file that is another one now, or another version; empty: none is.
  std::string changed() const;

 private:
  struct File {
    std::string path;
    std::uint64_t inode = 0;
    std::int64_t modified_ns = 0;
    std::int64_t bytes = 0;
    bool operator==(const File&) const = default;
  };
  static File look_at(const std::string& path);

  std::vector<File> files_;
};

// Whether the process runs the file that this path leads to.
bool runs(pid_t process, const std::string& path);

}  // namespace ddprun::agent
