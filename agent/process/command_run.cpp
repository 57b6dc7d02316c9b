#include "agent/process/command_run.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <utility>

namespace ddprun::agent {
namespace {

constexpr const char* kShell = "/bin/sh";
constexpr std::size_t kOutputBytesMax = 4096;
constexpr std::size_t kEndBytesMax = std::size_t{64} * 1024;
// After the end: processes that have left the group may write for ever.
constexpr int kLastPartsMax = 16;

// What is in the pipe.
std::string start_of(int fd) {
  std::array<char, kOutputBytesMax> bytes{};
  const ssize_t got = ::read(fd, bytes.data(), bytes.size());
  return {bytes.data(), got > 0 ? static_cast<std::size_t>(got) : 0};
}

// A file in memory, at whose beginning a reader starts: unlike a pipe it takes everything at once.
Result<rdzv::UniqueFd> memory_with(std::string_view text) {
  rdzv::UniqueFd memory(::memfd_create("ddprun-input", MFD_CLOEXEC));
  if (!memory ||
      ::pwrite(memory.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return fail(error_from_errno(errno, "memfd_create"));
  }
  return memory;
}

}  // namespace

Result<std::unique_ptr<CommandRun>> CommandRun::start(boost::asio::io_context& io, const What& what,
                                                      Done done) {
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC | O_NONBLOCK) != 0)
    return fail(error_from_errno(errno, "pipe"));
  std::unique_ptr<CommandRun> run(new CommandRun(io, what.reads, std::move(done)));
  const rdzv::UniqueFd output(pipe[1]);
  boost::system::error_code ec;
  if (run->output_.assign(pipe[0], ec); ec) {
    ::close(pipe[0]);
    return fail(error_from_errno(ec.value(), "pipe"));
  }
  ::fcntl(output.get(), F_SETFL, 0);  // a program may not expect that a write fails
  const rdzv::UniqueFd nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  auto input = memory_with(what.input);
  if (!input) return fail(std::move(input.error()));
  ProcessSpec spec;
  spec.argv = what.program;
  if (spec.argv.empty()) spec.argv = {kShell, "-c", what.command};
  spec.path = spec.argv.front();
  spec.environment = to_lines(what.environment);
  spec.stdin_fd = input->get();
  spec.stdout_fd = what.reads == Reads::kStderr ? nowhere.get() : output.get();
  spec.stderr_fd = what.reads == Reads::kStdout ? nowhere.get() : output.get();
  spec.keeper_slot = what.keeper_slot;
  auto process = WorkerProcess::start(
      io, spec, [its = run.get()](const ExitStatus& end) { its->on_end(end); });
  if (!process) return fail(std::move(process.error()));
  run->process_ = *std::move(process);
  if (what.reads == Reads::kEnd) run->read_on();
  return run;
}

CommandRun::~CommandRun() {
  if (process_) kill();
}

void CommandRun::kill() { process_->signal_group(SIGKILL); }

void CommandRun::read_on() {
  output_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                     lifetime_.guard([this](const boost::system::error_code& ec) {
                       if (!ec && take_part()) read_on();
                     }));
}

// False: no process that could write is left.
bool CommandRun::take_part() {
  std::array<char, kEndBytesMax> bytes;
  const ssize_t got = ::read(output_.native_handle(), bytes.data(), bytes.size());
  if (got <= 0) return got < 0 && (errno == EAGAIN || errno == EINTR);
  end_.append(bytes.data(), static_cast<std::size_t>(got));
  if (end_.size() > kEndBytesMax) end_.erase(0, end_.size() - kEndBytesMax);
  return true;
}

void CommandRun::on_end(const ExitStatus& end) {
  const Done done = std::move(done_);  // it may destroy this object
  if (reads_ != Reads::kEnd) return done(end, start_of(output_.native_handle()));
  for (int part = 0; part < kLastPartsMax && take_part(); ++part) {
  }
  done(end, std::string(end_));
}

}  // namespace ddprun::agent
