// What differs between the models that the ranks have built, in one sentence: a rank whose model has
// another shape would make the first all-reduce hang, or add up what does not belong together. Pure;
// any thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace ddprun {

// Names and what they are, in the order of the parameters: {"fc1.weight", "[64, 784] Float"}.
using ModelDescription = std::vector<std::pair<std::string, std::string>>;

// Of one model of each rank: the first thing in which they differ; empty when nothing does.
//   "fc1.weight is [64, 784] Float on rank 0 and [32, 784] Float on ranks 1, 2 and 3"
std::string first_difference(std::vector<ModelDescription> models);

}  // namespace ddprun
