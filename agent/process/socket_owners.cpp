#include "agent/process/socket_owners.h"

#include <charconv>
#include <filesystem>
#include <sstream>
#include <string_view>

#include "rendezvous/common/file_text.h"

namespace ddprun::agent {
namespace {

namespace fs = std::filesystem;

// "0100007F:1F90"
std::uint16_t port_in(std::string_view address) {
  const std::string_view digits = address.substr(address.rfind(':') + 1);
  std::uint16_t port = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), port, 16);
  return port;
}

// Ports of this end, by the text of the link in /proc/PID/fd.
std::map<std::string, std::uint16_t> sockets_to(std::uint16_t port, const std::string& proc) {
  std::map<std::string, std::uint16_t> found;
  for (const char* const table : {"/net/tcp", "/net/tcp6"}) {
    std::istringstream lines(file_text(proc + table));
    for (std::string line; std::getline(lines, line);) {
      std::istringstream fields(line);
      std::string number, local, remote, state, queues, timer, retransmits, user, timeout, inode;
      fields >> number >> local >> remote >> state >> queues >> timer >> retransmits >> user >>
          timeout >> inode;
      if (port_in(remote) == port) found.emplace("socket:[" + inode + "]", port_in(local));
    }
  }
  return found;
}

}  // namespace

std::map<std::uint16_t, pid_t> connections_to(std::uint16_t port, const std::vector<pid_t>& pids,
                                              const std::string& proc) {
  const auto sockets = sockets_to(port, proc);
  std::map<std::uint16_t, pid_t> owners;
  for (const pid_t pid : pids) {
    std::error_code error;
    for (fs::directory_iterator at(proc + "/" + std::to_string(pid) + "/fd", error), end;
         !error && at != end; at.increment(error)) {
      std::error_code unreadable;
      const auto place = sockets.find(fs::read_symlink(at->path(), unreadable).string());
      if (place != sockets.end()) owners[place->second] = pid;
    }
  }
  return owners;
}

}  // namespace ddprun::agent
