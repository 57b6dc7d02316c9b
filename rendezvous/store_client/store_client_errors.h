// The store client's error messages and retry times. Internal. Free functions; any thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "rendezvous/common/result.h"
#include "rendezvous/store_client/store_client.h"

namespace ddprun::rdzv::client {

// How long after a wait's own deadline the server may take to confirm that it is cancelled.
inline constexpr std::chrono::seconds kCancelGrace{10};

inline constexpr std::chrono::milliseconds kFirstRetry{10};
inline constexpr std::chrono::milliseconds kLongestRetry{1000};

inline std::chrono::milliseconds next_retry(std::chrono::milliseconds pause) {
  return std::min(pause * 3 / 2, kLongestRetry);
}

// 0.5 to 1.5 times the pause, at random, because all clients of a job start at the same moment.
inline std::chrono::milliseconds spread(std::chrono::milliseconds pause, std::uint64_t random) {
  return pause / 2 + pause * static_cast<int>(random % 1024) / 1024;
}

// Whether the server may still become available.
inline bool may_pass(const Error& error) {
  return error.code == ErrorCode::kUnavailable || error.code == ErrorCode::kClosed ||
         error.code == ErrorCode::kTimeout;
}

Error connect_error(Error last, const StoreClientOptions& options);
Error handshake_error(Error error);
Error no_store();
Error uneven_lists(std::size_t keys, std::size_t values);
Error failure(const Endpoint& server, ErrorCode code, const std::string& what);

std::string not_set(const std::vector<std::string>& keys, std::chrono::milliseconds timeout);
std::string not_reached(std::string_view barrier, std::int64_t world_size,
                        std::chrono::milliseconds timeout);
std::string lost(bool is_closed, const std::string& why);
inline constexpr const char* kImpossibleLength = "a reply of an impossible length";

}  // namespace ddprun::rdzv::client
