#include "agent/text/substitute.h"

namespace ddprun::agent {
namespace {

constexpr std::string_view kDigits = "0123456789";
constexpr std::string_view kNameCharacters =
    "0123456789_ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

// At the start of `text`; empty: there is none.
std::string_view name_at(std::string_view text) {
  const std::size_t length =
      text.find_first_of(kDigits) == 0 ? 0 : text.find_first_not_of(kNameCharacters);
  return text.substr(0, length);
}

}  // namespace

std::string substitute(std::string_view text,
                       const std::map<std::string, std::string, std::less<>>& values) {
  std::string result;
  for (std::size_t dollar; (dollar = text.find('$')) != std::string_view::npos;) {
    result += text.substr(0, dollar);
    text.remove_prefix(dollar + 1);
    const bool is_braced = text.starts_with('{');
    const std::string_view name = name_at(text.substr(is_braced ? 1 : 0));
    const bool is_closed = !is_braced || text.substr(1 + name.size()).starts_with('}');
    const auto value = values.find(name);
    if (is_closed && value != values.end()) {
      result += value->second;
      text.remove_prefix(name.size() + (is_braced ? 2 : 0));
    } else {
      result += '$';
      if (text.starts_with('$')) text.remove_prefix(1);
    }
  }
  return result.append(text);
}

}  // namespace ddprun::agent
