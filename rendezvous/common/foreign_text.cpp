#include "rendezvous/common/foreign_text.h"

#include <cstdint>
#include <cstdio>

namespace ddprun {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";
constexpr std::string_view kColoursEnd = "\x1b[0m";

enum class Lines { kOne, kSeveral };
enum class Colours { kVisible, kLeftOut, kKept };

struct Character {
  std::size_t length = 0;  // 0: it is not well-formed (RFC 3629)
  std::uint32_t code = 0;
};

// The one at the beginning of `text`.
Character character_at(std::string_view text) {
  const auto first = static_cast<unsigned char>(text.front());
  if (first < 0x80) return {1, first};
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return {};
  std::uint32_t code = first & (0x7FU >> length);
  for (const char c : text.substr(1, length - 1)) {
    if ((c & 0xC0) != 0x80) return {};
    code = code << 6 | (static_cast<unsigned char>(c) & 0x3FU);
  }
  const bool is_overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  const bool is_surrogate = code >= 0xD800 && code < 0xE000;
  if (is_overlong || is_surrogate || code > 0x10FFFF) return {};
  return {length, code};
}

// Control characters, line and paragraph separators, and characters that change the text direction.
bool is_acted_upon(std::uint32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0x2028 || code == 0x2029 ||
         (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
}

// The length of a sequence such as "ESC [ 1 ; 31 m" at the beginning of `text`; 0 if there is none.
std::size_t colour_at(std::string_view text) {
  if (!text.starts_with("\x1b[")) return 0;
  const std::size_t end = text.find_first_not_of("0123456789;:", 2);
  return end != std::string_view::npos && text[end] == 'm' ? end + 1 : 0;
}

std::string escaped(const char* format, std::uint32_t code) {
  char text[16];
  std::snprintf(text, sizeof text, format, code);
  return text;
}

std::string visible(std::uint32_t code) {
  if (code == '\n') return "\\n";
  if (code == '\r') return "\\r";
  if (code == '\t') return "\\t";
  return escaped(code < 0x20 ? "\\x%02x" : "\\u%04x", code);
}

std::string made_printable(std::string_view text, Lines lines, Colours colours) {
  std::string out;
  out.reserve(text.size());
  bool is_coloured = false;
  while (!text.empty()) {
    const std::size_t colour = colours == Colours::kVisible ? 0 : colour_at(text);
    if (colour > 0) {
      if (colours == Colours::kKept) out += text.substr(0, colour);
      is_coloured = true;
      text.remove_prefix(colour);
      continue;
    }
    const auto [length, code] = character_at(text);
    const bool is_layout = lines == Lines::kSeveral && (code == '\n' || code == '\t');
    if (length == 0) {
      out += escaped("\\x%02x", static_cast<unsigned char>(text.front()));
    } else if (is_acted_upon(code) && !is_layout) {
      out += visible(code);
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  if (is_coloured && colours == Colours::kKept) out += kColoursEnd;
  return out;
}

}  // namespace

std::string printable(std::string_view text) {
  return made_printable(text, Lines::kOne, Colours::kVisible);
}

std::string printable_lines(std::string_view text) {
  return made_printable(text, Lines::kSeveral, Colours::kLeftOut);
}

std::string printable_in_colour(std::string_view line) {
  while (line.ends_with('\r')) line.remove_suffix(1);
  const std::size_t overwritten = line.rfind('\r');
  if (overwritten != std::string_view::npos) line.remove_prefix(overwritten + 1);
  return made_printable(line, Lines::kSeveral, Colours::kKept);
}

std::string as_utf8(std::string_view text, std::size_t bytes_max) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = character_at(text).length;
    const std::string_view next = length == 0 ? kReplacement : text.substr(0, length);
    if (out.size() + next.size() > bytes_max) return out + "…";
    out += next;
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out;
}

}  // namespace ddprun
