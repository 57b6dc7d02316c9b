// How workers of tests meet in the store of their round, as every c10d program does, and see whether
// it is this round's own. For programs without LibTorch, called once, from main.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "rendezvous/store_client/store_client.h"

namespace ddprun::test {

std::string variable(const char* name);  // of the environment; empty: it is not set
int rank();
int world_size();

// A connection to the store after all workers of the round have met in it. An error: the store is
// not there, or holds what these workers did not say.
Result<std::unique_ptr<rdzv::StoreClient>> meet(std::chrono::milliseconds patience);

}  // namespace ddprun::test
