// How an agent gets standbys: processes that have loaded what a worker needs and wait for a rank. A
// zygote, one per node, forks them; each becomes a child of the agent. agent/README.md, "Standbys".
//
// Every process has a socket to the agent (AF_UNIX, SOCK_SEQPACKET), and each packet is one message:
// this header, then text. When the agent closes a socket, the process at its other end exits.
//
//   zygote   ── hello ──▶         it is held: a Python program before its first line, one that is
//                                 linked with worker_lib in its first Context
//            ◀── prepare ──       with a file that says what to load, if this kind of zygote loads
//                                 anything: names, separated by NUL. It is unfit without the first;
//                                 one with '-' before it is not loaded, "-*": nothing but the others
//            ── ready | unfit ──▶ after unfit it exits
//            ◀── fork ──          with the standby's end of its own socket; perhaps also a file in
//                                 which it writes 0 to enter its control group
//   standby  ── hello ──▶         its parent is the agent, it has a session of its own
//            ◀── become ──        with the descriptors of Become: it runs the program as this worker
//            ── anew ──▶          it executes the program anew, as if it had not been a standby
#pragma once

#include <cstddef>
#include <cstdint>

namespace ddprun::zygote {

// Decimal descriptor number of the socket: set for a zygote and for nothing else.
inline constexpr char kSocketVariable[] = "DDPRUN_ZYGOTE_FD";

inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::size_t kTextMax = 60'000;

enum class Kind : std::uint32_t {
  kHello = 1,  // text: what it is ("3.11"), for messages
  kReady =
      2,  // text: of Python a line with the packages that it has; lines about what could not be loaded
  kUnfit = 3,  // text: the name that is to blame or nothing, NUL, a sentence
  kAnew = 4,   // text: as of kUnfit
  kPrepare = 16,
  kFork = 17,
  kBecome = 18,
};

struct Header {
  std::uint32_t kind = 0;
  std::uint32_t version = kVersion;  // of the sender
  std::int32_t pid = 0;              // of the sender
  std::uint32_t flags = 0;
};
static_assert(sizeof(Header) == 16);

inline constexpr std::uint32_t kIsInControlGroup = 1;  // of a standby's kHello

// The descriptors of kBecome, in this order: a file whose text is the environment (NAME=value,
// separated by NUL), stdout, stderr; with kHasLink the two of the worker's link, and its record of
// collectives, whose headers name the standby's pid already. The process sets the link's variables to the numbers that these get.
inline constexpr std::uint32_t kHasLink = 1;
// After these the mirror of the worker that it may replace (worker_link.h), for link::kMirrorVariable.
inline constexpr std::uint32_t kHasMirror = 2;
// Before that one the node's memory for snapshots (worker_link.h), for link::kSnapshotVariable. A process of an
// earlier version closes it, or leaves it to be closed at an exec.
inline constexpr std::uint32_t kHasSnapshot = 4;

}  // namespace ddprun::zygote
