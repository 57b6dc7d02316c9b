#include "agent/output.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <boost/system/system_error.hpp>
#include <cerrno>
#include <utility>

#include "agent/pseudo_terminal.h"

namespace ddprun::agent {
namespace {

constexpr std::chrono::seconds kDiskPatience{5};

std::size_t index(Stream stream) { return static_cast<std::size_t>(stream); }

const char* name_of(Stream stream) { return stream == Stream::kStdout ? "stdout" : "stderr"; }

void close_fd(int& fd) {
  if (fd >= 0) ::close(std::exchange(fd, -1));
}

}  // namespace

Output::Output(boost::asio::any_io_executor executor, Console& console, const OutputSpec& spec,
               const std::string& run_id, const std::string& temporary_directory)
    : executor_(executor),
      console_(console),
      spec_(spec),
      run_id_(run_id),
      temporary_directory_(temporary_directory.empty() ? "/tmp" : temporary_directory),
      patience_timer_(executor) {}

Output::~Output() {
  for (auto& [local_rank, worker] : workers_) {
    for (int& fd : worker.child_fds) close_fd(fd);
    remove_error_file(local_rank, worker);
  }
  workers_.clear();
  undelivered_.clear();
  filtered_files_ = {};
  if (files_) files_->flush(std::chrono::steady_clock::now() + kDiskPatience);
}

Result<void> Output::prepare() {
  if (!has_files(spec_)) return {};
  if (needs_files(spec_)) return directory_.create(spec_.log_dir, temporary_directory_, run_id_);
  // Unguessable: others may write to the same folder.
  std::uint64_t random = 0;
  if (::getrandom(&random, sizeof random, 0) < 0) {
    return fail(error_from_errno(errno, "cannot name the error files"));
  }
  error_file_prefix_ = temporary_directory_ + "/torchelastic_" + std::to_string(random) + "_";
  return {};
}

Result<ChildStreams> Output::open(std::uint64_t round, const WorkerIdentity& identity) {
  if (!directory_.path().empty()) {
    auto made = directory_.add_worker(round, identity.local_rank);
    if (!made) return fail(std::move(made.error()));
  }
  ended(identity.local_rank);  // of the round before, in case nobody said so
  Worker& worker = workers_[identity.local_rank];
  remove_error_file(identity.local_rank, worker);
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
  return ChildStreams{worker.child_fds[0], worker.child_fds[1]};
}

Result<void> Output::open_stream(Worker& worker, const WorkerIdentity& identity, Stream stream) {
  using Route = StreamPlan::Route;
  const StreamPlan plan =
      plan_stream(spec_, stream, identity.local_rank, console_.is_terminal(stream));
  int& child_fd = worker.child_fds[index(stream)];
  if (plan.route == Route::kInherit) return {};
  if (plan.route == Route::kDevNull) {
    child_fd = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (child_fd < 0) return fail(error_from_errno(errno, "cannot open /dev/null"));
    return {};
  }

  int agent_fd = -1;
  if (plan.route == Route::kAgentAsTty) {
    auto terminal = open_pseudo_terminal(console_.fd(stream));
    if (!terminal) return fail(std::move(terminal.error()));
    agent_fd = terminal->agent_fd;
    child_fd = terminal->worker_fd;
    worker.is_terminal[index(stream)] = true;
  } else {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return fail(error_from_errno(errno, "cannot make a pipe"));
    // The agent's end only: the worker finds its own as it expects.
    ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
    agent_fd = ends[0];
    child_fd = ends[1];
  }

  auto to = destinations(plan, worker.round, identity, stream);
  if (!to) {
    ::close(agent_fd);
    return fail(std::move(to.error()));
  }
  try {
    auto made = std::make_shared<WorkerStream>(executor_, console_, agent_fd, std::move(*to),
                                               [this](const WorkerStream* done) { forget(done); });
    made->start();
    undelivered_.push_back(made);
    worker.streams[index(stream)] = std::move(made);
  } catch (const boost::system::system_error& error) {
    ::close(agent_fd);
    return fail(error_from_errno(error.code().value(), "cannot watch a pipe"));
  }
  return {};
}

Result<WorkerStream::Destinations> Output::destinations(const StreamPlan& plan, std::uint64_t round,
                                                        const WorkerIdentity& identity,
                                                        Stream stream) {
  WorkerStream::Destinations to;
  to.stream = stream;
  to.console = plan.to_console;
  if (plan.is_prefixed) to.prefix = line_prefix(spec_, identity);
  if (plan.keeps_tail) to.tail_lines = spec_.stderr_tail_lines;
  if (plan.to_file) {
    if (plan.is_filtered) {
      auto filtered = filtered_file(round, stream);
      if (!filtered) return fail(std::move(filtered.error()));
      to.filtered_file = *filtered;
      to.filters = stream == Stream::kStdout ? spec_.duplicate_stdout_filters
                                             : spec_.duplicate_stderr_filters;
    }
    auto file = files().open(file_of(round, identity.local_rank, stream));
    if (!file) return fail(std::move(file.error()));
    to.file = std::move(*file);
  }
  return to;
}

// One file for all workers of a round; closed when no worker of its round uses it any more.
Result<std::shared_ptr<LogFile>> Output::filtered_file(std::uint64_t round, Stream stream) {
  if (std::exchange(filtered_round_, round) != round) filtered_files_ = {};
  auto& file = filtered_files_[index(stream)];
  if (!file) {
    auto opened = files().open(directory_.path_of(round) + "/filtered_" + name_of(stream) + ".log");
    if (!opened) return opened;
    file = std::move(*opened);
  }
  return file;
}

LogFiles& Output::files() {
  if (!files_) {
    files_ = std::make_unique<LogFiles>(executor_, console_, [this] { check_delivered(); });
  }
  return *files_;
}

void Output::started(int local_rank) {
  const auto worker = workers_.find(local_rank);
  if (worker == workers_.end()) return;
  for (int& fd : worker->second.child_fds) close_fd(fd);
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

void Output::when_delivered(std::chrono::milliseconds patience, std::function<void()> done) {
  when_delivered_ = std::move(done);
  patience_timer_.arm(patience, [this] {
    if (when_delivered_) std::exchange(when_delivered_, nullptr)();
  });
  check_delivered();
}

void Output::check_delivered() {
  if (!when_delivered_ || !undelivered_.empty()) return;
  filtered_files_ = {};
  if (files_ && !files_->all_closed()) return;
  patience_timer_.cancel();
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

std::string Output::file_of(std::uint64_t round, int local_rank, Stream stream) const {
  return directory_.path_of(round, local_rank) + "/" + name_of(stream) + ".log";
}

std::string Output::log_directory_of(int local_rank) const {
  const auto worker = workers_.find(local_rank);
  return worker == workers_.end() ? "" : directory_.path_of(worker->second.round, local_rank);
}

std::string Output::error_file_of(std::uint64_t round, int local_rank) const {
  if (!directory_.path().empty()) return directory_.path_of(round, local_rank) + "/error.json";
  if (error_file_prefix_.empty()) return "";
  return error_file_prefix_ + std::to_string(round) + "_" + std::to_string(local_rank) +
         "_error.json";
}

void Output::remove_error_file(int local_rank, const Worker& worker) {
  if (error_file_prefix_.empty()) return;
  ::unlink(error_file_of(worker.round, local_rank).c_str());
}

}  // namespace ddprun::agent
