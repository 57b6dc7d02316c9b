// A port for a store that the program itself hosts (TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1): bound,
// never listening, for the whole round, so that the kernel gives it to nobody else. PyTorch's
// server sets SO_REUSEADDR as this does, so it can bind the same port. torchrun binds, closes and
// hopes.
#pragma once

#include <cstdint>
#include <string>

#include "rendezvous/base/result.h"
#include "rendezvous/base/unique_fd.h"

namespace ddprun::agent {

struct ReservedPort {
  rdzv::UniqueFd socket;
  std::uint16_t port = 0;
};

// `address` is numeric; port 0: one that the kernel chooses.
Result<ReservedPort> reserve_port(const std::string& address, std::uint16_t port);

}  // namespace ddprun::agent
