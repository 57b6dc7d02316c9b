// Lets test workers meet in the store of their round, as every c10d program does, and check that
// the store is of this round. For programs without LibTorch; call it once, from main.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "rendezvous/store_client/store_client.h"

namespace ddprun::test {

std::string variable(const char* name);  // of the environment; empty if it is not set
int rank();
int world_size();

// Returns a connection to the store after all workers of the round have met in it. Error: there is
// no store, or it contains data of other workers.
Result<std::unique_ptr<rdzv::StoreClient>> meet(std::chrono::milliseconds patience);

}  // namespace ddprun::test
