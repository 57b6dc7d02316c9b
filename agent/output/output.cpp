#include "agent/output/output.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/system/system_error.hpp>
#include <cassert>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <tuple>
#include <utility>

#include "rendezvous/common/unfinished_file.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::seconds kDiskPatience{5};
constexpr std::chrono::seconds kFolderPatience{5};          // before the user is told
constexpr std::chrono::milliseconds kUnansweredAfter{250};  // a write that takes longer

std::size_t index(Stream stream) { return static_cast<std::size_t>(stream); }

const char* name_of(Stream stream) { return stream == Stream::kStdout ? "stdout" : "stderr"; }

Result<std::string> make_unique_directory(const std::string& prefix) {
  std::string path = prefix + "XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) {
    return fail(error_from_errno(errno, "cannot make the log directory " + path));
  }
  return path;
}

// Makes the folder of a run in `log_dir`, which is made with its parents if needed, and returns its
// path. If `log_dir` is empty, uses a new folder in `temporary_directory`.
Result<std::string> make_log_directory(const std::string& log_dir,
                                       const std::string& temporary_directory,
                                       const std::string& run_id) {
  std::string root = log_dir;
  if (log_dir.empty()) {
    auto made = make_unique_directory(temporary_directory + "/torchelastic_");
    if (!made) return fail(std::move(made.error()).with("hint", "set TMPDIR or give --log-dir"));
    root = *made;
  } else {
    std::error_code error;
    std::filesystem::create_directories(root, error);
    if (error) {
      return fail(error_from_errno(error.value(), "cannot make the log directory " + root)
                      .with("option", "--log-dir"));
    }
  }
  std::string name = run_id;
  std::ranges::replace(name, '/', '_');
  auto made = make_unique_directory(root + "/" + name + "_");
  if (!made) return fail(std::move(made.error()).with("option", "--log-dir"));
  return made;
}

// What a worker writes to: the agent's end, which does not block, and the worker's.
struct Ends {
  rdzv::UniqueFd agent;
  rdzv::UniqueFd worker;
};

Result<Ends> open_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return fail(error_from_errno(errno, "cannot make a pipe"));
  // Only the agent's end: the worker expects a blocking one.
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return Ends{rdzv::UniqueFd(ends[0]), rdzv::UniqueFd(ends[1])};
}

void copy_window_size(int from, int to) {
  winsize size{};
  if (::ioctl(from, TIOCGWINSZ, &size) == 0) ::ioctl(to, TIOCSWINSZ, &size);
}

// In raw mode: no byte is changed. It does not become the worker's controlling terminal.
Result<Ends> open_pseudo_terminal(int like) {
  rdzv::UniqueFd agent(::open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK));
  if (!agent) return fail(error_from_errno(errno, "cannot open /dev/ptmx"));
  rdzv::UniqueFd worker;
  if (::unlockpt(agent.get()) == 0) {
    // Without the device's name, which may be wrong in another mount namespace.
    worker.reset(::ioctl(agent.get(), TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC));
  }
  termios mode{};
  if (!worker || ::tcgetattr(worker.get(), &mode) != 0) {
    return fail(error_from_errno(errno, "cannot open a pseudo-terminal for a worker's stderr"));
  }
  ::cfmakeraw(&mode);
  ::tcsetattr(worker.get(), TCSANOW, &mode);
  copy_window_size(like, agent.get());
  return Ends{std::move(agent), std::move(worker)};
}

}  // namespace

Output::Output(boost::asio::any_io_executor executor, Console& console, const OutputSpec& spec,
               const std::string& run_id, const std::string& temporary_directory)
    : executor_(executor),
      console_(console),
      spec_(spec),
      run_id_(run_id),
      temporary_directory_(temporary_directory.empty() ? "/tmp" : temporary_directory),
      folder_timer_(executor),
      folders_(executor, "ddprun-folders") {}

Output::~Output() {
  workers_.clear();
  undelivered_.clear();
  opened_.clear();
  filtered_files_ = {};
  if (!files_) return;
  const std::chrono::steady_clock::duration patience = kDiskPatience;
  const auto waited = std::min(files_->busy_for().value_or(0s), patience);
  files_->flush(std::chrono::steady_clock::now() + patience - waited);
}

void Output::prepare(Made made) {
  if (!has_files(spec_)) return made({});
  if (!needs_files(spec_)) return made(name_error_files());
  await_folder();
  folders_.run<Result<std::string>>(
      [log_dir = spec_.log_dir, temporary = temporary_directory_, run_id = run_id_] {
        return make_log_directory(log_dir, temporary, run_id);
      },
      [this, made = std::move(made)](Result<std::string> path) {
        awaits_folder_ = false;
        if (!path) return made(fail(std::move(path.error())));
        directory_ = std::move(*path);
        made({});
      });
}

// The name must not be predictable, because other users may write to the same folder.
Result<void> Output::name_error_files() {
  std::uint64_t random = 0;
  if (::getrandom(&random, sizeof random, 0) < 0) {
    return fail(error_from_errno(errno, "cannot name the error files"));
  }
  error_file_prefix_ = temporary_directory_ + "/torchelastic_" + std::to_string(random) + "_";
  return {};
}

void Output::prepare_round(std::uint64_t round, const std::vector<int>& local_ranks, Made made) {
  if (directory_.empty()) return made({});
  if (std::exchange(filtered_round_, round) != round) filtered_files_ = {};
  await_folder();
  folders_.run<Result<OpenFiles>>(
      [wanted = files_of_round(round, local_ranks)] { return make_round(wanted); },
      [this, number = ++rounds_asked_for_, made = std::move(made)](Result<OpenFiles> opened) {
        take_round(std::move(opened), number, made);
      });
}

Output::RoundFiles Output::files_of_round(std::uint64_t round,
                                          const std::vector<int>& local_ranks) const {
  RoundFiles wanted{{folder_of(round)}, {}};
  for (const int local_rank : local_ranks) {
    wanted.folders.push_back(folder_of(round, local_rank));
    for (const Stream stream : {Stream::kStdout, Stream::kStderr}) {
      const StreamPlan plan = plan_stream(spec_, stream, local_rank, console_.is_terminal(stream));
      if (plan.to_file) wanted.files.insert(file_of(round, local_rank, stream));
      if (plan.is_filtered && !filtered_files_[index(stream)]) {
        wanted.files.insert(filtered_file_of(round, stream));
      }
    }
  }
  return wanted;
}

// Runs on the thread of folders_.
Result<Output::OpenFiles> Output::make_round(const RoundFiles& wanted) {
  for (const std::string& path : wanted.folders) {
    if (::mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) {
      return fail(error_from_errno(errno, "cannot make the log directory " + path));
    }
  }
  OpenFiles opened;
  for (const std::string& path : wanted.files) {
    auto file = open_log_file(path);
    if (!file) return fail(std::move(file.error()));
    opened.emplace(path, std::move(*file));
  }
  return opened;
}

void Output::take_round(Result<OpenFiles> opened, std::uint64_t number, const Made& made) {
  // Also if the round was cancelled: the files are then closed on the writer's thread.
  std::map<std::string, std::shared_ptr<LogFile>> taken;
  if (opened) {
    for (auto& [path, fd] : *opened) taken[path] = files().adopt(fd.release(), path);
  }
  if (number != rounds_asked_for_) return;
  awaits_folder_ = false;
  if (!opened) return made(fail(std::move(opened.error())));
  opened_ = std::move(taken);
  made({});
}

void Output::cancel_round() {
  rounds_asked_for_ += 1;
  awaits_folder_ = false;
}

void Output::await_folder() {
  awaits_folder_ = true;
  folder_timer_.arm(kFolderPatience, [this] {
    if (!awaits_folder_) return;
    console_.notify("the log folder " + folder() + " does not answer; workers start when it does");
  });
}

std::string Output::folder() const {
  if (!directory_.empty()) return directory_;
  return spec_.log_dir.empty() ? temporary_directory_ : spec_.log_dir;
}

std::string Output::unanswering_folder() const {
  const auto written_for = files_ ? files_->busy_for() : std::nullopt;
  const bool hangs = folders_.busy_for() || written_for.value_or(0s) >= kUnansweredAfter;
  return hangs ? folder() : "";
}

Result<ChildStreams> Output::open(std::uint64_t round, const WorkerIdentity& identity) {
  ended(identity.local_rank);  // of the previous round, if ended() was not called
  const auto [place, is_first] = workers_.try_emplace(identity.local_rank);
  Worker& worker = place->second;
  if (!is_first) remove_error_file(identity.local_rank, worker);
  worker = Worker{};
  worker.round = round;
  for (const Stream stream : {Stream::kStdout, Stream::kStderr}) {
    auto opened = open_stream(worker, identity, stream);
    if (!opened) {
      ended(identity.local_rank);
      return fail(std::move(opened.error())
                      .with("local rank", std::to_string(identity.local_rank))
                      .with("stream", name_of(stream)));
    }
  }
  return ChildStreams{worker.child_fds[0].get(), worker.child_fds[1].get()};
}

Result<void> Output::open_stream(Worker& worker, const WorkerIdentity& identity, Stream stream) {
  using Route = StreamPlan::Route;
  const StreamPlan plan =
      plan_stream(spec_, stream, identity.local_rank, console_.is_terminal(stream));
  rdzv::UniqueFd& child_fd = worker.child_fds[index(stream)];
  if (plan.route == Route::kInherit) return {};
  if (plan.route == Route::kDevNull) {
    child_fd.reset(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    if (!child_fd) return fail(error_from_errno(errno, "cannot open /dev/null"));
    return {};
  }

  const bool is_terminal = plan.route == Route::kAgentAsTty;
  auto ends = is_terminal ? open_pseudo_terminal(console_.fd(stream)) : open_pipe();
  if (!ends) return fail(std::move(ends.error()));
  child_fd = std::move(ends->worker);
  worker.is_terminal[index(stream)] = is_terminal;
  try {
    auto made = std::make_shared<WorkerStream>(executor_, console_, ends->agent.get(),
                                               destinations(plan, worker.round, identity, stream),
                                               [this](const WorkerStream* done) { forget(done); });
    std::ignore = ends->agent.release();
    made->start();
    undelivered_.push_back(made);
    worker.streams[index(stream)] = std::move(made);
  } catch (const boost::system::system_error& error) {
    return fail(error_from_errno(error.code().value(), "cannot watch a pipe"));
  }
  return {};
}

WorkerStream::Destinations Output::destinations(const StreamPlan& plan, std::uint64_t round,
                                                const WorkerIdentity& identity, Stream stream) {
  WorkerStream::Destinations to;
  to.stream = stream;
  to.console = plan.to_console;
  if (plan.is_prefixed) to.prefix = line_prefix(spec_, identity);
  if (plan.keeps_tail) to.tail_lines = spec_.stderr_tail_lines;
  if (plan.is_filtered) {
    // One file for all workers of a round; closed when none of them uses it any more.
    auto& filtered = filtered_files_[index(stream)];
    if (!filtered) filtered = opened_file(filtered_file_of(round, stream));
    to.filtered_file = filtered;
    to.filters =
        stream == Stream::kStdout ? spec_.duplicate_stdout_filters : spec_.duplicate_stderr_filters;
  }
  if (plan.to_file) to.file = opened_file(file_of(round, identity.local_rank, stream));
  return to;
}

std::shared_ptr<LogFile> Output::opened_file(const std::string& path) {
  const auto file = opened_.find(path);
  assert(file != opened_.end());  // prepare_round() was called
  const auto opened = file->second;
  if (!keeps_files_) opened_.erase(file);
  return opened;
}

std::string Output::filtered_file_of(std::uint64_t round, Stream stream) const {
  return folder_of(round) + "/filtered_" + name_of(stream) + ".log";
}

LogFiles& Output::files() {
  if (!files_) {
    files_ = std::make_unique<LogFiles>(
        executor_, console_, [this] { check_delivered(); }, kFolderPatience);
  }
  return *files_;
}

void Output::started(int local_rank) {
  const auto worker = workers_.find(local_rank);
  if (worker != workers_.end()) worker->second.child_fds = {};
}

void Output::ended(int local_rank) {
  started(local_rank);
  const auto worker = workers_.find(local_rank);
  if (worker == workers_.end()) return;
  for (const auto& stream : worker->second.streams) {
    if (stream) stream->end();
  }
  worker->second.is_terminal = {};
}

void Output::forget(const WorkerStream* stream) {
  std::erase_if(undelivered_, [&](const auto& each) { return each.get() == stream; });
  check_delivered();
}

void Output::when_delivered(std::function<void()> done) {
  when_delivered_ = std::move(done);
  check_delivered();
}

void Output::check_delivered() {
  if (!when_delivered_ || !undelivered_.empty()) return;
  opened_.clear();
  filtered_files_ = {};
  if (files_ && !files_->all_closed()) return;
  boost::asio::post(executor_, std::exchange(when_delivered_, nullptr));
}

bool Output::owns_terminals(int local_world_size) const {
  for (const Stream stream : {Stream::kStdout, Stream::kStderr}) {
    const bool is_terminal = console_.is_terminal(stream);
    for (int local_rank = 0; is_terminal && local_rank < local_world_size; ++local_rank) {
      const StreamPlan plan = plan_stream(spec_, stream, local_rank, is_terminal);
      if (plan.route == StreamPlan::Route::kInherit) return false;
    }
  }
  return true;
}

void Output::window_changed() {
  for (auto& [local_rank, worker] : workers_) {
    for (const Stream stream : {Stream::kStdout, Stream::kStderr}) {
      if (worker.is_terminal[index(stream)]) {
        copy_window_size(console_.fd(stream), worker.streams[index(stream)]->fd());
      }
    }
  }
}

std::vector<std::string> Output::stderr_tail(int local_rank) const {
  const auto worker = workers_.find(local_rank);
  if (worker == workers_.end()) return {};
  const auto& stream = worker->second.streams[index(Stream::kStderr)];
  return stream ? stream->tail() : std::vector<std::string>();
}

Output::Readable Output::readable(int local_rank, Stream stream) const {
  const auto worker = workers_.find(local_rank);
  if (worker == workers_.end()) return {};
  Readable readable{worker->second.round, {}, nullptr};
  const StreamPlan plan = plan_stream(spec_, stream, local_rank, console_.is_terminal(stream));
  if (plan.to_file) {
    readable.file = file_of(worker->second.round, local_rank, stream);
  } else if (const auto& kept = worker->second.streams[index(stream)]; kept && plan.keeps_tail) {
    readable.kept = &kept->kept();
  }
  return readable;
}

std::string Output::folder_of(std::uint64_t round, std::optional<int> local_rank) const {
  if (directory_.empty()) return "";
  return directory_ + "/attempt_" + std::to_string(round) +
         (local_rank ? "/" + std::to_string(*local_rank) : "");
}

std::string Output::file_of(std::uint64_t round, int local_rank, Stream stream) const {
  return folder_of(round, local_rank) + "/" + name_of(stream) + ".log";
}

std::string Output::log_directory_of(int local_rank) const {
  const auto worker = workers_.find(local_rank);
  return worker == workers_.end() ? "" : folder_of(worker->second.round, local_rank);
}

std::string Output::error_file_of(std::uint64_t round, int local_rank) const {
  if (!directory_.empty()) return folder_of(round, local_rank) + "/error.json";
  if (error_file_prefix_.empty()) return "";
  return error_file_prefix_ + std::to_string(round) + "_" + std::to_string(local_rank) +
         "_error.json";
}

void Output::remove_error_file(int local_rank, const Worker& worker) {
  if (error_file_prefix_.empty()) return;
  const auto remove =
      [files = std::vector{error_file_of(worker.round, local_rank), worker.error_file}] {
        for (const std::string& file : files) {
          if (file.empty()) continue;
          ::unlink(file.c_str());
          ::unlink((file + kUnfinishedErrorFile).c_str());
        }
        return true;
      };
  folders_.run<bool>(remove, [](bool) {});
}

void Output::set_error_file(int local_rank, std::string path) {
  workers_.at(local_rank).error_file = std::move(path);
}

}  // namespace ddprun::agent
