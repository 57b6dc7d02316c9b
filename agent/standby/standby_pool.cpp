#include "agent/standby/standby_pool.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <iterator>
#include <sstream>
#include <system_error>
#include <tuple>
#include <utility>

#include "agent/core/worker_environment.h"
#include "agent/process/orphans.h"
#include "agent/python/python_archives.h"
#include "agent/standby/background.h"
#include "rendezvous/common/cgroup.h"
#include "rendezvous/common/file_text.h"
#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/text/lists.h"

namespace ddprun::agent {
namespace {

using rdzv::UniqueFd;

// The files of a program that are not seen by then may have changed.
constexpr std::chrono::milliseconds kLookLimit{2'000};
constexpr std::size_t kZygoteSlot = 0;
// Those that wait, and those that have become workers: they keep theirs.
constexpr std::size_t kSlotsPerStandby = 2;
// One that waits, its worker, and one that is still ending.
constexpr std::size_t kSlotsPerRank = 3;
constexpr std::uint64_t kRoomNeeded = 1ULL << 30;  // PyTorch takes half of it
constexpr std::string_view kZero("\0", 1);         // between the strings of a file in memory

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (end > 0) lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

// agent/python/sitecustomize.py writes it: "standby" if that process was one, a line for each import, its name and how many
// milliseconds it took, and an empty line.
constexpr const char* kImportsVariable = "DDPRUN_IMPORTS_FD";
constexpr std::size_t kImportsBytesMax = 64 << 10;

struct Imports {
  bool are_of_standby = false;
  std::vector<ImportTime> times;
};

Imports read_imports(int file) {
  std::string text(kImportsBytesMax, '\0');
  const ssize_t size = ::pread(file, text.data(), text.size(), 0);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, size)));
  Imports imports;
  if (!text.ends_with("\n\n")) return imports;
  imports.are_of_standby = text.starts_with("standby\n");
  for (const std::string& line : lines_of(text)) {
    const std::size_t space = line.find(' ');
    int milliseconds = 0;
    const char* const end = line.data() + line.size();
    if (space == std::string::npos ||
        std::from_chars(line.data() + space + 1, end, milliseconds).ec != std::errc()) {
      continue;
    }
    imports.times.push_back(
        {printable(line.substr(0, space)), std::chrono::milliseconds(milliseconds)});
  }
  return imports;
}

std::string package_of(const std::string& module) { return module.substr(0, module.find('.')); }

using Streams = std::pair<UniqueFd, UniqueFd>;  // stdout and stderr of a zygote

// The module that holds Python keeps what others print.
Result<Streams> streams_of_python() {
  Streams streams(::open("/dev/null", O_WRONLY | O_CLOEXEC),
                  ::open("/dev/null", O_WRONLY | O_CLOEXEC));
  return streams;
}

// What it prints before its Context is kept, and each worker prints it as its own.
Result<Streams> streams_of_program() {
  Streams streams(::memfd_create("ddprun-stdout", MFD_CLOEXEC),
                  ::memfd_create("ddprun-stderr", MFD_CLOEXEC));
  if (streams.first && streams.second) return streams;
  return fail(error_from_errno(errno, "memory for what a program prints"));
}

}  // namespace

StandbyPool::StandbyPool(boost::asio::io_context& io, const Job& job, std::string agent_id,
                         Hooks hooks)
    : io_(io),
      job_(job),
      agent_id_(std::move(agent_id)),
      hooks_(std::move(hooks)),
      core_(job.standbys, job.local_world_size),
      zygote_timer_(io),
      rank_timer_(io),
      events_([this](const standby::Event& event) { step(event); }),
      calls_(io.get_executor(), "ddprun-standby") {
  if (core_.wanted() > 0 && wants_python_hooks(job)) {
    imports_file_ = UniqueFd(::memfd_create("ddprun-imports", MFD_CLOEXEC));
  }
}

std::size_t StandbyPool::slots(const Job& job) {
  const auto wanted = static_cast<std::size_t>(job.standbys.wanted);
  const auto ranks = static_cast<std::size_t>(job.local_world_size);
  const std::size_t of_standbys = kSlotsPerStandby * wanted;
  const std::size_t of_prepared = job.standbys.prepares ? kSlotsPerRank * ranks : 0;
  return of_standbys + of_prepared == 0 ? 0 : 1 + of_standbys + of_prepared;
}

void StandbyPool::round_begins(std::function<void()> ready) {
  ready_ = std::move(ready);
  look_at_program();
  post(standby::RoundBegins{});
}

// Python's standbys look themselves, at what the program is about to import.
void StandbyPool::look_at_program() {
  if (!job_.standbys.is_program || core_.waiting() == 0) return;
  is_looking_ = true;
  calls_.run<std::string>(
      kLookLimit, [loaded = loaded_] { return loaded.changed(); },
      [this](const std::optional<std::string>& changed) {
        is_looking_ = false;
        const std::string file = changed.value_or(job_.program.path);
        if (!file.empty()) return post(standby::ProgramChanged{file});
        start_when_ready();
      });
}

void StandbyPool::job_is_over() {
  do_not_begin();
  post(standby::JobOver{});
}

bool StandbyPool::owns(pid_t child) const {
  return zygote_.is(child) ||
         std::ranges::any_of(standbys_,
                             [child](const Standby& each) { return each.child.is(child); }) ||
         std::ranges::any_of(ending_,
                             [child](const Ending& each) { return each.process->pid() == child; });
}

std::optional<StandbyStatus> StandbyPool::status() const {
  if (core_.wanted() == 0 && core_.why_none().empty()) return std::nullopt;
  return StandbyStatus{core_.waiting(), core_.wanted(), core_.why_none(), repeated_imports()};
}

// What the round's first worker has imported that no zygote had loaded for it, or will. A worker that was no standby does not
// know which modules of a package will be loaded.
std::vector<ImportTime> StandbyPool::repeated_imports() const {
  std::vector<ImportTime> imports;
  if (!imports_file_ || loaded_packages_.empty()) return imports;
  Imports all = read_imports(imports_file_.get());
  for (ImportTime& each : all.times) {
    if (!all.are_of_standby && std::ranges::count(loaded_packages_, package_of(each.module)) > 0) {
      continue;
    }
    each.can_be_preloaded = std::ranges::count(core_.left_out(), each.module) == 0;
    imports.push_back(std::move(each));
  }
  return imports;
}

void StandbyPool::post(standby::Event event) {
  if (events_.post(std::move(event))) start_when_ready();
}

void StandbyPool::step(const standby::Event& event) {
  for (const standby::Action& action : core_.step(event)) {
    std::visit([this](const auto& each) { perform(each); }, action);
  }
}

void StandbyPool::start_when_ready() {
  if (ready_ && !is_looking_ && !core_.delays_start()) std::exchange(ready_, nullptr)();
}

void StandbyPool::perform(const standby::ArmTimer& action) {
  timer(action.timer).arm(action.after, [this, of = action.timer] {
    if (of == standby::TimerOf::kRanks) {
      return post(standby::RankTimer{hooks_.is_replacing(), hooks_.gpus()});
    }
    if (!job_.standbys.is_program) return on_zygote_timer("");
    calls_.run<std::string>(why_program_is_none(),
                            [this](const std::string& why) { on_zygote_timer(why); });
  });
}

void StandbyPool::on_zygote_timer(const std::string& why_program_is_none) {
  post(standby::ZygoteTimer{hooks_.are_workers_starting(), why_program_is_none});
}

// A standby would not run a script around the program, which may do anything with a rank.
std::function<std::string()> StandbyPool::why_program_is_none() const {
  return [worker = hooks_.worker_like_a_zygote(), program = job_.program]() -> std::string {
    if (worker == 0) {
      return program.name + " has not said that it can wait for a rank, as ddprun::run() does";
    }
    if (runs(worker, program.path)) return "";
    return "the workers do not run " + program.path + " itself, or it has changed";
  };
}

void StandbyPool::add_imports_file(ProcessSpec& spec) const {
  if (!imports_file_) return;
  spec.environment.push_back(std::string(kImportsVariable) + "=" +
                             std::to_string(imports_file_.get()));
  spec.inherited_fds.push_back(imports_file_.get());
}

// ---- the zygote

void StandbyPool::start_zygote(bool is_trial) {
  is_trial_ = is_trial;
  if (auto started = try_to_start_zygote(); !started) {
    zygote_channel_.reset();
    post(standby::ZygoteCannotStart{started.error().to_string()});
  }
}

Result<void> StandbyPool::try_to_start_zygote() {
  const auto room = cgroup::memory_room();
  if (room && room->left < kRoomNeeded) {
    return fail(ErrorCode::kResourceExhausted,
                "memory is short: " + std::to_string(room->left >> 20) + " MiB are left in " +
                    room->folder);
  }
  auto sockets = Channel::make_pair();
  if (!sockets) return fail(std::move(sockets.error()));
  ProcessSpec spec;
  spec.path = job_.program.path;
  spec.argv = worker_arguments(job_.program, 0);
  spec.preempt_signal =
      job_.preempt_signal.value_or(0);  // as its standbys have it, which become workers
  ChildEnvironment environment = zygote_environment(job_);
  environment.set(kAgentVariable, agent_id_);
  environment.set(zygote::kSocketVariable, std::to_string(sockets->second.get()));
  if (hooks_.add_python_hooks) hooks_.add_python_hooks(spec, environment);
  const auto streams = job_.standbys.is_program ? streams_of_program() : streams_of_python();
  if (!streams) return fail(streams.error());
  if (!job_.standbys.is_program) {
    if (auto held = hold_python(spec, environment); !held) return held;
  }
  spec.environment = environment.lines();
  spec.stdout_fd = streams->first.get();
  spec.stderr_fd = streams->second.get();
  spec.keeper_slot = hooks_.keeper_slot(kZygoteSlot);
  spec.inherited_fds.push_back(sockets->second.get());
  if (imports_file_) spec.inherited_fds.push_back(imports_file_.get());
  zygote_ = Child();
  *zygote_.on_end = [this](ExitStatus status) { on_zygote_end(standby::ZygoteEnded{status}); };
  auto started = WorkerProcess::start(
      io_, spec, zygote_.teller(), [this, on_end = zygote_.on_end](const Result<void>& executed) {
        if (executed || zygote_.on_end != on_end) return;
        *on_end = [this, why = executed.error().to_string()](ExitStatus) {
          on_zygote_end(standby::ZygoteCannotStart{why});
        };
      });
  if (!started) return fail(std::move(started.error()));
  zygote_.process = std::move(*started);
  zygote_channel_ = std::make_unique<Channel>(
      io_.get_executor(), std::move(sockets->first),
      Channel::Events{[this](const zygote::Header& header, std::string_view text) {
                        on_message_of_zygote(header, text);
                      },
                      [this] { zygote_channel_.reset(); }});
  return {};
}

// Before the program's first line; the trial has no program.
Result<void> StandbyPool::hold_python(ProcessSpec& spec, ChildEnvironment& environment) {
  if (!archive_) {
    auto archive = file_in_memory("ddprun-standby", kHoldingArchive);
    if (!archive) return fail(std::move(archive.error()));
    archive_ = std::move(*archive);
  }
  if (is_trial_) {
    spec.argv.resize(1 + job_.program.python_options);
    spec.argv.insert(spec.argv.end(), {"-c", ""});
  }
  put_first_on_python_path(environment, archive_.get());
  spec.inherited_fds.push_back(archive_.get());
  return {};
}

void StandbyPool::on_message_of_zygote(const zygote::Header& header, std::string_view text) {
  switch (static_cast<zygote::Kind>(header.kind)) {
    case zygote::Kind::kHello:
      return post(standby::ZygoteHeld{});
    case zygote::Kind::kReady:
      return on_ready(lines_of(printable_lines(text)));
    case zygote::Kind::kUnfit: {
      const std::size_t end = std::min(text.find('\0'), text.size());
      const std::string_view why = text.substr(std::min(end + 1, text.size()));
      return post(standby::ZygoteUnfit{std::string(text.substr(0, end)), printable(why)});
    }
    default:
      return;
  }
}

void StandbyPool::on_ready(std::vector<std::string> lines) {
  if (!job_.standbys.is_program) {
    if (!lines.empty()) {
      std::istringstream packages(lines.front());
      loaded_packages_.assign(std::istream_iterator<std::string>(packages), {});
      lines.erase(lines.begin());
    }
    return post(standby::ZygoteReady{std::move(lines)});
  }
  if (!zygote_.process) return post(standby::ZygoteReady{std::move(lines)});
  const pid_t pid = zygote_.process->pid();
  calls_.run<LoadedFiles>([pid] { return LoadedFiles::of(pid); },
                          [this, pid, lines = std::move(lines)](LoadedFiles loaded) {
                            if (!zygote_.process || zygote_.process->pid() != pid) return;
                            loaded_ = std::move(loaded);
                            post(standby::ZygoteReady{lines});
                          });
}

void StandbyPool::on_zygote_end(standby::Event how) {
  zygote_channel_.reset();
  zygote_ = Child();
  hooks_.reaped();
  post(std::move(how));
}

void StandbyPool::perform(const standby::LoadModules& action) {
  std::vector<std::string> names = action.names;
  for (const std::string& name : action.left_out) names.push_back("-" + name);
  const auto list = file_in_memory("ddprun-modules", joined(names, kZero));
  if (!list) return post(standby::ZygoteCannotStart{list.error().to_string()});
  if (!zygote_channel_ || !zygote_.process) return;  // its end is about to be told
  if (!core_.delays_start()) {
    make_background(zygote_.process->pid());
    // A standby that is forked has a session, and so an autogroup, of its own.
    write_of_process(zygote_.process->pid(), "autogroup", "5");
  }
  zygote_channel_->send(zygote::Kind::kPrepare, 0, "", std::array{list->get()});
}

void StandbyPool::perform(const standby::EndZygote&) {
  zygote_channel_.reset();
  if (!zygote_.process) return;
  if (!is_trial_) return kill(std::exchange(zygote_, Child()));
  zygote_.process->signal_group(SIGKILL);  // its end is awaited
}

// ---- blank standbys come

void StandbyPool::perform(const standby::ForkBlank&) {
  if (!ask_for_blank()) post(standby::Lost{.has_waited = false});
}

Result<void> StandbyPool::ask_for_blank() {
  auto sockets = Channel::make_pair();
  if (!sockets) return fail(std::move(sockets.error()));
  const UniqueFd group = hooks_.next_control_group();
  std::vector<int> descriptors{sockets->second.get()};
  if (group) descriptors.push_back(group.get());
  if (!zygote_channel_ || !zygote_channel_->send(zygote::Kind::kFork, 0, "", descriptors)) {
    return fail(ErrorCode::kClosed, "the zygote does not answer");
  }
  Standby& standby = standbys_.emplace_back();
  standby.channel = std::make_unique<Channel>(
      io_.get_executor(), std::move(sockets->first),
      Channel::Events{[this, &standby](const zygote::Header& header, std::string_view text) {
                        on_message_of(standby, header, text);
                      },
                      [this, &standby] { on_closed(standby); }});
  return {};
}

void StandbyPool::on_message_of(Standby& standby, const zygote::Header& header,
                                std::string_view text) {
  const auto kind = static_cast<zygote::Kind>(header.kind);
  if (kind == zygote::Kind::kHello && standby.state == Standby::State::kComing) {
    if (!on_hello_of(standby, header)) lose(standby);
  } else if (kind == zygote::Kind::kAnew && standby.state == Standby::State::kWorker) {
    const std::size_t end = std::min(text.find('\0'), text.size());
    const standby::StartedAnew anew{printable(text.substr(0, end)),
                                    printable(text.substr(std::min(end + 1, text.size())))};
    forget(standby);
    post(anew);
  }
}

Result<void> StandbyPool::on_hello_of(Standby& standby, const zygote::Header& header) {
  const bool is_in_control_group = (header.flags & zygote::kIsInControlGroup) != 0;
  auto adopted = WorkerProcess::adopt(io_, header.pid, is_in_control_group, free_slot(),
                                      standby.child.teller());
  if (!adopted) return fail(std::move(adopted.error()));
  standby.child.process = std::move(*adopted);
  *standby.child.on_end = [this, &standby](ExitStatus) {
    hooks_.reaped();
    lose(standby);
  };
  standby.state = Standby::State::kWaiting;
  post(standby::Waits{});
  return {};
}

// One that waits has ended, or will: its end is awaited.
void StandbyPool::on_closed(Standby& standby) {
  if (standby.state == Standby::State::kComing) return lose(standby);
  if (standby.state == Standby::State::kWorker) return forget(standby);
  standby.child.process->signal_group(SIGKILL);
}

void StandbyPool::lose(Standby& standby) {
  const bool has_waited = standby.state == Standby::State::kWaiting;
  forget(standby);
  post(standby::Lost{.has_waited = has_waited});
}

// ---- standbys of both kinds go

void StandbyPool::end_all(bool are_for_ranks) {
  for (auto each = standbys_.begin(); each != standbys_.end();) {
    const auto standby = each++;
    if (standby->state == Standby::State::kWorker) continue;
    if (standby->local_rank.has_value() != are_for_ranks) continue;
    if (standby->child.process) {
      kill(std::move(standby->child), are_for_ranks, standby->error_file);
    }
    standbys_.erase(
        standby);  // a blank one that is still to come exits when it finds its socket closed
  }
}

void StandbyPool::kill(Child child, bool is_for_rank, const std::string& error_file) {
  child.process->signal_group(SIGKILL);
  ending_.push_back({std::move(child.process), is_for_rank});
  *child.on_end = [this, place = std::prev(ending_.end()), error_file](ExitStatus) {
    if (!error_file.empty()) hooks_.remove_file(error_file);
    ending_.erase(place);
    hooks_.reaped();
  };
}

// The callers may run in a callback of the channel or of the process, which allows that.
void StandbyPool::forget(const Standby& standby) {
  if (!standby.error_file.empty()) hooks_.remove_file(standby.error_file);
  standbys_.remove_if([&standby](const Standby& each) { return &each == &standby; });
}

std::atomic<pid_t>* StandbyPool::free_slot() const {
  for (std::size_t i = kZygoteSlot + 1; i < slots(job_); ++i) {
    std::atomic<pid_t>* const slot = hooks_.keeper_slot(i);
    if (slot != nullptr && slot->load() == 0) return slot;
  }
  return nullptr;
}

// ---- a blank standby becomes a worker

std::unique_ptr<WorkerProcess> StandbyPool::take(const ProcessSpec& spec,
                                                 WorkerProcess::OnEnd on_end) {
  if (spec.waits_for_debugger) return nullptr;
  for (Standby& standby : standbys_) {
    if (standby.local_rank || standby.state != Standby::State::kWaiting) continue;
    if (!become(standby, spec)) continue;
    *standby.child.on_end = std::move(on_end);
    standby.state = Standby::State::kWorker;
    post(standby::Taken{});
    return std::move(standby.child.process);
  }
  return nullptr;
}

bool StandbyPool::become(Standby& standby, const ProcessSpec& spec) {
  const auto environment = file_in_memory("ddprun-environment", joined(spec.environment, kZero));
  if (!environment) return false;
  const pid_t pid = standby.child.process->pid();
  const bool has_link = spec.link_socket_fd >= 0;
  std::vector<int> descriptors{environment->get(),
                               spec.stdout_fd >= 0 ? spec.stdout_fd : STDOUT_FILENO,
                               spec.stderr_fd >= 0 ? spec.stderr_fd : STDERR_FILENO};
  if (has_link) {
    write_link_page(spec, pid, ::getpid());
    descriptors.insert(descriptors.end(), {spec.link_socket_fd, spec.link_page_fd});
    if (spec.link_record_fd >= 0) descriptors.push_back(spec.link_record_fd);
  }
  if (spec.link_snapshot_fd >= 0) descriptors.push_back(spec.link_snapshot_fd);
  if (spec.link_mirror_fd >= 0) descriptors.push_back(spec.link_mirror_fd);
  make_worker(pid);
  const std::uint32_t flags = (has_link ? zygote::kHasLink : 0) |
                              (spec.link_snapshot_fd >= 0 ? zygote::kHasSnapshot : 0) |
                              (spec.link_mirror_fd >= 0 ? zygote::kHasMirror : 0);
  return standby.channel->send(zygote::Kind::kBecome, flags, "", descriptors);
}

}  // namespace ddprun::agent
