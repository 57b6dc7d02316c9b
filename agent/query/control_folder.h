// The folder of the control sockets of a user's jobs on this machine, for the agent and ddpctl:
// $DDPRUN_CONTROL_DIR, else $XDG_RUNTIME_DIR/ddprun, else /tmp/ddprun-<uid>; only its owner may
// enter it. Each job has ID.sock in it; if another running job has that name, ID.PID.sock. With
// --keep-memory each agent also has ID.PID.memory (kept_memory.h). Any thread; nothing here waits for
// another process.
//
// Do not use paths: in /tmp another user may have made the folder, or replaces it by a link. It is
// opened once, without following links, and checked; everything else uses that descriptor.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/common/environment.h"
#include "rendezvous/common/result.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::agent {

// The folders where this user's jobs may be; the first one that exists and is safe is used.
std::vector<std::string> control_folders(const Environment& environment, uid_t user);

// kNotFound: it does not exist (with `makes_it`: and its parent folder does not exist either).
// kPermissionDenied: it exists, but others can use it too; the message says what to do.
Result<rdzv::UniqueFd> open_control_folder(const std::string& path, uid_t user, bool makes_it);

// The one for the sockets of this user's new job: the first that is there or can be made.
struct ControlFolder {
  rdzv::UniqueFd folder;
  std::string path;
};
Result<ControlFolder> own_control_folder(const Environment& environment, uid_t user);

// The job's id as a file name: other characters are replaced, a long id is cut.
std::string control_name(std::string_view run_id);
std::string control_name(std::string_view run_id, pid_t pid);
// What all names of sockets of that job begin with, and those of some other jobs.
std::string control_prefix(std::string_view run_id);

// Connects to a socket there. kNotFound: there is none. kUnavailable: nobody listens at it, because
// its job was killed. kPermissionDenied: it does not belong to this user.
Result<rdzv::UniqueFd> connect_control(const rdzv::UniqueFd& folder, const std::string& name,
                                       uid_t user);

// The names of the sockets there, sorted.
std::vector<std::string> control_sockets_in(const rdzv::UniqueFd& folder);
std::vector<std::string> memory_sockets_in(const rdzv::UniqueFd& folder);

// Removes those of `names` at which nobody listens: killed jobs left them. A socket that is only a
// few seconds old is kept, because its agent may not listen yet.
void remove_left_over(const rdzv::UniqueFd& folder, std::span<const std::string> names, uid_t user);

// The process at the other end, from the kernel; nothing: not known.
std::optional<ucred> peer_of(int socket);

// A listening socket that only its owner can use, and its name. Removes sockets of killed jobs.
struct BoundControl {
  rdzv::UniqueFd socket;
  std::string name;
};
Result<BoundControl> bind_control(const rdzv::UniqueFd& folder, std::string_view run_id, pid_t pid,
                                  uid_t user);
// Removes that socket, on a thread, for which the caller waits half a second at most: a file server may hold it. If it
// stays, the next job removes it.
void remove_control(rdzv::UniqueFd folder, const std::string& name);
Result<BoundControl> bind_memory(const rdzv::UniqueFd& folder, std::string_view run_id, pid_t pid,
                                 uid_t user);

}  // namespace ddprun::agent
