// Every bound of the rendezvous code on what comes from outside, in one place. PyTorch's own limits
// are the lower bound for the store's: a program that works with PyTorch's server must work here.
// Constants only; any thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace ddprun::rdzv::limits {

// What one request may contain: PyTorch's libuv server closes the connection beyond exactly these.
inline constexpr std::uint64_t kMaxKeyBytes = 8192;
inline constexpr std::uint64_t kMaxValueBytes = std::uint64_t{8} * 1024 * 1024;
inline constexpr std::uint64_t kMaxListItems = 131072;

// The whole of one request. Only a MULTI_SET or a list of very long keys can come near; PyTorch
// sets no bound here, and so can be filled up by a single request that never ends.
inline constexpr std::uint64_t kMaxRequestBytes = std::uint64_t{256} * 1024 * 1024;

// The whole of one reply (MULTI_GET, LIST_KEYS): a few bytes of request must not cost gigabytes.
inline constexpr std::size_t kMaxReplyBytes = std::size_t{256} * 1024 * 1024;

// Of a client that has this much unread, beyond what the kernel holds for it, no request is received
// until it has read. c10d's clients read each reply before they ask again.
inline constexpr std::size_t kMaxUnreadReplyBytes = std::size_t{8} * 1024 * 1024;

// All that one store may hold: keys, values, queues, waiters, unfinished requests, unread replies.
inline constexpr std::size_t kDefaultStoreMemory = std::size_t{1} << 30;

// From this size on a value is kept in memory of its own: received into it, sent from it, never
// copied.
inline constexpr std::size_t kDetachedValueBytes = std::size_t{32} * 1024;

// The round protocol. What an agent says before it is admitted is small; afterwards a failure
// brings its worker's last words along.
inline constexpr std::size_t kMaxConnectBytes = std::size_t{8} * 1024;
inline constexpr std::size_t kMaxRoundFrameBytes = std::size_t{1024} * 1024;
// What one side leaves unread, beyond what the kernel holds for it, before its connection is ended.
inline constexpr std::size_t kMaxUnreadRoundBytes = std::size_t{8} * 1024 * 1024;
// Questions between nodes, and their answers. Who has this much of them unread is sent no more until
// it has read it: they must not be what ends a connection.
inline constexpr std::size_t kMaxQuestionBytes = std::size_t{8} * 1024;
inline constexpr std::size_t kMaxAnswerBytes = std::size_t{512} * 1024;
inline constexpr std::size_t kMaxUnreadAnswerBytes = std::size_t{2} * 1024 * 1024;
inline constexpr std::size_t kMaxNameBytes = 1024;  // of a role, job, program, user
inline constexpr std::size_t kMaxHostBytes = 255;   // of a host, an address: as in DNS
// Of nodes for which there is no room in the job, as many wait as there is room for, or this many.
// Further ones are refused.
inline constexpr int kSparesFloor = 64;
inline constexpr int kMaxWorkersOfNode = 1 << 16;  // sums over all nodes have to fit an int

// Longer ones are cut by who sends them.
inline constexpr std::size_t kMaxTextBytes =
    std::size_t{64} * 1024;  // a failure's message, a sentence
inline constexpr std::size_t kMaxPathBytes = std::size_t{4} * 1024;
inline constexpr std::size_t kMaxLineBytes = std::size_t{4} * 1024;  // one of a worker's last lines
inline constexpr std::size_t kMaxLinesBytes =
    std::size_t{64} * 1024;  // all of them, each with its length

// How long a silent peer is believed alive: idle time, then probes. 60 s + 6 x 10 s.
inline constexpr std::chrono::seconds kKeepAliveIdle{60};
inline constexpr std::chrono::seconds kKeepAliveInterval{10};
inline constexpr int kKeepAliveProbes = 6;

}  // namespace ddprun::rdzv::limits
