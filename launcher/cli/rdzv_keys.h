// The keys that --rdzv-conf may hold. Constants; any thread.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace ddprun::cli {

// Keys whose value is a whole number above 0: seconds, except keep_alive_max_attempt (a count) and
// reconnect_grace (milliseconds).
inline constexpr std::array<std::string_view, 11> kRdzvNumberKeys{
    "timeout",           "join_timeout",        "last_call_timeout",      "close_timeout",
    "heartbeat_timeout", "keep_alive_interval", "keep_alive_max_attempt", "read_timeout",
    "reconnect_grace",   "lease_time",          "replace_timeout"};

// Keys that some backend of torchrun or ddprun knows. A key in neither list gets a warning.
inline constexpr std::array<std::string_view, 17> kRdzvOtherKeys{"token_file",
                                                                 "is_host",
                                                                 "store_type",
                                                                 "rank",
                                                                 "protocol",
                                                                 "ssl_cert",
                                                                 "ssl_cert_key",
                                                                 "ca_cert",
                                                                 "cert",
                                                                 "key",
                                                                 "cacert",
                                                                 "etcd_prefix",
                                                                 "use_libuv",
                                                                 "user",
                                                                 "password",
                                                                 "password_file",
                                                                 "cas_backoff_max_seconds"};

// These are options, not keys; torchrun fails on them with a TypeError.
inline constexpr std::array<std::string_view, 6> kRdzvReservedKeys{
    "backend", "endpoint", "run_id", "min_nodes", "max_nodes", "local_addr"};

// Whether some backend knows the key and its value is no secret.
inline bool is_public_key(std::string_view key) {
  return key != "password" && (std::ranges::find(kRdzvNumberKeys, key) != kRdzvNumberKeys.end() ||
                               std::ranges::find(kRdzvOtherKeys, key) != kRdzvOtherKeys.end());
}

}  // namespace ddprun::cli
