// What the ranks of a job do when some of them hang: those first, with their stacks; then all others, those
// that do the same together, so that a thousand ranks are a few lines. Pure.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/status/job_status.h"
#include "rendezvous/round/hang_core.h"

namespace ddprun::agent {

// What could be learned of a rank's main thread.
struct RankStack {
  std::string state;    // "T (stopped)"; empty: not known
  std::string stack;    // a line per frame, the innermost first
  std::string trouble;  // what is missing, and what to do about it
};

// Ranks that do the same.
struct RanksAlike {
  std::vector<int> ranks;
  std::vector<std::string> hosts;  // different ones
  std::string state;               // if it says why they do not run
  std::string call;  // "in all_reduce (call 12 of ddprun)", "in no call; the last was …"
  std::chrono::nanoseconds since{};  // it was entered, or is over; the longest
  std::string stack;
  std::string trouble;
  // Of a single rank.
  int pid = 0;
  std::optional<std::int64_t> step;  // the last that it has done
  std::chrono::nanoseconds since_step{};
};

struct HangReport {
  Round round{};
  rdzv::Hung hung;
  std::vector<RanksAlike> culprits;
  std::vector<RanksAlike> others;
  std::vector<std::string> silent;  // hosts that have not answered in time
};

// A line about a wait that lasts: which ranks wait for which, in which call, for how long, and what a missing rank does, as
// far as its stack is known.
std::string wait_line(const rdzv::WaitingFor& wait, const std::map<int, RankStack>& stacks,
                      int agent_pid);

HangReport make_hang_report(const rdzv::Hung& hung, const JobStatus& status,
                            const std::map<int, RankStack>& stacks);

// Whole lines, safe to print on a terminal. Does not repeat the verdict.
std::string to_text(const HangReport& report);

}  // namespace ddprun::agent
