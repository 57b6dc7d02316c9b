// Reading the small files of /sys and /proc, for placement and accelerators. Apart from the reading,
// pure; any thread.
#pragma once

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/common/file_text.h"
#include "rendezvous/common/trimmed.h"

namespace ddprun::agent {

inline constexpr int kHighestCpu = 65535;  // a limit, in case the file is not what it should be

inline std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(directory.c_str()), ::closedir);
  if (listing == nullptr) return names;
  while (const dirent* entry = ::readdir(listing.get())) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  std::ranges::sort(names);
  return names;
}

inline bool is_there(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

// The value of "Key: value", or of another separator, in a file of such lines.
inline std::string_view field(std::string_view text, std::string_view key, char separator = ':') {
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::size_t end = line.find(separator);
    if (end != std::string_view::npos && trimmed(line.substr(0, end)) == key) {
      return trimmed(line.substr(end + 1));
    }
  }
  return {};
}

// The number that a text begins with, as strtoul reads it; nullopt if it begins with none.
inline std::optional<int> leading_number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data() || value < 0) return std::nullopt;
  return value;
}

inline std::optional<int> number(std::string_view text) {
  const auto value = leading_number(text);
  return value && std::to_string(*value) == text ? value : std::nullopt;
}

// The number in a file that holds nothing else; negative ones do not count.
inline std::optional<int> number_in(const std::string& path) {
  return number(trimmed(file_text(path)));
}

}  // namespace ddprun::agent
