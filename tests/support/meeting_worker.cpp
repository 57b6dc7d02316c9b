// ddprun_meeting_worker PROGRAM [ARGUMENT…]: meets the other workers of its round in the store of
// the round, as every c10d program does, and then becomes PROGRAM. Ends with 71 and a sentence when
// the store is not there, or holds what these workers did not say: then it is not this round's own.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "rendezvous/store_client.h"

namespace {

using ddprun::Result;
using ddprun::rdzv::StoreClient;

constexpr int kDidNotMeet = 71;
constexpr std::chrono::seconds kPatience{20};

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Result<void> meet(int rank, int world) {
  const auto port = static_cast<std::uint16_t>(std::stoi(variable("MASTER_PORT")));
  auto store = StoreClient::connect({.server = {variable("MASTER_ADDR"), port},
                                     .connect_timeout = kPatience,
                                     .timeout = kPatience});
  if (!store) return tl::unexpected(store.error());
  const auto arrivals = (*store)->add("arrivals", 1);
  if (!arrivals) return tl::unexpected(arrivals.error());
  const auto strange = [](const std::string& what) {
    return tl::unexpected(ddprun::Error{ddprun::ErrorCode::kProtocol, what, {}});
  };
  if (*arrivals > world) {
    return strange("worker " + std::to_string(*arrivals) + " of " + std::to_string(world) +
                   " in this store");
  }
  const std::string round = variable("TORCHELASTIC_RESTART_COUNT");
  if (auto set = (*store)->set("round of " + std::to_string(rank), round); !set) return set;
  for (int other = 0; other < world; ++other) {
    const auto its_round = (*store)->get("round of " + std::to_string(other));
    if (!its_round) return tl::unexpected(its_round.error());
    if (*its_round != round) return strange("met a worker of round " + *its_round);
  }
  return (*store)->barrier("all have seen all", world);
}

}  // namespace

int main(int argc, char** argv) {
  const int rank = std::stoi(variable("RANK"));
  if (const auto met = meet(rank, std::stoi(variable("WORLD_SIZE"))); !met) {
    std::fprintf(stderr, "meeting_worker: rank %d: %s\n", rank, met.error().to_string().c_str());
    return kDidNotMeet;
  }
  if (argc < 2) return 0;
  execvp(argv[1], argv + 1);
  std::perror(argv[1]);
  return kDidNotMeet;
}
