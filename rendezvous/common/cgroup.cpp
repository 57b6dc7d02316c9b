#include "rendezvous/common/cgroup.h"

#include <algorithm>
#include <charconv>

#include "rendezvous/common/file_text.h"

namespace ddprun::cgroup {
namespace {

// Version 1 writes "no limit" as a number near the maximum.
constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 60;

std::optional<std::uint64_t> leading_number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

}  // namespace

std::string own_groups(const std::string& root) { return file_text(root + "/proc/self/cgroup"); }

std::vector<std::string> folders(std::string_view controller, const std::string& root) {
  return folders(controller, root, own_groups(root));
}

// own_groups has a line "0::/path" for version 2 and "4:memory:/path" for version 1. In a
// container the path is often the host's and does not exist here; then the root of the mount is
// this container's group.
std::vector<std::string> folders(std::string_view controller, const std::string& root,
                                 const std::string& own_groups) {
  std::vector<std::string> folders;
  for (std::size_t end = 0, begin = 0; begin < own_groups.size(); begin = end + 1) {
    end = std::min(own_groups.find('\n', begin), own_groups.size());
    const std::string line = own_groups.substr(begin, end - begin);
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool is_v2 = controllers == ",,";
    const bool is_named =
        controllers.find("," + std::string(controller) + ",") != std::string::npos;
    if (!is_v2 && !is_named) continue;
    const std::string mount =
        root + "/sys/fs/cgroup" + (is_v2 ? "" : "/" + std::string(controller));
    for (std::string path = line.substr(second + 1); path.size() > 1; path.erase(path.rfind('/'))) {
      folders.push_back(mount + path);
      if (path.find('/') == std::string::npos) break;
    }
    folders.push_back(mount);
  }
  return folders;
}

std::optional<std::uint64_t> field(const std::string& text, std::string_view key) {
  const std::string wanted = "\n" + std::string(key) + " ";
  const std::size_t at = ("\n" + text).find(wanted);
  if (at == std::string::npos) return std::nullopt;
  return leading_number(std::string_view(text).substr(at + wanted.size() - 1));
}

std::optional<std::uint64_t> number_in(const std::string& path) {
  return leading_number(file_text(path));
}

std::vector<Memory> memory(const std::string& root) {
  std::vector<Memory> groups;
  for (const std::string& folder : folders("memory", root)) {
    const auto current = number_in(folder + "/memory.current");
    const bool is_v2 = current.has_value();
    const auto limit = number_in(folder + (is_v2 ? "/memory.max" : "/memory.limit_in_bytes"));
    if (!limit || *limit >= kNoLimit) continue;
    const std::string total = is_v2 ? "" : "total_";
    const std::string pages = file_text(folder + "/memory.stat");
    groups.push_back(
        {.folder = folder,
         .limit = *limit,
         .used = is_v2 ? *current : number_in(folder + "/memory.usage_in_bytes").value_or(0),
         .inactive_files = field(pages, total + "inactive_file").value_or(0),
         .active_files = field(pages, total + "active_file").value_or(0)});
  }
  return groups;
}

std::optional<Room> memory_room(const std::string& root) {
  const auto less = [](std::uint64_t whole, std::uint64_t part) {
    return whole - std::min(whole, part);
  };
  std::optional<Room> least;
  for (const Memory& group : memory(root)) {
    const std::uint64_t used = less(group.used, group.inactive_files + group.active_files);
    const std::uint64_t left = less(group.limit, used);
    if (!least || left < least->left) least = Room{group.folder, group.limit, left};
  }
  return least;
}

}  // namespace ddprun::cgroup
