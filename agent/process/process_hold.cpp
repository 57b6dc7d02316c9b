#include "agent/process/process_hold.h"

#include <charconv>
#include <string_view>

#include "rendezvous/common/file_text.h"
#include "rendezvous/common/trimmed.h"

namespace ddprun::agent {
namespace {

std::string file_of(pid_t pid, const char* name, const std::string& proc) {
  return file_text(proc + "/" + std::to_string(pid) + "/" + name);
}

// The value of "\nName:\tvalue\n".
std::string_view value_after(std::string_view text, std::string_view name) {
  const auto at = text.find(name);
  if (at == std::string_view::npos) return {};
  text.remove_prefix(at + name.size());
  return trimmed(text.substr(0, text.find('\n')));
}

std::uint64_t number_in(std::string_view text) {
  std::uint64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

}  // namespace

ProcessHold hold_of(pid_t pid, const std::string& proc) {
  const std::string status = file_of(pid, "status", proc);
  ProcessHold hold;
  hold.switches = number_in(value_after(status, "\nvoluntary_ctxt_switches:")) +
                  number_in(value_after(status, "\nnonvoluntary_ctxt_switches:"));
  const std::string_view tracer = value_after(status, "\nTracerPid:");
  const std::string_view state = value_after(status, "\nState:");
  if (!tracer.empty() && tracer != "0") {
    hold.state = RankState::kTraced;
  } else if (state.starts_with('T')) {
    hold.state = RankState::kStopped;
  } else if (state.starts_with('D')) {
    hold.state = RankState::kUninterruptible;
  }
  return hold;
}

// Version 2 and version 1 may both be there, and each has its own place for the process.
bool is_frozen(pid_t pid, const std::string& proc, const std::string& groups) {
  const std::string text = "\n" + file_of(pid, "cgroup", proc) + "\n";
  if (const std::string path(value_after(text, "\n0::")); !path.empty()) {
    for (const char* const mounted : {"", "/unified"}) {
      const std::string events = "\n" + file_text(groups + mounted + path + "/cgroup.events");
      if (value_after(events, "\nfrozen ") == "1") return true;
    }
  }
  const std::string path(value_after(text, ":freezer:"));
  return !path.empty() &&
         file_text(groups + "/freezer" + path + "/freezer.state").starts_with("FROZEN");
}

}  // namespace ddprun::agent
