// The folders for workers' logs and error files, laid out as torchrun does:
//
//   <log dir, or $TMPDIR/torchelastic_XXXXXX>/<run id>_XXXXXX/attempt_<round>/<local rank>/
//
// Nothing in them is ever deleted (torchrun empties attempt_<n> at a restart that another node
// caused). Made only for jobs that asked for files: making and removing folders takes longer than
// starting the workers.
//
// Owned by Output. Making folders may hang (a file server that does not answer): that is done by
// functions which any thread may call, and never by the event loop.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/common/result.h"

namespace ddprun::agent {

// Makes the folder of a whole run, and returns its path. `log_dir` is made with its parents where it
// does not exist; when it is empty a folder in `temporary_directory` is made.
Result<std::string> make_log_directory(const std::string& log_dir,
                                       const std::string& temporary_directory,
                                       const std::string& run_id);

// Each one whose parent is there. Those that are there already are left as they are.
Result<void> make_folders(const std::vector<std::string>& paths);

class LogDirectory {
 public:
  LogDirectory() = default;  // none: all paths are empty
  explicit LogDirectory(std::string path) : path_(std::move(path)) {}

  // Of the whole run.
  const std::string& path() const { return path_; }
  // Of a round, and of one worker in it.
  std::string path_of(std::uint64_t round) const;
  std::string path_of(std::uint64_t round, int local_rank) const;

 private:
  std::string path_;
};

}  // namespace ddprun::agent
