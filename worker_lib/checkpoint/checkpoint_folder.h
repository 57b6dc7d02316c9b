// The folder in which rank 0 keeps the last few checkpoints: step-000000001234.safetensors, and two
// links into them: latest.safetensors and best.safetensors. Knows files and names and whether a
// file is whole, nothing of models. One process writes; blocking; one thread at a time. Throws Failure, prepare()
// UsageError.
//
// Crash-safe: a checkpoint appears by rename after it was synced, the links follow, older ones are
// removed after that, and what a crash left unfinished is removed at the next prepare(). So a link
// names a whole file at every instant. That a checkpoint is to be the best is noted before it appears
// (best.safetensors.unfinished), so that a crash before the link does not lose it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "worker_lib/process/files.h"

namespace ddprun {

class CheckpointFolder {
 public:
  struct Found {
    std::string path;
    std::int64_t step = 0;
    FileReader file;
    std::string head;  // its first bytes: safetensors::Head::size of them
  };
  // Sentences about what did not go as it should; it went on without.
  using Warnings = std::vector<std::string>;
  struct Search {
    std::optional<Found> found;  // the newest that is whole
    Warnings warnings;           // one for each newer one that is damaged
  };

  // keep_last >= 1.
  CheckpointFolder(std::string path, int keep_last);

  // Creates the folder, finds out whether it can be written, removes unfinished files.
  void prepare();

  // Puts the pieces, one after the other, in place as the checkpoint of `step`, which `latest`
  // names then, and `best` if it is; and removes all but the last keep_last and the best.
  Warnings write(std::int64_t step, const std::vector<std::string_view>& pieces,
                 bool is_best = false);

  // Damaged files are set aside as <name>.damaged. Throws when there are checkpoints and none is
  // whole, or the folder or a file cannot be read: never taken for a fresh start. Reads every byte, holds
  // a few MB at a time.
  Search newest_whole();

  // Of the file whose name says so, whole or not. Nothing: there is none.
  std::optional<std::int64_t> newest_step() const;

  // Makes the link of a best checkpoint that was written, if a crash came between; prepare() does it, too.
  Warnings finish_best();

  // Whether `best` names a file.
  bool has_best() const;

 private:
  std::vector<std::string> newest_first() const;
  std::string place_of(std::string_view name) const;
  std::string announced_best() const;
  void announce_best(const std::string& name);
  void link(std::string_view name, const std::string& path, Warnings& warnings);

  std::string path_;
  int keep_last_;
  bool has_told_of_links_ = false;
};

}  // namespace ddprun
