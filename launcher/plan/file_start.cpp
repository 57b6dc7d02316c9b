#include "launcher/plan/file_start.h"

#include <algorithm>
#include <utility>

#include "launcher/cli/text.h"
#include "rendezvous/common/trimmed.h"

namespace ddprun::cli {
namespace {

std::string_view line_at(std::string_view text, std::size_t begin) {
  begin = std::min(begin, text.size());
  return text.substr(begin, text.find('\n', begin) - begin);
}

std::vector<std::string> words_of(std::string_view line) {
  std::vector<std::string> words;
  std::string word;
  for (const char c : std::string(line) + ' ') {
    if (c != ' ' && c != '\t') {
      word += c;
    } else if (!word.empty()) {
      words.push_back(std::exchange(word, {}));
    }
  }
  return words;
}

std::string_view base_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

bool names_python(std::string_view interpreter) {
  const std::string_view name = base_name(interpreter);
  return name.starts_with("python") || name.starts_with("pypy");
}

// -c, -m and options whose value is the next word would take the script for something else.
bool can_precede_script(std::string_view option) {
  if (option.size() < 2 || option[0] != '-' || option[1] == '-') return false;
  const bool has_value = option[1] == 'X' || option[1] == 'W';
  return has_value ? option.size() > 2 : option.find_first_of("cmWX") == std::string_view::npos;
}

// '''exec' "/a long path/bin/python" "$0" "$@"
std::optional<std::string> python_of_pip(std::string_view line) {
  constexpr std::string_view kBegin = "'''exec' ";
  constexpr std::string_view kEnd = R"( "$0" "$@")";
  if (!line.starts_with(kBegin) || !line.ends_with(kEnd)) return std::nullopt;
  line.remove_prefix(kBegin.size());
  line.remove_suffix(std::min(kEnd.size(), line.size()));
  if (line.size() > 1 && line.front() == '"' && line.back() == '"') {
    line = line.substr(1, line.size() - 2);
  }
  // A shell would expand these.
  if (line.empty() || line.find_first_of("$`\"'\\") != std::string_view::npos) return std::nullopt;
  return std::string(line);
}

}  // namespace

bool is_elf(std::string_view start) { return start.starts_with("\177ELF"); }

bool may_be_python(std::string_view start) {
  const bool is_archive = start.starts_with("PK\3\4");
  const bool is_compiled = start.size() > 4 && start.substr(2, 2) == "\r\n" && !is_elf(start);
  return is_archive || is_compiled || start.find('\0') == std::string_view::npos;
}

std::optional<FirstLine> first_line_of(std::string_view start) {
  if (!start.starts_with("#!")) return std::nullopt;
  std::string_view text = line_at(start, 0);
  const std::size_t next = text.size() + 1;
  FirstLine line;
  line.ends_in_return = text.ends_with('\r');
  if (line.ends_in_return) text.remove_suffix(1);
  std::vector<std::string> words = words_of(text.substr(2));
  if (words.empty()) return std::nullopt;
  if (base_name(words.front()) == "env" && words.size() > 1) {
    // -S splits the rest into words; without it the kernel gives env one word, and one is usual.
    const bool splits = words[1].starts_with("-S");
    const bool is_joined = splits && words[1].size() > 2;
    if (is_joined) words[1].erase(0, 2);
    const std::size_t at = splits && !is_joined ? 2 : 1;
    const bool is_simple =
        at < words.size() && words[at][0] != '-' && words[at].find('=') == std::string::npos;
    if (is_simple) {
      line.is_on_path = words[at].find('/') == std::string::npos;
      words.erase(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  line.interpreter = words.front();
  line.options.assign(words.begin() + 1, words.end());
  if (auto python = python_of_pip(line_at(start, next))) {
    line.interpreter = *std::move(python);
    line.options.clear();
  }
  line.names_python = names_python(line.interpreter);
  line.can_have_more_options = std::ranges::all_of(line.options, can_precede_script);
  return line;
}

}  // namespace ddprun::cli
