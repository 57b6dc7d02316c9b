// A small training program, over Gloo unless another backend is given.
//
// ddprun_gloo_worker DIR RESTARTS: joins the group, sums the ranks, writes DIR/<round>.<rank>, and
// then, in each round before the RESTARTS-th, rank <round> mod <world size> exits with 3 while the
// others are in the next collective. Any other failure, such as a group that does not form, has
// another exit code.
//
// ddprun_gloo_worker end HOW RANK TIMEOUT_MS BACKEND: this rank ends in the given way while the
// others are in an all_reduce with that time limit: killed, stopped (SIGSTOP), exits (with 3),
// throws, returns; sizes: it takes part, with a larger tensor; backward: it is killed, and the
// others are in a backward pass of DistributedDataParallel.
#include <torch/torch.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "ddprun/ddp.h"
#include "ddprun/run.h"
#include "tests/support/end_quickly.h"

namespace {

constexpr int kDiesOnPurpose = 3;
constexpr int kWrongSum = 72;

int live_rounds(ddprun::Context& context, const std::string& folder, int restarts) {
  const int world = context.world_size();
  const int round = context.environment().restart_count;
  if (context.all_reduce(context.rank()) != world * (world - 1) / 2) return kWrongSum;
  const std::string note =
      folder + "/" + std::to_string(round) + "." + std::to_string(context.rank());
  std::FILE* file = std::fopen(note.c_str(), "w");
  if (file == nullptr || std::fclose(file) != 0) return kWrongSum;
  context.barrier();
  if (round < restarts && context.rank() == round % world) _exit(kDiesOnPurpose);
  context.barrier();
  return 0;
}

void end(const std::string& how) {
  if (how == "killed" || how == "backward") ::kill(::getpid(), SIGKILL);
  if (how == "stopped") ::raise(SIGSTOP);
  if (how == "exits") std::exit(kDiesOnPurpose);
  if (how == "throws") throw std::runtime_error("thrown on purpose");
}

void go_on(ddprun::Context& context, const std::string& how, bool is_ending) {
  if (how == "backward") {
    ddprun::DistributedDataParallel model(std::make_shared<torch::nn::LinearImpl>(8, 8), context);
    context.barrier();
    if (is_ending) end(how);
    for (;;) model(torch::ones({2, 8})).sum().backward();
  }
  context.barrier();
  if (is_ending) end(how);
  if (is_ending && how != "sizes") return;
  context.all_reduce(torch::ones({is_ending ? 100'000 : 3}));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 6 && std::string(argv[1]) == "end") {
    ddprun::ContextOptions options{.backend = ddprun::backend_from(argv[5])};
    options.timeout = std::chrono::milliseconds(std::atoi(argv[4]));
    const int code = ddprun::run(
        argc, argv,
        [&](ddprun::Context& context) {
          go_on(context, argv[2], context.rank() == std::atoi(argv[3]));
        },
        options);
    ddprun::test::end_quickly(code);
  }
  if (argc != 3) return 2;
  return ddprun::run(argc, argv, [&](ddprun::Context& context) {
    return live_rounds(context, argv[1], std::atoi(argv[2]));
  });
}
