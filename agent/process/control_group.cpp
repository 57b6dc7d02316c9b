#include "agent/process/control_group.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string_view>
#include <utility>

#include "rendezvous/common/directory_entries.h"
#include "rendezvous/common/file_text.h"
#include "rendezvous/common/parse_number.h"

namespace ddprun::agent {
namespace {

using rdzv::UniqueFd;

constexpr std::string_view kNamePrefix = "ddprun-";  // then name_of_this_process()
constexpr std::int64_t kNanosecondsPerSecond = 1'000'000'000;
constexpr std::int64_t kNewForSeconds = 10;
constexpr int kDepthMax = 16;  // of nested groups: an agent may be a worker of another agent

// ---- system calls only: the keeper may have been forked from a process with threads

UniqueFd open_folder(int parent, const char* name) {
  return UniqueFd(::openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
}

// `events`: descriptor of a cgroup.events file.
bool is_populated_by(int events) {
  char text[256];
  const ssize_t size = ::pread(events, text, sizeof text, 0);
  return size > 0 && std::string_view(text, static_cast<std::size_t>(size)).find("populated 1") !=
                         std::string_view::npos;
}

template <typename Each>
void for_each_group_below(int folder, const Each& each) {
  for_each_entry(folder, [&each](const char* name, unsigned char type) {
    if (type == DT_DIR && name[0] != '.') each(name);
  });
}

template <typename Each>
void for_each_member(int folder, int depth, const Each& each) {
  if (const UniqueFd file(::openat(folder, "cgroup.procs", O_RDONLY | O_CLOEXEC)); file) {
    char text[1024];
    pid_t pid = 0;
    for (ssize_t size; (size = ::read(file.get(), text, sizeof text)) > 0;) {
      for (const char c : std::string_view(text, static_cast<std::size_t>(size))) {
        if (c >= '0' && c <= '9') {
          pid = pid * 10 + (c - '0');
        } else if (const pid_t whole = std::exchange(pid, 0); whole > 0) {
          each(whole);  // 0: in another pid namespace
        }
      }
    }
  }
  if (depth >= kDepthMax) return;
  for_each_group_below(folder, [&](const char* name) {
    if (const auto below = open_folder(folder, name)) for_each_member(below.get(), depth + 1, each);
  });
}

void kill_all_in(int folder) {
  const UniqueFd file(::openat(folder, "cgroup.kill", O_WRONLY | O_CLOEXEC));
  if (file && ::write(file.get(), "1", 1) == 1) return;
  // A kernel before 5.14. Processes forked meanwhile are killed by the next call.
  for_each_member(folder, 0, [](pid_t pid) { ::kill(pid, SIGKILL); });
}

void remove_groups_below(int folder, int depth) {
  if (depth >= kDepthMax) return;
  // Removing entries while reading the directory skips none: the kernel keeps the position by name.
  for_each_group_below(folder, [&](const char* name) {
    if (const auto below = open_folder(folder, name)) remove_groups_below(below.get(), depth + 1);
    ::unlinkat(folder, name, AT_REMOVEDIR);
  });
}

// ---- the path of a new group

// The word with this index, from 0.
std::string_view word_of(std::string_view line, int number) {
  for (; number > 0; --number) line.remove_prefix(std::min(line.find(' '), line.size() - 1) + 1);
  return line.substr(0, line.find(' '));
}

// The path in the line "0::/path" of cgroup::own_groups(); empty: there is none.
std::string own_group(const std::string& own_groups) {
  const std::string text = "\n" + own_groups;
  const std::size_t line = text.find("\n0::/");
  if (line == std::string::npos) return "";
  const std::size_t path = line + 4;
  return text.substr(path, text.find('\n', path) - path);
}

// Where the whole hierarchy is mounted at one of the usual places, and paths of groups begin at its root
// because this process is in the first namespace of control groups: a few system calls. Else empty. (The
// kernel writes mountinfo anew for each reader, which takes longer the more is mounted.)
std::string usual_mount_point() {
  constexpr ino_t kFirstNamespace = 0xEFFFFFFB;  // CGROUP_NS_INIT_INO of linux/nsfs.h
  constexpr ino_t kRootOfHierarchy = 1;
  struct stat status {};
  if (::stat("/proc/self/ns/cgroup", &status) != 0 || status.st_ino != kFirstNamespace) return "";
  for (const char* const path : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
    struct statfs mounted {};
    if (::statfs(path, &mounted) == 0 && mounted.f_type == CGROUP2_SUPER_MAGIC &&
        ::stat(path, &status) == 0 && status.st_ino == kRootOfHierarchy) {
      return path;
    }
  }
  return "";
}

// A line of mountinfo is "36 35 98:0 /root /mount/point rw,noatime shared:1 - cgroup2 …": the root
// is the part of the hierarchy that is seen at the mount point.
std::string own_folder(const std::string& own_groups, const std::string& root) {
  const std::string group = own_group(own_groups);
  if (group.empty() || group.starts_with("/..")) return "";  // outside of the mounted part
  if (const std::string mount = root.empty() ? usual_mount_point() : ""; !mount.empty()) {
    return mount + (group == "/" ? "" : group);
  }
  const std::string mounts = file_text(root + "/proc/self/mountinfo");
  for (std::size_t end = 0, begin = 0; begin < mounts.size(); begin = end + 1) {
    end = std::min(mounts.find('\n', begin), mounts.size());
    const auto line = std::string_view(mounts).substr(begin, end - begin);
    if (line.find(" - cgroup2 ") == std::string_view::npos) continue;
    const std::string_view above = word_of(line, 3) == "/" ? "" : word_of(line, 3);
    const bool is_seen =
        group.starts_with(above) && (group.size() == above.size() || group[above.size()] == '/');
    const std::string below = is_seen ? group.substr(above.size()) : "";
    if (is_seen) return std::string(word_of(line, 4)) + (below == "/" ? "" : below);
  }
  return "";
}

}  // namespace

std::string name_of_this_process() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return std::to_string(::getpid()) + "-" +
         std::to_string(now.tv_sec * kNanosecondsPerSecond + now.tv_nsec);
}

Result<std::string> ControlGroup::new_path(const std::string& own_groups, const std::string& root) {
  const std::string folder = own_folder(own_groups, root);
  if (folder.empty()) {
    return fail(ErrorCode::kNotFound,
                "no control groups of version 2 are mounted for this process");
  }
  // The new group would get the controllers, and so limits and shares of its own.
  if (file_text(root + folder + "/cgroup.subtree_control").find_first_not_of(" \n") !=
      std::string::npos) {
    return fail(ErrorCode::kUnavailable,
                "the control group " + folder + " gives its controllers to groups below it");
  }
  return folder + "/" + std::string(kNamePrefix) + name_of_this_process();
}

Result<ControlGroup> ControlGroup::make(const std::string& path) {
  if (::mkdir(path.c_str(), 0755) != 0) {
    return fail(error_from_errno(errno, "cannot make the control group " + path));
  }
  ControlGroup group(path, open_folder(AT_FDCWD, path.c_str()), UniqueFd());
  if (!group.directory_) return fail(error_from_errno(errno, "cannot open " + path));
  ::flock(group.directory(), LOCK_EX | LOCK_NB);  // held as long as this agent lives
  group.events_.reset(::openat(group.directory(), "cgroup.events", O_RDONLY | O_CLOEXEC));
  if (!group.events_)
    return fail(error_from_errno(errno, "cannot open " + path + "/cgroup.events"));
  return group;
}

ControlGroup::ControlGroup(ControlGroup&& other) noexcept
    : path_(std::exchange(other.path_, {})),
      directory_(std::move(other.directory_)),
      events_(std::move(other.events_)) {}

bool ControlGroup::remove() {
  if (path_.empty()) return true;  // moved from, or removed
  if (directory_) tidy();
  if (::rmdir(path_.c_str()) != 0) return false;
  path_.clear();
  return true;
}

bool ControlGroup::is_populated() const { return is_populated_by(events_.get()); }

void ControlGroup::kill() const { kill_all_in(directory_.get()); }

std::vector<pid_t> ControlGroup::members() const {
  std::vector<pid_t> pids;
  for_each_member(directory_.get(), 0, [&pids](pid_t pid) { pids.push_back(pid); });
  return pids;
}

bool ControlGroup::let_out(pid_t member) const {
  const UniqueFd above(::openat(directory_.get(), "../cgroup.procs", O_WRONLY | O_CLOEXEC));
  const std::string text = std::to_string(member);
  return above &&
         ::write(above.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

// The link count shows if there are groups below: each one is a link to its parent.
void ControlGroup::tidy() const {
  struct stat status {};
  if (::fstat(directory_.get(), &status) == 0 && status.st_nlink <= 2) return;
  remove_groups_below(directory_.get(), 0);
}

// No process holds the lock of such a group. A new group is skipped, because its agent may not have
// locked it yet.
void ControlGroup::remove_abandoned_beside() const {
  const UniqueFd folder =
      open_folder(AT_FDCWD, path_.substr(0, std::max<std::size_t>(path_.rfind('/'), 1)).c_str());
  if (!folder) return;
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  for_each_group_below(folder.get(), [&](std::string_view name) {
    const auto made_at = parse_number<std::int64_t>(name.substr(name.rfind('-') + 1));
    if (!name.starts_with(kNamePrefix) || !made_at) return;
    if (now.tv_sec - *made_at / kNanosecondsPerSecond < kNewForSeconds) return;
    const UniqueFd group = open_folder(folder.get(), name.data());
    if (!group || ::flock(group.get(), LOCK_EX | LOCK_NB) != 0) return;
    remove_groups_below(group.get(), 0);
    ::unlinkat(folder.get(), name.data(), AT_REMOVEDIR);
  });
}

void kill_control_group(const char* path) {
  if (const auto folder = open_folder(AT_FDCWD, path)) kill_all_in(folder.get());
}

void remove_control_group(const char* path, std::chrono::milliseconds patience) {
  const auto folder = open_folder(AT_FDCWD, path);
  if (!folder) return;
  const UniqueFd events(::openat(folder.get(), "cgroup.events", O_RDONLY | O_CLOEXEC));
  const auto until = std::chrono::steady_clock::now() + patience;
  while (events && is_populated_by(events.get()) && std::chrono::steady_clock::now() < until) {
    kill_all_in(folder.get());
    pollfd change{events.get(), POLLPRI, 0};
    ::poll(&change, 1, 10);
  }
  remove_groups_below(folder.get(), 0);
  ::rmdir(path);
}

}  // namespace ddprun::agent
