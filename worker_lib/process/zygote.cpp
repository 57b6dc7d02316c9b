#include "worker_lib/process/zygote.h"

#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "rendezvous/common/descriptor_message.h"
#include "rendezvous/common/file_text.h"
#include "rendezvous/common/parse_number.h"
#include "rendezvous/common/unique_fd.h"
#include "rendezvous/common/worker_abi/collective_record.h"
#include "rendezvous/common/worker_abi/worker_link.h"
#include "rendezvous/common/worker_abi/zygote_protocol.h"
#include "worker_lib/process/files.h"

namespace ddprun::zygote {
namespace {

using rdzv::UniqueFd;

constexpr std::size_t kDescriptorsMax = 8;

bool would_wait = false;

// ---- the socket to the agent

struct Packet {
  Header header;
  std::vector<UniqueFd> descriptors;
};

bool send(int socket, Kind kind, std::uint32_t flags = 0, std::string_view text = {}) {
  Header header;
  header.kind = static_cast<std::uint32_t>(kind);
  header.pid = ::getpid();
  header.flags = flags;
  text = text.substr(0, kTextMax);
  iovec parts[] = {{&header, sizeof header}, {const_cast<char*>(text.data()), text.size()}};
  msghdr message{};
  message.msg_iov = parts;
  message.msg_iovlen = std::size(parts);
  return TEMP_FAILURE_RETRY(::sendmsg(socket, &message, MSG_NOSIGNAL)) >= 0;
}

// Ends this process if the agent has closed the socket. The text is not for this kind of zygote.
Packet receive(int socket) {
  Packet packet;
  iovec parts[] = {{&packet.header, sizeof packet.header}};
  rdzv::DescriptorMessage<kDescriptorsMax> message(parts);
  const ssize_t size = TEMP_FAILURE_RETRY(::recvmsg(socket, &message.header, MSG_CMSG_CLOEXEC));
  if (size < static_cast<ssize_t>(sizeof packet.header)) ::_exit(0);
  packet.descriptors = message.taken();
  return packet;
}

// The agent has its children end with it; a child of theirs does not inherit that.
bool is_child_of_agent_without_rank() {
  int signal = 0;
  return ::prctl(PR_GET_PDEATHSIG, &signal) == 0 && signal == SIGKILL &&
         std::getenv("RANK") == nullptr;
}

// Ends this process if the program has closed the socket: it is no worker, and would go on beside them.
// Of this very process: a child that was started before its Context has the same variable.
UniqueFd socket_of_zygote() {
  const char* const text = std::getenv(kSocketVariable);
  if (text == nullptr) return {};
  const int descriptor = parse_number<int>(text).value_or(-1);
  ::unsetenv(kSocketVariable);
  ucred agent{};
  socklen_t size = sizeof agent;
  if (::getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &agent, &size) != 0 ||
      agent.pid != ::getppid()) {
    if (is_child_of_agent_without_rank()) ::_exit(1);
    return {};
  }
  ::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  return UniqueFd(descriptor);
}

// ---- may this process be forked?

std::vector<std::filesystem::path> entries_of(const char* folder) {
  std::vector<std::filesystem::path> entries;
  for (const auto& each : std::filesystem::directory_iterator(folder)) {
    entries.push_back(each.path());
  }
  return entries;
}

// Calls f for each that this process has open beside 0, 1 and 2.
void for_each_descriptor(const std::function<void(int, const struct stat&)>& f) {
  for (const auto& entry : entries_of("/proc/self/fd")) {
    const int descriptor = std::stoi(entry.filename().string());
    struct stat about {};
    if (descriptor > STDERR_FILENO && ::fstat(descriptor, &about) == 0) f(descriptor, about);
  }
}

// A sentence; empty: it may.
std::string why_unfit(int own_socket, bool is_allowed) {
  if (!is_linked()) return "the program is not linked with ddprun::standby";
  if (!is_allowed) return "the program says that it must not be forked (can_be_standby)";
  if (const char* const variable = variable_read_early()) {
    return std::string("the program reads ") + variable + " before its Context";
  }
  if (entries_of("/proc/self/task").size() > 1) {
    return "the program starts a thread before its Context";
  }
  std::string why;
  for_each_descriptor([&](int descriptor, const struct stat& about) {
    if (descriptor == own_socket) return;
    std::error_code ignored;
    const auto file =
        std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(descriptor), ignored)
            .string();
    if (file.starts_with("/dev/nvidia")) {
      why = "the program opens a GPU before its Context (" + file + ")";
    } else if (!S_ISREG(about.st_mode) && !S_ISDIR(about.st_mode) && !S_ISCHR(about.st_mode)) {
      why = "the program opens what forks cannot share before its Context (" + file + ")";
    }
  });
  return why;
}

// ---- a fork becomes a child of the agent

// True in the new process, whose parent is the agent.
bool fork_standby() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return false;
  UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  const pid_t between = ::fork();
  if (between == 0) {
    if (::fork() != 0) ::_exit(0);
    // Returns when the process between is gone, and the zygote has closed its end, too.
    writing.reset();
    char nothing = 0;
    std::ignore = TEMP_FAILURE_RETRY(::read(reading.get(), &nothing, 1));
    return true;
  }
  if (between > 0) TEMP_FAILURE_RETRY(::waitpid(between, nullptr, 0));
  return false;
}

// Forks share the place in a file that is open: one that reads on would move it for all.
void make_own_files() {
  for_each_descriptor([](int descriptor, const struct stat& about) {
    const int flags = ::fcntl(descriptor, F_GETFL);
    if (!S_ISREG(about.st_mode) || flags < 0 || (flags & O_PATH) != 0) return;
    const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
    const UniqueFd own(::open(path.c_str(), (flags & ~(O_CREAT | O_EXCL | O_TRUNC)) | O_CLOEXEC));
    if (!own) return;  // it may not be opened any more, and stays shared
    ::lseek(own.get(), ::lseek(descriptor, 0, SEEK_CUR), SEEK_SET);
    const int kept = ::fcntl(descriptor, F_GETFD) & FD_CLOEXEC;
    ::dup3(own.get(), descriptor, kept != 0 ? O_CLOEXEC : 0);
  });
}

using Variables = std::map<std::string, std::string, std::less<>>;

Variables variables_in(std::string_view text) {
  Variables variables;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\0'));
    const std::size_t equals = line.find('=');
    if (equals != std::string_view::npos) {
      variables.emplace(line.substr(0, equals), line.substr(equals + 1));
    }
    text.remove_prefix(std::min(line.size() + 1, text.size()));
  }
  return variables;
}

std::string text_of(int file) {
  std::string text(static_cast<std::size_t>(std::max<off_t>(0, ::lseek(file, 0, SEEK_END))), '\0');
  const ssize_t size = ::pread(file, text.data(), text.size(), 0);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, size)));
  return text;
}

// Those in which the worker differs from the zygote as it was started: what the program has set since
// stays.
void take_environment(const Variables& zygotes, const Variables& workers) {
  for (const auto& [name, value] : workers) {
    const auto before = zygotes.find(name);
    if (before == zygotes.end() || before->second != value) {
      ::setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
    }
  }
  for (const auto& [name, value] : zygotes) {
    if (!workers.contains(name)) ::unsetenv(name.c_str());
  }
}

// What the program has printed before its Context comes first.
void take_stream(int number, int stream) {
  const std::string printed = text_of(number);
  ::dup2(stream, number);
  write_all(number, printed);
}

class Zygote {
 public:
  Zygote(UniqueFd agent, bool is_allowed)
      : agent_(std::move(agent)),
        agent_pid_(::getppid()),
        variables_(variables_in(file_text("/proc/self/environ"))),
        is_allowed_(is_allowed) {
    variables_.erase(kSocketVariable);
  }

  // Returns in a process that has become a worker.
  void run() {
    send(agent_.get(), Kind::kHello, 0, "program");
    for (;;) {
      Packet packet = receive(agent_.get());
      const auto kind = static_cast<Kind>(packet.header.kind);
      if (kind == Kind::kPrepare) prepare();
      if (kind != Kind::kFork || packet.descriptors.empty() || !fork_standby()) continue;
      agent_ = std::move(packet.descriptors.front());
      packet.descriptors.erase(packet.descriptors.begin());
      return wait(packet.descriptors);
    }
  }

 private:
  void prepare() {
    const std::string why = why_unfit(agent_.get(), is_allowed_);
    if (why.empty()) {
      // A fork that wrote into memory which loading has used and freed would copy it, page by page.
#ifdef __GLIBC__
      ::malloc_trim(0);
#endif
      send(agent_.get(), Kind::kReady);
      return;
    }
    send(agent_.get(), Kind::kUnfit, 0, std::string(1, '\0') + why);
    ::_exit(0);
  }

  void wait(std::vector<UniqueFd>& control_group) {
    ::setsid();
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != agent_pid_) ::_exit(0);
    const bool is_inside =
        !control_group.empty() && ::write(control_group.front().get(), "0", 1) == 1;
    control_group.clear();
    make_own_files();
    send(agent_.get(), Kind::kHello, is_inside ? kIsInControlGroup : 0);
    for (;;) {
      Packet packet = receive(agent_.get());
      if (static_cast<Kind>(packet.header.kind) == Kind::kBecome) return become(packet);
    }
  }

  void become(Packet& packet) {
    auto& [header, descriptors] = packet;
    const bool has_link = (header.flags & kHasLink) != 0;
    UniqueFd mirror;
    if ((header.flags & kHasMirror) != 0 && !descriptors.empty()) {
      mirror = std::move(descriptors.back());
      descriptors.pop_back();
    }
    UniqueFd snapshot;
    if ((header.flags & kHasSnapshot) != 0 && !descriptors.empty()) {
      snapshot = std::move(descriptors.back());
      descriptors.pop_back();
    }
    if (descriptors.size() < (has_link ? 5 : 3)) ::_exit(1);
    take_environment(variables_, variables_in(text_of(descriptors[0].get())));
    take_stream(STDOUT_FILENO, descriptors[1].get());
    take_stream(STDERR_FILENO, descriptors[2].get());
    // The C library has decided at the first line; glibc takes another mode at any time.
    if (::isatty(STDOUT_FILENO) == 1) ::setvbuf(stdout, nullptr, _IOLBF, 0);
    if (has_link) {
      hand_over(link::kSocketVariable, std::move(descriptors[3]));
      hand_over(link::kPageVariable, std::move(descriptors[4]));
      if (descriptors.size() > 5) hand_over(record::kVariable, std::move(descriptors[5]));
    }
    if (snapshot) hand_over(link::kSnapshotVariable, std::move(snapshot));
    if (mirror) hand_over(link::kMirrorVariable, std::move(mirror));
    agent_.reset();
  }

  // As an agent hands it over to one that it starts.
  static void hand_over(const char* variable, UniqueFd descriptor) {
    ::fcntl(descriptor.get(), F_SETFD, 0);
    ::setenv(variable, std::to_string(descriptor.release()).c_str(), /*overwrite=*/1);
  }

  UniqueFd agent_;
  const pid_t agent_pid_;
  Variables variables_;  // as this process was started
  const bool is_allowed_;
};

}  // namespace

void wait_for_rank(bool is_allowed) {
  static bool is_first = true;
  if (!std::exchange(is_first, false)) return;
  UniqueFd agent = socket_of_zygote();
  would_wait = is_allowed && is_linked() && variable_read_early() == nullptr;
  if (!agent) return;
  try {
    Zygote(std::move(agent), is_allowed).run();
  } catch (const std::exception&) {
    ::_exit(1);  // or the program would go on here, beside the workers
  }
}

bool can_be_zygote() { return would_wait; }

}  // namespace ddprun::zygote
