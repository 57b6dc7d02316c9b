// The last lines of a stream, for the failure report. Pure; its size is bounded even if lines are
// long.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::agent {

class Tail {
 public:
  explicit Tail(std::size_t lines_max) : lines_max_(lines_max) {}

  void append(std::string_view bytes);

  // Number of bytes appended in total, and the last of these bytes.
  std::uint64_t total() const { return total_; }
  std::string_view bytes() const { return bytes_; }

  // At most lines_max lines; the last one may be unfinished. Of a line that \r overwrites (a
  // progress bar) only the part after the last \r is kept; other bytes are unchanged.
  std::vector<std::string> lines() const;

 private:
  std::size_t lines_max_;
  std::string bytes_;  // the last kBytesMin to 2 * kBytesMin bytes, or all if there were fewer
  std::uint64_t total_ = 0;
  bool is_cut_ = false;  // bytes_ does not begin where a line begins
};

}  // namespace ddprun::agent
