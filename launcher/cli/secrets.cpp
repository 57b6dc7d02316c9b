#include "launcher/cli/secrets.h"

#include <algorithm>
#include <cctype>

#include "launcher/cli/rdzv_keys.h"
#include "launcher/cli/text.h"

namespace ddprun::cli {
namespace {

constexpr std::string_view kMask = "***";

bool is_part_of_a_key(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// The word that ends where `text` ends.
std::string_view last_word(std::string_view text) {
  std::size_t begin = text.size();
  while (begin > 0 && is_part_of_a_key(text[begin - 1])) --begin;
  return text.substr(begin);
}

// The key of a pair, without a quote that opens the whole text.
std::string_view key_of(std::string_view pair) {
  std::string_view key = trimmed(pair.substr(0, pair.find('=')));
  while (key.starts_with('\'') || key.starts_with('"')) key.remove_prefix(1);
  return key;
}

}  // namespace

std::string shown_value(std::string_view key, std::string_view value) {
  return std::string(value.empty() || is_public_key(key) ? value : kMask);
}

std::string shown_conf(std::string_view text) {
  std::string shown;
  bool follows_secret = false;
  for (const std::string_view pair : split(text, ',')) {
    if (pair.data() != text.data()) shown += ',';
    if (const std::size_t equals = pair.find('='); equals != std::string_view::npos) {
      const std::string_view key = key_of(pair);
      shown += std::string(pair.substr(0, equals + 1)) + shown_value(key, pair.substr(equals + 1));
      follows_secret = !is_public_key(key);
      continue;
    }
    // A part after a secret may be the rest of that secret, if it has a comma in it.
    const bool is_plain = std::ranges::all_of(pair, is_part_of_a_key) && !follows_secret;
    shown += is_plain || trimmed(pair).empty() ? pair : kMask;
  }
  return shown;
}

std::string shown_text(std::string_view text) {
  std::string shown;
  for (std::size_t equals; (equals = text.find('=')) != std::string_view::npos;) {
    const std::string_view key = last_word(text.substr(0, equals));
    shown += text.substr(0, equals + 1);
    text.remove_prefix(equals + 1);
    if (nearest(key, {"password"}).empty()) continue;
    const std::size_t end = std::min(text.find('\n'), text.size());
    if (end > 0) shown += kMask;
    text.remove_prefix(end);
  }
  return shown + std::string(text);
}

}  // namespace ddprun::cli
