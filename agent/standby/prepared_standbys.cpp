#include "agent/standby/prepared_standbys.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <utility>

#include "agent/standby/background.h"
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

// Of this machine, and of the control group that this process is in.
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

// A worker that has just ended does not matter: nobody takes its place then.
bool run_the_same(pid_t standby, pid_t worker) {
  struct stat first {};
  struct stat second {};
  const auto look = [](pid_t pid, struct stat& file) {
    return ::stat(("/proc/" + std::to_string(pid) + "/exe").c_str(), &file) == 0;
  };
  return !look(standby, first) || !look(worker, second) ||
         (first.st_dev == second.st_dev && first.st_ino == second.st_ino);
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

PreparedStandbys::PreparedStandbys(boost::asio::io_context& io, bool are_wanted,
                                   int local_world_size, Hooks hooks)
    : io_(io),
      hooks_(std::move(hooks)),
      core_(are_wanted, local_world_size),
      timer_(io),
      events_([this](const prepared::Event& event) { step(event); }),
      calls_(io.get_executor(), "ddprun-prepared") {}

void PreparedStandbys::step(const prepared::Event& event) {
  for (const prepared::Action& action : core_.step(event)) {
    std::visit([this](const auto& each) { perform(each); }, action);
  }
}

void PreparedStandbys::perform(const prepared::ArmTimer& action) {
  timer_.arm(action.after, [this] {
    post(prepared::TimerFired{hooks_.is_replacing(), hooks_.is_blank_coming()});
  });
}

// ---- they come and go

void PreparedStandbys::perform(const prepared::Make& action) {
  if (auto made = make(action.local_rank); !made) {
    post(prepared::CannotStart{made.error().to_string()});
  }
}

Result<void> PreparedStandbys::make(int local_rank) {
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
  Standby& standby = standbys_.emplace_back();
  standby.local_rank = local_rank;
  *standby.on_end = [this, &standby](ExitStatus status) { on_end(standby, status); };
  auto started = hooks_.start(
      blueprint->spec, [on_end = standby.on_end](ExitStatus status) { (*on_end)(status); },
      [this](const Result<void>& executed) {
        if (!executed) post(prepared::CannotStart{executed.error().to_string()});
      });
  if (!started) {
    forget(standby);
    return fail(std::move(started.error()));
  }
  standby.process = std::move(*started);
  standby.link = std::move(blueprint->link);
  standby.error_file = std::move(blueprint->error_file);
  standby.stdout_file = std::move(stdout_file);
  standby.stderr_file = std::move(stderr_file);
  make_background(standby.process->pid());
  standby.link->started(
      standby.process->pid(),
      {.misuse =
           [this](std::string_view what) {
             post(prepared::Cannot{"a standby " + std::string(what)});
           },
       .stepped = [](const StepMarks&) {},
       .hello = [this, &standby] { on_hello(standby); },
       .cannot_recover = [this](const std::string& why,
                                bool /*nor_later*/) { post(prepared::Cannot{why}); }});
  return {};
}

// The file system of the program may not answer.
void PreparedStandbys::on_hello(const Standby& standby) {
  if (standby.waits || !standby.link->is_prepared()) return;
  const pid_t pid = standby.process->pid();
  calls_.run<bool>(
      [pid, worker = hooks_.worker(standby.local_rank)] { return run_the_same(pid, worker); },
      [this, pid](bool runs_the_same) { on_looked(pid, runs_the_same); });
}

void PreparedStandbys::on_looked(pid_t pid, bool runs_the_same) {
  const auto standby = std::ranges::find_if(
      standbys_, [pid](const Standby& each) { return each.process && each.process->pid() == pid; });
  if (standby == standbys_.end() || standby->waits) return;
  if (!runs_the_same) {
    return post(prepared::Cannot{"its file has changed since the workers were started"});
  }
  standby->waits = true;
  post(prepared::Waits{standby->local_rank, hooks_.is_blank_coming()});
}

void PreparedStandbys::on_end(Standby& standby, ExitStatus status) {
  const prepared::Ended ended{standby.local_rank, status, last_line_of(standby.stderr_file.get())};
  forget(standby);
  hooks_.reaped();
  post(ended);
}

void PreparedStandbys::forget(const Standby& standby) {
  if (!standby.error_file.empty()) hooks_.remove_file(standby.error_file);
  standbys_.remove_if([&standby](const Standby& each) { return &each == &standby; });
}

void PreparedStandbys::perform(const prepared::EndAll&) {
  while (!standbys_.empty()) {
    Standby& standby = standbys_.front();
    standby.process->signal_group(SIGKILL);
    ending_.push_back(std::move(standby.process));
    *standby.on_end = [this, place = std::prev(ending_.end()),
                       error_file = standby.error_file](ExitStatus) {
      if (!error_file.empty()) hooks_.remove_file(error_file);
      ending_.erase(place);
      hooks_.reaped();
    };
    standbys_.pop_front();
  }
}

// ---- one becomes a worker

const PreparedStandbys::Standby* PreparedStandbys::find(int local_rank) const {
  const auto found = std::ranges::find_if(standbys_, [local_rank](const Standby& each) {
    return each.local_rank == local_rank && each.waits;
  });
  return found == standbys_.end() ? nullptr : &*found;
}

std::optional<PreparedStandbys::Taken> PreparedStandbys::take(int local_rank, int rank,
                                                              std::uint32_t generation,
                                                              int stdout_fd, int stderr_fd,
                                                              WorkerLink& before,
                                                              WorkerProcess::OnEnd on_end) {
  const auto standby = std::ranges::find_if(standbys_, [local_rank](const Standby& each) {
    return each.local_rank == local_rank && each.waits;
  });
  if (standby == standbys_.end() ||
      !standby->link->tell_take_place(rank, generation, stdout_fd, stderr_fd, before)) {
    return std::nullopt;
  }
  make_worker(standby->process->pid());
  *standby->on_end = std::move(on_end);
  Taken taken{std::move(standby->process), std::move(standby->link),
              std::move(standby->error_file)};
  standbys_.erase(standby);
  post(prepared::Taken{local_rank});
  return taken;
}

// ---- at any time

bool PreparedStandbys::owns(pid_t child) const {
  return std::ranges::any_of(standbys_,
                             [child](const Standby& each) {
                               return each.process && each.process->pid() == child;
                             }) ||
         std::ranges::any_of(ending_, [child](const auto& each) { return each->pid() == child; });
}

void PreparedStandbys::signal_all(int signal) {
  for (const Standby& each : standbys_) each.process->signal_group(signal);
}

std::optional<ReplacementStatus> PreparedStandbys::status() const {
  if (!core_.is_wanted()) return std::nullopt;
  ReplacementStatus status;
  status.waiting = core_.waiting();
  status.why_none = core_.why_none();
  return status;
}

}  // namespace ddprun::agent
