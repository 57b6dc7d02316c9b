#include "tests/support/meeting.h"

#include <cstdlib>
#include <utility>

namespace ddprun::test {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int rank() { return std::stoi(variable("RANK")); }
int world_size() { return std::stoi(variable("WORLD_SIZE")); }

Result<std::unique_ptr<rdzv::StoreClient>> meet(std::chrono::milliseconds patience) {
  const int world = world_size();
  const auto port = static_cast<std::uint16_t>(std::stoi(variable("MASTER_PORT")));
  auto store = rdzv::StoreClient::connect({.server = {variable("MASTER_ADDR"), port},
                                           .connect_timeout = patience,
                                           .timeout = patience});
  if (!store) return store;
  const auto arrivals = (*store)->add("arrivals", 1);
  if (!arrivals) return fail(arrivals.error());
  if (*arrivals > world) {
    return fail(ErrorCode::kProtocol, "worker " + std::to_string(*arrivals) + " of " +
                                          std::to_string(world) + " in this store");
  }
  const std::string round = variable("TORCHELASTIC_RESTART_COUNT");
  if (auto set = (*store)->set("round of " + std::to_string(rank()), round); !set) {
    return fail(set.error());
  }
  for (int other = 0; other < world; ++other) {
    const auto its_round = (*store)->get("round of " + std::to_string(other));
    if (!its_round) return fail(its_round.error());
    if (*its_round != round) {
      return fail(ErrorCode::kProtocol, "met a worker of round " + *its_round);
    }
  }
  if (auto met = (*store)->barrier("all have seen all", world); !met) return fail(met.error());
  return store;
}

}  // namespace ddprun::test
