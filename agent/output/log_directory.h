// The folders for workers' logs and error files, laid out as torchrun does:
//
//   <log dir, or $TMPDIR/torchelastic_XXXXXX>/<run id>_XXXXXX/attempt_<round>/<local rank>/
//
// Nothing in them is ever deleted (torchrun empties attempt_<n> after a restart caused by another
// node). They are made only for jobs that want files, because making and removing folders takes
// longer than starting the workers.
//
// Owned by Output. Making folders may hang (a file server that does not answer): call these
// functions on another thread than the event loop's.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/common/result.h"

namespace ddprun::agent {

// Makes the folder of a run in `log_dir`, which is made with its parents if needed, and returns its
// path. If `log_dir` is empty, uses a new folder in `temporary_directory`.
Result<std::string> make_log_directory(const std::string& log_dir,
                                       const std::string& temporary_directory,
                                       const std::string& run_id);

// Makes these folders, whose parents must exist. Existing ones are left as they are.
Result<void> make_folders(const std::vector<std::string>& paths);

class LogDirectory {
 public:
  LogDirectory() = default;  // no directory: all paths are empty
  explicit LogDirectory(std::string path) : path_(std::move(path)) {}

  // Folder of the whole run.
  const std::string& path() const { return path_; }
  // Folder of a round, and of one worker in it.
  std::string path_of(std::uint64_t round) const;
  std::string path_of(std::uint64_t round, int local_rank) const;

 private:
  std::string path_;
};

}  // namespace ddprun::agent
