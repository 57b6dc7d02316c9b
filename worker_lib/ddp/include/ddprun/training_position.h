// TrainingPosition: how far a training came, as a checkpoint keeps it (checkpoint.h). A value;
// nothing of Torch.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace ddprun {

struct TrainingPosition {
  std::int64_t epoch = 0;     // the one that is running
  std::int64_t consumed = 0;  // samples of it that are done, over all ranks (DistributedSampler)
  std::int64_t step = 0;      // since the beginning of the training
  std::uint64_t seed = 0;
  int world_size = 1;                             // of the run that saved: save() fills it in
  std::map<std::string, std::string> notes = {};  // the program's own; kept as they are
};

}  // namespace ddprun
