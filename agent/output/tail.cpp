#include "agent/output/tail.h"

#include <algorithm>

namespace ddprun::agent {
namespace {

constexpr std::size_t kBytesMin = 16 * 1024;

std::string_view as_shown(std::string_view line) {
  while (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  return line.substr(line.rfind('\r') + 1);  // npos + 1 is 0
}

}  // namespace

void Tail::append(std::string_view bytes) {
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

std::vector<std::string> Tail::lines() const {
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

}  // namespace ddprun::agent
