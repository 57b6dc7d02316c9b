// Pipes and a loop for the tests of the agent's output: nothing here sleeps, everything waits for a
// condition with a deadline.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "agent/output/output.h"
#include "tests/support/run_until.h"

namespace ddprun::agent {

// A pipe whose read end is what "the user sees". Not read by anybody until the test asks.
class PipeEnds {
 public:
  PipeEnds() {
    EXPECT_EQ(::pipe2(fds_.data(), O_CLOEXEC), 0);
    ::fcntl(fds_[0], F_SETFL, O_NONBLOCK);
  }
  ~PipeEnds() {
    close_read();
    close_write();
  }
  PipeEnds(const PipeEnds&) = delete;
  PipeEnds& operator=(const PipeEnds&) = delete;

  int write_end() const { return fds_[1]; }
  void close_read() { close_end(fds_[0]); }
  void close_write() { close_end(fds_[1]); }

  // All that is there now.
  std::string read_available() {
    std::string text;
    std::array<char, 65536> buffer;
    for (ssize_t count; (count = ::read(fds_[0], buffer.data(), buffer.size())) > 0;) {
      text.append(buffer.data(), static_cast<std::size_t>(count));
    }
    return text;
  }

  // Writes until a blocking writer would have to wait; returns how many bytes that took.
  std::size_t fill() {
    const int flags = ::fcntl(fds_[1], F_GETFL);
    ::fcntl(fds_[1], F_SETFL, flags | O_NONBLOCK);
    std::size_t total = 0;
    for (const std::string block(4096, '#');;) {
      const ssize_t count = ::write(fds_[1], block.data(), block.size());
      if (count <= 0) break;
      total += static_cast<std::size_t>(count);
    }
    ::fcntl(fds_[1], F_SETFL, flags);
    return total;
  }

 private:
  static void close_end(int& fd) {
    if (fd >= 0) ::close(std::exchange(fd, -1));
  }

  std::array<int, 2> fds_{-1, -1};
};

inline void write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd, bytes.data(), bytes.size());
    if (count <= 0) return;  // nobody reads any more: the test says so
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

// A folder that is gone with the test.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = std::filesystem::temp_directory_path() / "ddprun_test_XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// What a worker would hold after its fork: copies that outlive started().
struct FakeWorker {
  explicit FakeWorker(const ChildStreams& streams)
      : out(::fcntl(streams.stdout_fd, F_DUPFD_CLOEXEC, 0)),
        err(::fcntl(streams.stderr_fd, F_DUPFD_CLOEXEC, 0)) {}
  ~FakeWorker() {
    close_fd(out);
    close_fd(err);
  }
  FakeWorker(const FakeWorker&) = delete;
  FakeWorker& operator=(const FakeWorker&) = delete;

  static void close_fd(int& fd) {
    if (fd >= 0) ::close(std::exchange(fd, -1));
  }

  int out;
  int err;
};

class OutputTest : public testing::Test {
 protected:
  void SetUp() override {
    ::signal(SIGPIPE, SIG_IGN);
    console_ = std::make_unique<Console>(
        loop_.get_executor(), Console::Options{out_.write_end(), err_.write_end(), 64 * 1024});
  }

  Output& make(OutputSpec spec) {
    output_ =
        std::make_unique<Output>(loop_.get_executor(), *console_, spec, "run", temporary_.path());
    const auto prepared = prepare(*output_);
    EXPECT_TRUE(prepared) << prepared.error().to_string();
    return *output_;
  }

  Result<void> prepare(Output& output) {
    std::optional<Result<void>> made;
    output.prepare([&](Result<void> result) { made = std::move(result); });
    EXPECT_TRUE(run_until(loop_, [&] { return made.has_value(); }));
    return *made;
  }

  std::unique_ptr<FakeWorker> start(int local_rank, std::uint64_t round = 0) {
    bool is_made = false;
    output_->prepare_round(round, {local_rank}, [&](const Result<void>& made) {
      is_made = true;
      EXPECT_TRUE(made) << made.error().to_string();
    });
    EXPECT_TRUE(run_until(loop_, [&] { return is_made; }));
    const auto streams = output_->open(round, {local_rank, local_rank + 10, "role"});
    EXPECT_TRUE(streams) << streams.error().to_string();
    auto worker = std::make_unique<FakeWorker>(*streams);
    output_->started(local_rank);
    return worker;
  }

  bool sees_stdout(const std::string& text) { return sees(out_, seen_out_, text); }
  bool sees_stderr(const std::string& text) { return sees(err_, seen_err_, text); }

  bool sees(PipeEnds& pipe, std::string& seen, const std::string& text) {
    return run_until(loop_,
                     [&] {
                       seen += pipe.read_available();
                       return seen.size() >= text.size();
                     }) &&
           seen == text;
  }

  // Until all streams are at their end; reads the console meanwhile.
  bool deliver() {
    const auto delivered = std::make_shared<bool>(false);
    output_->when_delivered([delivered] { *delivered = true; });
    const bool reached = run_until(loop_, [&] {
      seen_out_ += out_.read_available();
      seen_err_ += err_.read_available();
      return *delivered;
    });
    // What is queued by now may be more than an unread pipe holds, and nobody else reads it.
    EXPECT_TRUE(run_until(loop_, [&] {
      const bool flushed =
          console_->flush(std::chrono::steady_clock::now() + std::chrono::milliseconds(1));
      seen_out_ += out_.read_available();
      seen_err_ += err_.read_available();
      return flushed;
    }));
    return reached;
  }

  boost::asio::io_context loop_;
  PipeEnds out_;
  PipeEnds err_;
  TemporaryDirectory temporary_;
  std::unique_ptr<Console> console_;
  std::unique_ptr<Output> output_;
  std::string seen_out_;
  std::string seen_err_;
};

}  // namespace ddprun::agent
