// Where the control sockets of a user's jobs are on this machine, for the agent that makes one and
// for ddpctl that looks for it: $DDPRUN_CONTROL_DIR, else $XDG_RUNTIME_DIR/ddprun, else
// /tmp/ddprun-<uid>, a folder that only its owner may enter. In it each job has ID.sock; where that
// name is taken by another job that runs, ID.PID.sock. Any thread; nothing here waits for anybody.
//
// The mistake to avoid: going by paths. In /tmp somebody else may have made the folder, or a link in
// its place: it is opened once, without following links, its owner and mode are looked at, and all
// that follows goes through that descriptor.
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

// Those that this user's jobs may be in, the first that exists and is fit for it is used.
std::vector<std::string> control_folders(const Environment& environment, uid_t user);

// kNotFound: it is not there (with `makes_it`: nor is the folder that it would be in).
// kPermissionDenied: it is there and not this user's alone; the sentence says what to do.
Result<rdzv::UniqueFd> open_control_folder(const std::string& path, uid_t user, bool makes_it);

// The job's id with what is no part of a file's name replaced, and cut where it is long.
std::string control_name(std::string_view run_id);
std::string control_name(std::string_view run_id, pid_t pid);

// Of a socket there. kNotFound: there is none. kUnavailable: there is one, and nobody listens: its
// job was killed. kPermissionDenied: it is no socket of this user's.
Result<rdzv::UniqueFd> connect_control(const rdzv::UniqueFd& folder, const std::string& name,
                                       uid_t user);

// The names of those that are there, sorted.
std::vector<std::string> control_sockets_in(const rdzv::UniqueFd& folder);

// Removes those of `names` at which nobody listens: killed jobs left them. One that is only a few
// seconds old is spared: its agent may be about to listen.
void remove_left_over(const rdzv::UniqueFd& folder, std::span<const std::string> names, uid_t user);

// Who is at the other end, as the kernel says; nothing: that cannot be known.
std::optional<ucred> peer_of(int socket);

// Bound, listening, for its owner only, and the name that it got. Removes what others left over.
struct BoundControl {
  rdzv::UniqueFd socket;
  std::string name;
};
Result<BoundControl> bind_control(const rdzv::UniqueFd& folder, std::string_view run_id, pid_t pid,
                                  uid_t user);

}  // namespace ddprun::agent
