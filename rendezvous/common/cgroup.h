// The limits of this process's control groups, version 1 and 2, read from /proc and /sys below a
// root that tests replace by a tree of their own. No state; any thread. The limits of all enclosing
// groups apply too, not only those of the process's own group.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::cgroup {

// The names of this process's own groups, in the kernel's words (/proc/self/cgroup); it takes the kernel 20 µs to tell.
std::string own_groups(const std::string& root = "");

// The folders of a controller's groups, from this process's own to the outermost visible one.
std::vector<std::string> folders(std::string_view controller, const std::string& root = "");
std::vector<std::string> folders(std::string_view controller, const std::string& root,
                                 const std::string& own_groups);

// The number after the word `key` in a text of words and numbers, such as memory.stat and
// memory.events.
std::optional<std::uint64_t> field(const std::string& text, std::string_view key);

// The number at the beginning of a kernel file; nullopt for "max" and if there is no file.
std::optional<std::uint64_t> number_in(const std::string& path);

// Memory of the groups that have a limit.
struct Memory {
  std::string folder;
  std::uint64_t limit = 0;
  std::uint64_t used = 0;
  // Page cache included in `used`, which the kernel reclaims when memory is needed: pages on the
  // inactive list, and pages that were used more than once.
  std::uint64_t inactive_files = 0;
  std::uint64_t active_files = 0;
};
std::vector<Memory> memory(const std::string& root = "");

// The group that has the least room, if one has a limit.
struct Room {
  std::string folder;
  std::uint64_t limit = 0;
  std::uint64_t left = 0;  // after the whole page cache is reclaimed
};
std::optional<Room> memory_room(const std::string& root = "");

}  // namespace ddprun::cgroup
