// The last lines of a stream, for the failure report. Pure; holds a bounded number of bytes however
// long the lines are.
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

  // How many bytes there were in all, and the last of them.
  std::uint64_t total() const { return total_; }
  std::string_view bytes() const { return bytes_; }

  // At most lines_max, the last one perhaps unfinished. Of a line that was overwritten by \r (a
  // progress bar) only what a terminal would still show; bytes are otherwise as the worker wrote
  // them.
  std::vector<std::string> lines() const;

 private:
  std::size_t lines_max_;
  std::string bytes_;  // between kBytesMin and twice as many, once there were that many
  std::uint64_t total_ = 0;
  bool is_cut_ = false;  // bytes_ does not begin where a line begins
};

}  // namespace ddprun::agent
