// ddprun_gloo_worker DIR RESTARTS: a training program in small. Joins the group over Gloo, adds up
// the ranks, leaves DIR/<round>.<rank>, and then, in each round before the RESTARTS-th, the rank
// whose turn it is dies with 3 while the others are in the next collective. Whatever goes wrong
// otherwise, such as a group that does not form, is another exit code.
#include <torch/torch.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "ddprun/run.h"

namespace {

constexpr int kDiesOnPurpose = 3;
constexpr int kWrongSum = 72;

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string folder = argv[1];
  const int restarts = std::atoi(argv[2]);
  return ddprun::run(argc, argv, [&](ddprun::Context& context) {
    const int world = context.world_size();
    const int round = context.environment().restart_count;
    if (context.all_reduce_sum(context.rank()) != world * (world - 1) / 2) return kWrongSum;
    const std::string note =
        folder + "/" + std::to_string(round) + "." + std::to_string(context.rank());
    std::FILE* file = std::fopen(note.c_str(), "w");
    if (file == nullptr || std::fclose(file) != 0) return kWrongSum;
    context.barrier();
    if (round < restarts && context.rank() == round % world) _exit(kDiesOnPurpose);
    context.barrier();
    return 0;
  });
}
