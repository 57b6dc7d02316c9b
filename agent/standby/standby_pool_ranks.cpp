// The standbys for ranks.
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "agent/standby/background.h"
#include "agent/standby/standby_pool.h"
#include "rendezvous/common/cgroup.h"
#include "rendezvous/common/file_text.h"
#include "rendezvous/common/foreign_text.h"

namespace ddprun::agent {
namespace {

using rdzv::UniqueFd;

constexpr std::uint64_t kRoomBesides = 256ULL << 20;
constexpr off_t kLastWordsMax = 4096;

// The bytes of a line such as "MemAvailable:   123 kB".
std::optional<std::uint64_t> bytes_in(const std::string& text, const char* key) {
  const std::size_t at = text.find(key);
  if (at == std::string::npos) return std::nullopt;
  return std::strtoull(text.c_str() + at + std::strlen(key), nullptr, 10) << 10;
}

// What a worker has of its own: a standby of its rank will need the same.
std::uint64_t own_memory_of(pid_t pid) {
  return bytes_in(file_text("/proc/" + std::to_string(pid) + "/status"), "RssAnon:").value_or(0);
}

// Looks at this machine, and at the control group that this process is in.
Result<void> has_room(std::uint64_t needed) {
  const auto short_of = [needed](std::uint64_t left, const std::string& where) {
    return fail(ErrorCode::kResourceExhausted,
                "memory is short: " + std::to_string(left >> 20) + " MiB are left " + where +
                    ", and a standby would need " + std::to_string(needed >> 20));
  };
  const auto room = cgroup::memory_room();
  if (room && room->left < needed) return short_of(room->left, "in " + room->folder);
  const auto available = bytes_in(file_text("/proc/meminfo"), "MemAvailable:");
  if (available && *available < needed) return short_of(*available, "on this machine");
  return {};
}

// A worker that has just ended does not matter: it is replaced by other means.
bool run_the_same(pid_t standby, pid_t worker) {
  struct stat first {};
  struct stat second {};
  const auto look = [](pid_t pid, struct stat& file) {
    return ::stat(("/proc/" + std::to_string(pid) + "/exe").c_str(), &file) == 0;
  };
  return !look(standby, first) || !look(worker, second) ||
         (first.st_dev == second.st_dev && first.st_ino == second.st_ino);
}

// What kStandbyGpuVariable has.
std::string text_for_standby(const standby::MakeForRank& action) {
  const auto preparation = static_cast<std::size_t>(action.preparation);
  return std::string(link::kPreparations.at(preparation)) + " " + std::to_string(action.gpu.index) +
         " " + std::to_string(action.gpu.used_bytes);
}

// The last line that is not empty.
std::string last_line_of(int file) {
  const off_t end = ::lseek(file, 0, SEEK_END);
  const off_t from = std::max<off_t>(0, end - kLastWordsMax);
  std::string text(static_cast<std::size_t>(std::max<off_t>(0, end - from)), '\0');
  const ssize_t size = ::pread(file, text.data(), text.size(), from);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, size)));
  text.erase(text.find_last_not_of(" \r\n\t") + 1);
  return printable(text.substr(text.rfind('\n') + 1));
}

}  // namespace

// ---- they come and go

void StandbyPool::perform(const standby::MakeForRank& action) {
  if (auto made = make_for_rank(action); !made) {
    post(standby::CannotMake{made.error().to_string()});
  }
}

Result<void> StandbyPool::make_for_rank(const standby::MakeForRank& action) {
  const int local_rank = action.local_rank;
  const std::uint64_t own = own_memory_of(hooks_.worker(local_rank));
  if (auto room = has_room(own + kRoomBesides); !room) return room;
  UniqueFd stdout_file(::memfd_create("ddprun-stdout", MFD_CLOEXEC));
  UniqueFd stderr_file(::memfd_create("ddprun-stderr", MFD_CLOEXEC));
  if (!stdout_file || !stderr_file) {
    return fail(error_from_errno(errno, "memory for what a standby prints"));
  }
  auto blueprint = hooks_.blueprint(local_rank);
  if (!blueprint) return fail(std::move(blueprint.error()));
  blueprint->spec.stdout_fd = stdout_file.get();
  blueprint->spec.stderr_fd = stderr_file.get();
  if (action.gpu.is_on_gpu()) {
    blueprint->spec.environment.push_back(std::string(link::kStandbyGpuVariable) + "=" +
                                          text_for_standby(action));
  }
  Standby& standby = standbys_.emplace_back();
  standby.local_rank = local_rank;
  *standby.child.on_end = [this, &standby](ExitStatus status) { on_end_for_rank(standby, status); };
  auto started =
      hooks_.start(blueprint->spec, standby.child.teller(), [this](const Result<void>& executed) {
        if (!executed) post(standby::CannotMake{executed.error().to_string()});
      });
  if (!started) {
    forget(standby);
    return fail(std::move(started.error()));
  }
  standby.child.process = std::move(*started);
  standby.link = std::move(blueprint->link);
  standby.error_file = std::move(blueprint->error_file);
  standby.stdout_file = std::move(stdout_file);
  standby.stderr_file = std::move(stderr_file);
  make_background(standby.child.process->pid());
  standby.link->started(
      standby.child.process->pid(),
      {.misuse =
           [this](std::string_view what) {
             post(standby::StandbyCannot{"a standby " + std::string(what)});
           },
       .stepped = [](const StepMarks&) {},
       .hello = [this, &standby] { on_hello_for_rank(standby); },
       .cannot_recover = [this](const std::string& why,
                                bool /*nor_later*/) { post(standby::StandbyCannot{why}); }});
  return {};
}

// The file system of the program may not answer.
void StandbyPool::on_hello_for_rank(const Standby& standby) {
  if (standby.state != Standby::State::kComing || !standby.link->is_prepared()) return;
  const pid_t pid = standby.child.process->pid();
  calls_.run<bool>(
      [pid, worker = hooks_.worker(*standby.local_rank)] { return run_the_same(pid, worker); },
      [this, pid](bool runs_the_same) { on_looked(pid, runs_the_same); });
}

void StandbyPool::on_looked(pid_t pid, bool runs_the_same) {
  const auto standby =
      std::ranges::find_if(standbys_, [pid](const Standby& each) { return each.child.is(pid); });
  if (standby == standbys_.end() || standby->state != Standby::State::kComing) return;
  if (!runs_the_same) {
    return post(standby::StandbyCannot{"its file has changed since the workers were started"});
  }
  standby->state = Standby::State::kWaiting;
  post(standby::Waits{standby->local_rank});
}

void StandbyPool::on_end_for_rank(Standby& standby, ExitStatus status) {
  const standby::Lost lost{.local_rank = standby.local_rank,
                           .status = status,
                           .last_words = last_line_of(standby.stderr_file.get())};
  const std::shared_ptr<WorkerLink> link = standby.link;
  forget(standby);
  hooks_.reaped();
  link->listen(
      {.misuse = [](std::string_view) {},
       .stepped = [](const StepMarks&) {},
       .cannot_recover = [this](const std::string& why,
                                bool /*nor_later*/) { post(standby::StandbyCannot{why}); }});
  link->ended();
  post(lost);
}

// ---- one becomes a worker

const StandbyPool::Standby* StandbyPool::find(int local_rank) const {
  const auto found = std::ranges::find_if(standbys_, [local_rank](const Standby& each) {
    return each.local_rank == local_rank && each.state == Standby::State::kWaiting;
  });
  return found == standbys_.end() ? nullptr : &*found;
}

std::optional<StandbyPool::Taken> StandbyPool::take_place(int local_rank, int rank,
                                                          std::uint32_t generation, int stdout_fd,
                                                          int stderr_fd, WorkerLink& before,
                                                          WorkerProcess::OnEnd on_end) {
  const auto standby = std::ranges::find_if(
      standbys_, [waits = find(local_rank)](const Standby& each) { return &each == waits; });
  if (standby == standbys_.end() ||
      !standby->link->tell_take_place(rank, generation, stdout_fd, stderr_fd, before)) {
    return std::nullopt;
  }
  make_worker(standby->child.process->pid());
  *standby->child.on_end = std::move(on_end);
  Taken taken{std::move(standby->child.process), std::move(standby->link),
              std::move(standby->error_file)};
  standbys_.erase(standby);
  post(standby::Taken{local_rank});
  return taken;
}

// ---- at any time

bool StandbyPool::are_all_for_ranks_gone() const {
  return std::ranges::none_of(standbys_,
                              [](const Standby& each) { return each.local_rank.has_value(); }) &&
         std::ranges::none_of(ending_, &Ending::is_for_rank);
}

void StandbyPool::signal_all_for_ranks(int signal) {
  for (const Standby& each : standbys_) {
    if (each.local_rank) each.child.process->signal_group(signal);
  }
}

std::optional<ReplacementStatus> StandbyPool::replacement() const {
  if (!core_.prepares()) return std::nullopt;
  ReplacementStatus status;
  status.waiting = core_.waiting_for_ranks();
  status.why_none = core_.why_none_for_ranks();
  status.why_unprepared = core_.why_unprepared();
  return status;
}

}  // namespace ddprun::agent
