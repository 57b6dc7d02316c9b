#include "agent/query/control_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <future>
#include <memory>
#include <utility>

#include "rendezvous/common/directory_entries.h"
#include "rendezvous/common/thread.h"

namespace ddprun::agent {
namespace {

constexpr int kBacklog = 16;
constexpr std::size_t kNameBytesMax = 60;   // of the id in the file name
constexpr std::size_t kSweptAtStart = 16;   // a limit, so that the launch stays fast
constexpr std::time_t kLeftOverAfter = 10;  // seconds
constexpr std::chrono::milliseconds kRemovalLimit{500};
constexpr mode_t kOthers = S_IRWXG | S_IRWXO;
constexpr std::string_view kControl = ".sock";
constexpr std::string_view kMemory = ".memory";

Error wrong_owner(const std::string& path, uid_t owner) {
  return {ErrorCode::kPermissionDenied,
          path + " belongs to user " + std::to_string(owner) +
              ", and is not used; remove it, or set XDG_RUNTIME_DIR to a folder of your own",
          {}};
}

// A path through the descriptor is short for every folder, and always means this folder.
sockaddr_un address_of(const rdzv::UniqueFd& folder, const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = "/proc/self/fd/" + std::to_string(folder.get()) + "/" + name;
  std::memcpy(address.sun_path, path.data(), std::min(path.size(), sizeof address.sun_path - 1));
  return address;
}

const sockaddr* generic(const sockaddr_un& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

// A socket is removed, or bound and not yet listening, only while this lock is held. Null: another
// process holds it.
std::shared_ptr<const void> lock_of(const rdzv::UniqueFd& folder) {
  const int fd = folder.get();
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) return nullptr;
  return {&folder, [fd](const void*) { ::flock(fd, LOCK_UN); }};
}

Result<rdzv::UniqueFd> bind_as(const rdzv::UniqueFd& folder, const std::string& name) {
  rdzv::UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const sockaddr_un address = address_of(folder, name);
  // bind() takes the mode of the file from the socket.
  if (!socket || ::fchmod(socket.get(), S_IRUSR | S_IWUSR) != 0 ||
      ::bind(socket.get(), generic(address), sizeof address) != 0 ||
      ::listen(socket.get(), kBacklog) != 0) {
    return fail(error_from_errno(errno, "cannot make the socket " + name));
  }
  return socket;
}

std::vector<std::string> names_in(const rdzv::UniqueFd& folder, std::string_view ending) {
  std::vector<std::string> names;
  for_each_entry(folder.get(), [&](std::string_view name, unsigned char) {
    if (name.ends_with(ending)) names.emplace_back(name);
  });
  std::ranges::sort(names);
  return names;
}

// Call it with the lock held.
void sweep(const rdzv::UniqueFd& folder, std::span<const std::string> names, uid_t user) {
  const std::time_t now = ::time(nullptr);
  for (const std::string& name : names) {
    struct stat found {};
    if (::fstatat(folder.get(), name.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0 ||
        now - found.st_mtime < kLeftOverAfter) {
      continue;
    }
    const auto other = connect_control(folder, name, user);
    if (!other && other.error().code == ErrorCode::kUnavailable) {
      ::unlinkat(folder.get(), name.c_str(), 0);
    }
  }
}

// The first of the names that no running process has. The first `shared` of them may be others' names, too.
Result<BoundControl> bind_first(const rdzv::UniqueFd& folder, std::span<const std::string> names,
                                std::size_t shared, uid_t user) {
  const auto lock = lock_of(folder);
  if (lock) {
    for (const std::string_view kind : {kControl, kMemory}) {
      const std::vector<std::string> found = names_in(folder, kind);
      sweep(folder, std::span(found).first(std::min(found.size(), kSweptAtStart)), user);
    }
  }
  // Without the lock do not try to get a shared name: another agent is working on it.
  for (const std::string& name : names.subspan(lock ? 0 : shared)) {
    auto bound = bind_as(folder, name);
    if (!bound && bound.error().code == ErrorCode::kAddressInUse) {
      const auto other = connect_control(folder, name, user);
      // A socket with our own pid is of a process that has ended, or of another pid namespace.
      if (other || other.error().code != ErrorCode::kUnavailable) continue;
      ::unlinkat(folder.get(), name.c_str(), 0);
      bound = bind_as(folder, name);
    }
    if (!bound) return fail(std::move(bound.error()));
    return BoundControl{std::move(*bound), name};
  }
  return fail(ErrorCode::kAddressInUse, "every name for the job's socket is taken");
}

}  // namespace

std::vector<std::string> control_sockets_in(const rdzv::UniqueFd& folder) {
  return names_in(folder, kControl);
}

std::vector<std::string> memory_sockets_in(const rdzv::UniqueFd& folder) {
  return names_in(folder, kMemory);
}

void remove_left_over(const rdzv::UniqueFd& folder, std::span<const std::string> names,
                      uid_t user) {
  if (const auto lock = lock_of(folder)) sweep(folder, names, user);
}

std::optional<ucred> peer_of(int socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return std::nullopt;
  return peer;
}

std::vector<std::string> control_folders(const Environment& environment, uid_t user) {
  if (std::string only = value_or_empty(environment, "DDPRUN_CONTROL_DIR"); only.starts_with('/')) {
    return {std::move(only)};
  }
  const std::string id = std::to_string(user);
  std::vector<std::string> folders;
  const std::string given = value_or_empty(environment, "XDG_RUNTIME_DIR");
  if (given.starts_with('/')) folders.push_back(given + "/ddprun");
  // The job, or ddpctl, may have been started without the variable.
  for (const std::string& each : {"/run/user/" + id + "/ddprun", "/tmp/ddprun-" + id}) {
    if (std::ranges::count(folders, each) == 0) folders.push_back(each);
  }
  return folders;
}

Result<rdzv::UniqueFd> open_control_folder(const std::string& path, uid_t user, bool makes_it) {
  if (makes_it) {
    // sudo or su may have left another user's runtime folder in the environment.
    struct stat parent {};
    const std::string above = path.substr(0, path.rfind('/'));
    if (::stat(above.c_str(), &parent) != 0) return fail(error_from_errno(errno, above));
    const bool is_for_all = (parent.st_mode & S_ISVTX) != 0;
    if (!is_for_all && parent.st_uid != user) {
      return fail(ErrorCode::kNotFound, above + " is not this user's");
    }
    if (::mkdir(path.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
      return fail(error_from_errno(errno, "cannot make " + path));
    }
  }
  rdzv::UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder) {
    if (errno == ENOENT) return fail(error_from_errno(errno, path));
    struct stat found {};
    if (::lstat(path.c_str(), &found) == 0 && found.st_uid != user) {
      return fail(wrong_owner(path, found.st_uid));
    }
    return fail(ErrorCode::kPermissionDenied, path + " is not a usable folder (" +
                                                  std::strerror(errno) +
                                                  "); a link is not followed; remove it");
  }
  struct stat found {};
  if (::fstat(folder.get(), &found) != 0) return fail(error_from_errno(errno, path));
  if (found.st_uid != user) return fail(wrong_owner(path, found.st_uid));
  if ((found.st_mode & kOthers) != 0) {
    return fail(ErrorCode::kPermissionDenied,
                path + " can be entered by others, and is not used; chmod 700 it");
  }
  return folder;
}

Result<ControlFolder> own_control_folder(const Environment& environment, uid_t user) {
  std::optional<Error> why;
  for (const std::string& path : control_folders(environment, user)) {
    auto folder = open_control_folder(path, user, /*makes_it=*/true);
    if (folder) return ControlFolder{std::move(*folder), path};
    // If a folder does not exist, try the next one; report any other error.
    why = std::move(folder.error());
    if (why->code == ErrorCode::kPermissionDenied) break;
  }
  return fail(std::move(*why));
}

std::string control_prefix(std::string_view run_id) {
  std::string name;
  for (const char each : run_id.substr(0, kNameBytesMax)) {
    const bool is_fit = (each >= 'a' && each <= 'z') || (each >= 'A' && each <= 'Z') ||
                        (each >= '0' && each <= '9') || each == '-' || each == '_' ||
                        (each == '.' && !name.empty());
    name += is_fit ? each : '_';
  }
  return name;
}

std::string control_name(std::string_view run_id) {
  return control_prefix(run_id) + std::string(kControl);
}

std::string control_name(std::string_view run_id, pid_t pid) {
  return control_prefix(run_id) + "." + std::to_string(pid) + std::string(kControl);
}

Result<rdzv::UniqueFd> connect_control(const rdzv::UniqueFd& folder, const std::string& name,
                                       uid_t user) {
  struct stat found {};
  if (::fstatat(folder.get(), name.c_str(), &found, AT_SYMLINK_NOFOLLOW) != 0) {
    return fail(error_from_errno(errno, name));
  }
  if (!S_ISSOCK(found.st_mode)) {
    return fail(ErrorCode::kPermissionDenied, name + " is not a socket; it is not used");
  }
  if (found.st_uid != user) return fail(wrong_owner(name, found.st_uid));
  rdzv::UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const sockaddr_un address = address_of(folder, name);
  if (!socket || ::connect(socket.get(), generic(address), sizeof address) != 0) {
    if (errno == ECONNREFUSED) {
      return fail(ErrorCode::kUnavailable, "nobody listens at " + name + ": its job was killed");
    }
    if (errno == EAGAIN) {
      return fail(ErrorCode::kTimeout, "too many wait at " + name + " already: its agent hangs");
    }
    return fail(error_from_errno(errno, "cannot connect to " + name));
  }
  const auto peer = peer_of(socket.get());
  if (!peer || peer->uid != user) {
    return fail(wrong_owner("who listens at " + name, peer.value_or(ucred{}).uid));
  }
  return socket;
}

Result<BoundControl> bind_control(const rdzv::UniqueFd& folder, std::string_view run_id, pid_t pid,
                                  uid_t user) {
  const std::string names[] = {control_name(run_id), control_name(run_id, pid)};
  return bind_first(folder, names, /*shared=*/1, user);
}

void remove_control(rdzv::UniqueFd folder, const std::string& name) {
  struct Removal {
    rdzv::UniqueFd folder;
    std::string name;
    std::promise<void> made;
  };
  const auto removal = std::make_shared<Removal>(Removal{std::move(folder), name, {}});
  const std::future<void> is_made = removal->made.get_future();
  auto thread = rdzv::Thread::start("ddprun-control", [removal] {
    ::unlinkat(removal->folder.get(), removal->name.c_str(), 0);
    removal->made.set_value();
  });
  if (!thread) {
    ::unlinkat(removal->folder.get(), name.c_str(), 0);
  } else if (is_made.wait_for(kRemovalLimit) != std::future_status::ready) {
    thread->detach();
  }
}

Result<BoundControl> bind_memory(const rdzv::UniqueFd& folder, std::string_view run_id, pid_t pid,
                                 uid_t user) {
  // The memory of an agent that had this number may still be kept.
  const std::string name = control_prefix(run_id) + "." + std::to_string(pid);
  const std::string names[] = {name + std::string(kMemory), name + ".1" + std::string(kMemory),
                               name + ".2" + std::string(kMemory)};
  return bind_first(folder, names, /*shared=*/0, user);
}

}  // namespace ddprun::agent
