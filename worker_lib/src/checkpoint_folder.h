// The folder in which rank 0 keeps the last few checkpoints: step-000000001234.safetensors. Knows
// files and names and whether a file is whole, nothing of models. One process writes; blocking.
//
// Crash-safe: a checkpoint appears by rename after it was synced, older ones are removed after
// that, and what a crash left unfinished is removed at the next prepare().
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/base/result.h"

namespace ddprun {

class CheckpointFolder {
 public:
  struct Found {
    std::string path;
    std::string bytes;
  };
  struct Search {
    std::optional<Found> found;         // the newest that is whole
    std::vector<std::string> warnings;  // one sentence for each newer one that is damaged
  };

  // keep_last >= 1.
  CheckpointFolder(std::string path, int keep_last);

  // Creates the folder, finds out whether it can be written, removes unfinished files.
  Result<void> prepare();

  // Puts `bytes` in place as the checkpoint of `step` and removes all but the last keep_last.
  Result<void> write(std::int64_t step, std::string_view bytes);

  // Damaged files are set aside as <name>.damaged. Error: there are checkpoints and none is whole.
  Result<Search> newest_whole();

 private:
  std::vector<std::string> newest_first() const;

  std::string path_;
  int keep_last_;
};

}  // namespace ddprun
