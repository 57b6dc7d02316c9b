// All limits of the rendezvous code on input from outside. PyTorch's own limits are the lower bound
// for the store's: a program that works with PyTorch's server must work here. Constants only; any
// thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace ddprun::rdzv::limits {

// What one request may contain: PyTorch's libuv server closes the connection beyond exactly these.
inline constexpr std::uint64_t kMaxKeyBytes = 8192;
inline constexpr std::uint64_t kMaxValueBytes = std::uint64_t{8} * 1024 * 1024;
inline constexpr std::uint64_t kMaxListItems = 131072;

// One whole request. Only a MULTI_SET or a list of very long keys can come near this. PyTorch has
// no such limit: a single request that never ends can fill its server's memory.
inline constexpr std::uint64_t kMaxRequestBytes = std::uint64_t{256} * 1024 * 1024;

// One whole reply (MULTI_GET, LIST_KEYS): a few bytes of request must not cost gigabytes.
inline constexpr std::size_t kMaxReplyBytes = std::size_t{256} * 1024 * 1024;

// While a client has this much unread, beyond what the kernel buffers, none of its requests is
// received. c10d's clients read each reply before they send the next request.
inline constexpr std::size_t kMaxUnreadReplyBytes = std::size_t{8} * 1024 * 1024;

// The total that one store may hold: keys, values, queues, waiters, unfinished requests, unread
// replies.
inline constexpr std::size_t kDefaultStoreMemory = std::size_t{1} << 30;

// A value of this size or more has memory of its own: it is received into it and sent from it,
// never copied.
inline constexpr std::size_t kDetachedValueBytes = std::size_t{32} * 1024;

// The round protocol. What an agent sends before it is admitted is small; later messages may hold
// the last lines of a failed worker.
inline constexpr std::size_t kMaxConnectBytes = std::size_t{8} * 1024;
inline constexpr std::size_t kMaxRoundFrameBytes = std::size_t{1024} * 1024;
// A connection is ended when its other side leaves more than this unread, beyond what the kernel
// buffers.
inline constexpr std::size_t kMaxUnreadRoundBytes = std::size_t{8} * 1024 * 1024;
// Requests between nodes, and their replies. A peer that has this much of them unread is sent no
// more until it has read them: they must not be the reason why a connection is ended.
inline constexpr std::size_t kMaxQuestionBytes = std::size_t{8} * 1024;
inline constexpr std::size_t kMaxAnswerBytes = std::size_t{512} * 1024;
inline constexpr std::size_t kMaxUnreadAnswerBytes = std::size_t{2} * 1024 * 1024;
inline constexpr std::size_t kMaxNameBytes = 1024;  // of a role, job, program, user
inline constexpr std::size_t kMaxHostBytes = 255;   // of a host, an address: as in DNS
// The most nodes that wait as spares: max_nodes or this number, whichever is larger. Further ones
// are refused.
inline constexpr int kSparesFloor = 64;
inline constexpr int kMaxWorkersOfNode = 1 << 16;  // sums over all nodes must fit in an int

// The sender cuts longer ones.
inline constexpr std::size_t kMaxTextBytes =
    std::size_t{64} * 1024;  // a failure's message, a sentence
inline constexpr std::size_t kMaxPathBytes = std::size_t{4} * 1024;
inline constexpr std::size_t kMaxLineBytes = std::size_t{4} * 1024;  // one of a worker's last lines
inline constexpr std::size_t kMaxLinesBytes =
    std::size_t{64} * 1024;  // all of them, each with its length

// How long a silent peer is considered alive: idle time, then probes. 60 s + 6 x 10 s.
inline constexpr std::chrono::seconds kKeepAliveIdle{60};
inline constexpr std::chrono::seconds kKeepAliveInterval{10};
inline constexpr int kKeepAliveProbes = 6;

}  // namespace ddprun::rdzv::limits
