#include "agent/process/orphans.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <sstream>

#include "agent/process/child_end.h"
#include "agent/process/process_stacks.h"
#include "rendezvous/common/file_text.h"
#include "rendezvous/common/parse_number.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::agent {
namespace {

using Found = EnvironmentLooks::Found;

constexpr std::chrono::milliseconds kLookLimit{200};

// During exec, and after a process released its memory in order to end, its environment reads as
// shorter than it is, or as empty. exec sets the start of the code last: if that is set, an
// environment that reads as empty is empty.
Found environment_has(pid_t pid, const std::string& entry) {
  const std::string path = "/proc/" + std::to_string(pid) + "/environ";
  const rdzv::UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return Found::kNo;  // gone, or of another user
  const std::string all = read_from(file.get()).value_or("");
  const std::string nul(1, '\0');
  if ((nul + all + nul).find(nul + entry + nul) != std::string::npos) return Found::kYes;
  const auto memory = memory_in(stat_after_name(pid));
  if (!memory || memory->state == 'Z' || memory->state == 'X') return Found::kNo;
  const bool was_seen_whole =
      memory->code_start != 0 && all.size() == memory->environment_end - memory->environment_start;
  return was_seen_whole ? Found::kNo : Found::kUnseen;
}

}  // namespace

std::optional<MemoryOfProcess> memory_in(const std::string& stat_after_name) {
  constexpr std::size_t kFirst = 3;  // the number in proc(5) of the first field behind the name
  std::istringstream stat(stat_after_name);
  const std::vector<std::string> fields{std::istream_iterator<std::string>(stat), {}};
  const auto number = [&](std::size_t field) {
    return field - kFirst < fields.size() ? parse_number<std::uint64_t>(fields[field - kFirst])
                                          : std::nullopt;
  };
  const auto code_start = number(26);
  const auto environment_start = number(50);
  const auto environment_end = number(51);
  if (!code_start || !environment_start || !environment_end) return std::nullopt;
  return MemoryOfProcess{fields.front().front(), *code_start, *environment_start, *environment_end};
}

void become_subreaper() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }

EnvironmentLooks::EnvironmentLooks(boost::asio::any_io_executor executor, std::string entry)
    : executor_(std::move(executor)), entry_(std::move(entry)) {}

EnvironmentLooks::Found EnvironmentLooks::take(pid_t pid) {
  if (const auto seen = found_.find(pid); seen != found_.end()) {
    const Found found = seen->second;
    if (found != Found::kHangs) found_.erase(seen);
    return found;
  }
  if (std::ranges::count(wanted_, pid) == 0) {
    wanted_.push_back(pid);
    if (wanted_.size() == 1) look();
  }
  return Found::kUnseen;
}

void EnvironmentLooks::look() {
  const pid_t pid = wanted_.front();
  if (!calls_) calls_ = std::make_unique<BlockingCalls>(executor_, "ddprun-strange");
  calls_->run<Found>(
      kLookLimit, [pid, entry = entry_] { return environment_has(pid, entry); },
      [this, pid](std::optional<Found> found) {
        found_[pid] = found.value_or(Found::kHangs);
        wanted_.pop_front();
        if (!found) calls_.reset();
        if (!wanted_.empty()) look();
      });
}

Orphans orphans_of(EnvironmentLooks& looks, const std::function<bool(pid_t)>& is_known) {
  Orphans orphans;
  for (const pid_t pid : children_of(::getpid())) {
    if (is_known(pid)) continue;
    const Found found = looks.take(pid);
    if (found == Found::kYes) orphans.pids.push_back(pid);
    if (found == Found::kHangs) orphans.hanging.push_back(pid);
    if (found == Found::kUnseen) orphans.some_unseen = true;
  }
  return orphans;
}

void reap_orphans(const std::function<bool(pid_t)>& is_known) {
  for (;;) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    if (is_known(info.si_pid)) return;
    if (!reaped(info.si_pid, WNOHANG)) return;  // refused: it would be found again for ever
  }
}

}  // namespace ddprun::agent
