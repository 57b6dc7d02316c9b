#include "tests/support/death.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

namespace ddprun::test::death {
namespace {

struct Plan {
  std::string point;  // empty: no death in this run, or this rank survives
  std::int64_t step = 0;
};

int number_in(const char* variable) {
  const char* text = std::getenv(variable);
  return text == nullptr ? 0 : std::atoi(text);
}

// The entries of DDPRUN_DEATHS, in their order.
struct Entry {
  Plan plan;
  int rank = 0;
};

std::vector<Entry> read_entries() {
  const char* const deaths = std::getenv("DDPRUN_DEATHS");
  std::istringstream entries(deaths == nullptr ? "" : deaths);
  std::vector<Entry> all;
  for (std::string entry; std::getline(entries, entry, ',');) {
    std::istringstream fields(entry);
    std::string step;
    std::string rank;
    Entry read;
    std::getline(fields, read.plan.point, ':');
    std::getline(fields, step, ':');
    std::getline(fields, rank);
    read.plan.step = std::stoll(step);
    read.rank = std::stoi(rank);
    all.push_back(std::move(read));
  }
  return all;
}

// Of jobs whose ranks are replaced: those of this rank.
struct Deaths {
  std::vector<Plan> of_this_rank;
  std::vector<std::size_t> numbers;
  std::string folder;
};

Deaths read_deaths() {
  Deaths all;
  const char* const folder = std::getenv("DDPRUN_DEATHS_IN_PLACE");
  if (folder == nullptr) return all;
  all.folder = folder;
  const std::vector<Entry> entries = read_entries();
  for (std::size_t number = 0; number < entries.size(); ++number) {
    if (entries[number].rank != number_in("RANK")) continue;
    all.of_this_rank.push_back(entries[number].plan);
    all.numbers.push_back(number);
  }
  return all;
}

const Deaths& deaths_in_place() {
  static const Deaths only = read_deaths();
  return only;
}

Plan read_plan() {
  if (std::getenv("DDPRUN_DEATHS_IN_PLACE") != nullptr) return {};
  const std::vector<Entry> entries = read_entries();
  const auto life = static_cast<std::size_t>(number_in("TORCHELASTIC_RESTART_COUNT"));
  if (life >= entries.size() || entries[life].rank != number_in("RANK")) return {};
  return entries[life].plan;
}

const Plan& plan() {
  static const Plan only = read_plan();
  return only;
}

std::atomic<std::int64_t> present_step{0};
std::atomic<bool> is_in_collectives{false};

std::string point_of_death;

// Makes the mark of the entry that is due, which no other process of this rank then takes.
bool is_due_in_place(std::string_view point) {
  const Deaths& deaths = deaths_in_place();
  for (std::size_t i = 0; i < deaths.of_this_rank.size(); ++i) {
    const Plan& each = deaths.of_this_rank[i];
    if (each.point != point || present_step < each.step) continue;
    const std::string number = std::to_string(deaths.numbers[i]);
    const std::string mark = deaths.folder + "/died-" + number;
    if (::access(mark.c_str(), F_OK) == 0) continue;
    // The test says when there are standbys.
    while (::access((deaths.folder + "/may-die-" + number).c_str(), F_OK) != 0) ::usleep(1000);
    const long file =
        ::syscall(SYS_openat, AT_FDCWD, mark.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0644);
    if (file < 0) continue;
    point_of_death = each.point;
    return true;
  }
  return false;
}

bool is_due(std::string_view point) {
  if (plan().point == point && present_step >= plan().step) {
    point_of_death = point;
    return true;
  }
  return is_due_in_place(point);
}

[[noreturn]] void die() {
  const std::string last_words =
      "rank " + std::to_string(number_in("RANK")) + " dies: " + point_of_death + "\n";
  ::syscall(SYS_write, STDERR_FILENO, last_words.data(), last_words.size());
  ::kill(::getpid(), SIGKILL);
  for (;;) ::pause();
}

std::string path_of(int fd) {
  char path[4096];
  const ssize_t size =
      ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof path);
  return size < 0 ? "" : std::string(path, static_cast<std::size_t>(size));
}

bool is_unfinished_checkpoint(int fd) {
  const std::string path = path_of(fd);
  return path.find("/step-") != std::string::npos && path.ends_with(".unfinished");
}

// Sends the first half of a message.
void send_half(int fd, const iovec* pieces, std::size_t count, std::size_t size) {
  std::vector<iovec> half(pieces, pieces + count);
  std::size_t left = size / 2;
  for (iovec& piece : half) {
    piece.iov_len = std::min(piece.iov_len, left);
    left -= piece.iov_len;
  }
  ::syscall(SYS_writev, fd, half.data(), half.size());
}

// Dies within a message that is long enough to contain gradients.
void on_message(int fd, const iovec* pieces, std::size_t count) {
  constexpr std::size_t kGradients = 1000;
  if (!is_in_collectives) return;
  std::size_t size = 0;
  for (std::size_t i = 0; i < count; ++i) size += pieces[i].iov_len;
  if (size < kGradients || !is_due("all_reduce")) return;
  send_half(fd, pieces, count, size);
  die();
}

// Of the main thread, since recovery_begins(); 0: it is not recovering.
thread_local int recovery_calls = 0;

void on_recovery_call() {
  if (recovery_calls <= 0) return;
  const int call = recovery_calls++;
  recovery_calls = -recovery_calls;  // what is_due() calls is not counted
  if (is_due("recovery-" + std::to_string(call))) die();
  recovery_calls = -recovery_calls;
}

// The rank DDPRUN_HEARS_LATE hears the agent half a second later than the others.
void hear_late() {
  const char* const rank = std::getenv("DDPRUN_HEARS_LATE");
  char thread[16] = "";
  if (rank == nullptr || std::atoi(rank) != number_in("RANK")) return;
  ::pthread_getname_np(::pthread_self(), thread, sizeof thread);
  if (thread == std::string("ddprun-link")) ::usleep(500'000);
}

}  // namespace

void recovery_begins() { recovery_calls = 1; }
void recovery_ends() { recovery_calls = 0; }

void at_step(std::int64_t step) { present_step = step; }

void reach(std::string_view point) {
  if (is_due(point)) die();
}

void collectives_begin() { is_in_collectives = true; }
void collectives_end() { is_in_collectives = false; }

}  // namespace ddprun::test::death

// These replace the C library's functions, for this program and for the libraries that it loads.
namespace death = ddprun::test::death;

extern "C" {

ssize_t write(int fd, const void* data, size_t size) {
  constexpr size_t kArrays = 10000;  // the header is written by a separate, shorter call
  if (size > kArrays && death::is_unfinished_checkpoint(fd) && death::is_due("half_written")) {
    ::syscall(SYS_write, fd, data, size / 2);
    death::die();
  }
  return ::syscall(SYS_write, fd, data, size);
}

int fsync(int fd) {
  if (death::is_unfinished_checkpoint(fd) && death::is_due("before_sync")) death::die();
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

int rename(const char* from, const char* to) noexcept {
  const std::string_view target = to;
  const bool is_checkpoint = target.find("/step-") != std::string_view::npos;
  if (is_checkpoint) death::reach("before_rename");
  if (target.ends_with("/latest.safetensors")) death::reach("before_link");
  const int result = ::renameat(AT_FDCWD, from, AT_FDCWD, to);
  if (is_checkpoint) death::reach("after_rename");
  return result;
}

ssize_t writev(int fd, const iovec* pieces, int count) {
  death::on_message(fd, pieces, static_cast<size_t>(count));
  return ::syscall(SYS_writev, fd, pieces, count);
}

ssize_t send(int fd, const void* data, size_t size, int flags) {
  death::on_recovery_call();
  return ::syscall(SYS_sendto, fd, data, size, flags, nullptr, 0);
}

ssize_t recv(int fd, void* data, size_t size, int flags) {
  death::on_recovery_call();
  return ::syscall(SYS_recvfrom, fd, data, size, flags, nullptr, nullptr);
}

ssize_t recvmsg(int fd, msghdr* message, int flags) {
  death::on_recovery_call();
  death::hear_late();
  return ::syscall(SYS_recvmsg, fd, message, flags);
}

int connect(int fd, const sockaddr* address, socklen_t size) {
  death::on_recovery_call();
  return static_cast<int>(::syscall(SYS_connect, fd, address, size));
}

int memfd_create(const char* name, unsigned int flags) noexcept {
  death::on_recovery_call();
  return static_cast<int>(::syscall(SYS_memfd_create, name, flags));
}

ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  death::on_recovery_call();
  death::on_message(fd, message->msg_iov, message->msg_iovlen);
  return ::syscall(SYS_sendmsg, fd, message, flags);
}

}  // extern "C"
