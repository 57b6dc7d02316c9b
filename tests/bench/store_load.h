// The load that store_bench puts on a store server: raw protocol from one thread, so that the
// generator costs as little as it can beside the server. Each measurement takes a server that has
// been asked nothing else meanwhile and returns one figure.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace ddprun::rdzv::bench {

struct Target {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  pid_t pid = 0;  // of the server process, for its CPU time and memory
};

struct Throughput {
  double per_second = 0;
  double server_cpu_us = 0;  // for each
};

// p50 in µs of set + get of one small key by one client: one message and two round trips.
double pair_latency_us(const Target& target, int pairs);
// `clients` closed loops of set, wait, get, add, at most `in_flight` of them active at once.
Throughput operations(const Target& target, int clients, int in_flight, int requests);
// Connect, VALIDATE and PING in one piece, close; `at_once` at a time.
Throughput handshakes(const Target& target, int at_once, int count);
// From one set to the last of `waiters` released.
double release_ms(const Target& target, int waiters);
// `count` connects and handshakes begun at the same moment.
double connect_all_ms(const Target& target, int count);
double check_ms(const Target& target, int keys);
double multi_set_ms(const Target& target, int keys, std::size_t value_bytes);
double large_value_mb_per_s(const Target& target, std::size_t bytes, int rounds);
// Growth of the server's resident memory for each of `count` idle, validated connections.
double idle_connection_bytes(const Target& target, int count);

}  // namespace ddprun::rdzv::bench
