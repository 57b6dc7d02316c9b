// What differs between the models that the ranks have built, said in one sentence: a rank whose
// model has another shape would make the first all-reduce hang, or add up what does not belong
// together. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

// A model as lines "<name>\t<what it is>\n", in the order of its parameters:
//   "fc1.weight\t[64, 784] Float\n"
// Two ranks' models fit when their descriptions are equal.

// FNV-1a of a description: compared first, since it is 8 bytes for any model.
std::uint64_t fingerprint(std::string_view description);

// The first thing in which the descriptions, one of each rank, differ; empty when nothing does.
//   "fc1.weight is [64, 784] Float on rank 0 and [32, 784] Float on ranks 1-3"
std::string first_difference(const std::vector<std::string>& descriptions);

}  // namespace ddprun
