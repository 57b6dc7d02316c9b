// Cuts a byte stream into lines by the rule of universal newlines, as torchrun does for what it
// shows on the console: \n, \r\n and a lone \r each end a line, so a progress bar becomes one line
// per update. Pure; a value of one stream.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace ddprun::agent {

class LineSplitter {
 public:
  // A longer line is cut, because a line is kept in memory until it is complete.
  static constexpr std::size_t kLineBytesMax = std::size_t{1024} * 1024;

  // Calls on_line(std::string_view) for each line that `bytes` completes, without its end.
  template <typename OnLine>
  void feed(std::string_view bytes, OnLine&& on_line) {
    if (after_return_ && !bytes.empty()) {
      if (bytes.front() == '\n') bytes.remove_prefix(1);
      after_return_ = false;
    }
    // Two searches, because each is a fast memchr, and \r is rare.
    std::size_t next_return = bytes.find('\r');
    while (true) {
      const std::size_t end = std::min(bytes.find('\n'), next_return);
      if (end == std::string_view::npos) break;
      if (partial_.empty()) {
        on_line(bytes.substr(0, end));
      } else {
        partial_.append(bytes.substr(0, end));
        on_line(std::string_view(partial_));
        partial_.clear();
      }
      std::size_t next = end + 1;
      if (end == next_return) {
        after_return_ = next == bytes.size();
        if (!after_return_ && bytes[next] == '\n') ++next;
      }
      bytes.remove_prefix(next);
      if (end == next_return) {
        next_return = bytes.find('\r');
      } else if (next_return != std::string_view::npos) {
        next_return -= next;
      }
    }
    partial_.append(bytes);
    if (partial_.size() >= kLineBytesMax) finish(on_line);
  }

  // At the end of the stream: the rest is a line too.
  template <typename OnLine>
  void finish(OnLine&& on_line) {
    if (partial_.empty()) return;
    on_line(std::string_view(partial_));
    partial_ = std::string();
  }

 private:
  std::string partial_;
  bool after_return_ = false;  // the last byte was \r: a \n that follows belongs to it
};

}  // namespace ddprun::agent
