// The folders for workers' logs and error files, laid out as torchrun does:
//
//   <log dir, or $TMPDIR/torchelastic_XXXXXX>/<run id>_XXXXXX/attempt_<round>/<local rank>/
//
// Nothing in them is ever deleted (torchrun empties attempt_<n> at a restart that another node
// caused). Made only for jobs that asked for files: making and removing folders takes longer than
// starting the workers.
//
// Owned by Output; event loop only.
#pragma once

#include <cstdint>
#include <string>

#include "rendezvous/base/result.h"

namespace ddprun::agent {

class LogDirectory {
 public:
  // `log_dir` is made with its parents where it does not exist; when it is empty a folder in
  // `temporary_directory` (empty: /tmp) is made.
  Result<void> create(const std::string& log_dir, const std::string& temporary_directory,
                      const std::string& run_id);

  // Makes the folders of one worker in one round.
  Result<void> add_worker(std::uint64_t round, int local_rank);

  // Of the whole run; this and all other paths are empty without create().
  const std::string& path() const { return path_; }
  std::string path_of(std::uint64_t round) const;
  std::string path_of(std::uint64_t round, int local_rank) const;

 private:
  std::string path_;
};

}  // namespace ddprun::agent
