// What the control groups that this process is in let it have, of version 1 and 2: files of /proc and
// /sys below a root that tests replace by a tree of their own. Nothing is kept, any thread. The
// mistake to avoid: asking only the process's own group. A limit of any group around it holds too.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::cgroup {

// The folders of a controller's groups, from this process's own to the outermost that is seen.
std::vector<std::string> folders(std::string_view controller, const std::string& root = "");

// The number behind the word `key` in a text of words and numbers, as memory.stat and memory.events are.
std::optional<std::uint64_t> field(const std::string& text, std::string_view key);

// The number that a file of the kernel's begins with; none for "max" and for no file.
std::optional<std::uint64_t> number_in(const std::string& path);

// Of those groups that have a limit.
struct Memory {
  std::string folder;
  std::uint64_t limit = 0;
  std::uint64_t used = 0;
  // Pages of files among them, which the kernel takes back where memory is wanted: those at hand,
  // and those that were used more than once.
  std::uint64_t inactive_files = 0;
  std::uint64_t active_files = 0;
};
std::vector<Memory> memory(const std::string& root = "");

// The group that has the least room, if one has a limit.
struct Room {
  std::string folder;
  std::uint64_t limit = 0;
  std::uint64_t left = 0;  // when every page of a file has been given back
};
std::optional<Room> memory_room(const std::string& root = "");

}  // namespace ddprun::cgroup
