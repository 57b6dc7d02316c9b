// The last lines of a stream, for the failure report. Pure; its size is bounded even if lines are
// long.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::agent {

class Tail {
 public:
  explicit Tail(std::size_t lines_max) : lines_max_(lines_max) {}

  void append(std::string_view bytes) {
    if (lines_max_ == 0) return;
    total_ += bytes.size();
    if (bytes.size() >= kBytesMin) {
      is_cut_ = is_cut_ || bytes.size() > kBytesMin || !bytes_.empty();
      bytes_.assign(bytes.substr(bytes.size() - kBytesMin));
      return;
    }
    // Drops many bytes at once, because erasing at the front moves all the others.
    if (bytes_.size() + bytes.size() > 2 * kBytesMin) {
      bytes_.erase(0, bytes_.size() - kBytesMin);
      is_cut_ = true;
    }
    bytes_.append(bytes);
  }

  // Number of bytes appended in total, and the last of these bytes.
  std::uint64_t total() const { return total_; }
  std::string_view bytes() const { return bytes_; }

  // At most lines_max lines; the last one may be unfinished. Of a line that \r overwrites (a
  // progress bar) only the part after the last \r is kept; other bytes are unchanged.
  std::vector<std::string> lines() const {
    std::vector<std::string> last_first;
    std::string_view rest = bytes_;
    if (!rest.empty() && rest.back() == '\n') rest.remove_suffix(1);
    if (bytes_.empty()) return last_first;
    while (last_first.size() < lines_max_) {
      const std::size_t end_of_previous = rest.rfind('\n');
      const bool is_first = end_of_previous == std::string_view::npos;
      if (is_first && is_cut_ && !last_first.empty()) break;  // a line without its beginning
      last_first.emplace_back(as_shown(rest.substr(end_of_previous + 1)));
      if (is_first) break;
      rest = rest.substr(0, end_of_previous);
    }
    std::reverse(last_first.begin(), last_first.end());
    return last_first;
  }

 private:
  static constexpr std::size_t kBytesMin = std::size_t{16} * 1024;

  static std::string_view as_shown(std::string_view line) {
    while (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    return line.substr(line.rfind('\r') + 1);  // npos + 1 is 0
  }

  std::size_t lines_max_;
  std::string bytes_;  // the last kBytesMin to 2 * kBytesMin bytes, or all if there were fewer
  std::uint64_t total_ = 0;
  bool is_cut_ = false;  // bytes_ does not begin where a line begins
};

}  // namespace ddprun::agent
