#include "rendezvous/common/slurm.h"

#include <algorithm>
#include <utility>

#include "rendezvous/common/parse_number.h"

namespace ddprun {
namespace {

using Hosts = std::vector<std::string>;

constexpr std::size_t kMostDigits = 20;  // leading zeros count

tl::unexpected<Error> wrong(std::string_view what) {
  return fail(ErrorCode::kInvalidArgument, std::string(what));
}

tl::unexpected<Error> too_many() {
  return wrong("it names more than " + std::to_string(kMaxHostsInList) + " hosts");
}

// What is between commas that are outside of brackets.
std::vector<std::string_view> parts_of(std::string_view list) {
  std::vector<std::string_view> parts;
  std::size_t begin = 0;
  bool is_in_brackets = false;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i] == '[' || list[i] == ']') is_in_brackets = list[i] == '[';
    if (list[i] != ',' || is_in_brackets) continue;
    parts.push_back(list.substr(begin, i - begin));
    begin = i + 1;
  }
  parts.push_back(list.substr(begin));
  return parts;
}

// "003-005" gives 003, 004, 005; the first number's width counts.
Result<void> append_range(std::string_view range, Hosts& numbers) {
  const std::string_view first_text = range.substr(0, range.find('-'));
  const std::string_view last_text =
      first_text.size() == range.size() ? first_text : range.substr(first_text.size() + 1);
  const auto first = parse_number<std::uint64_t>(first_text);
  const auto last = parse_number<std::uint64_t>(last_text);
  if (!first || !last || *first > *last || first_text.size() > kMostDigits) {
    return wrong("'" + std::string(range) + "' is no number and no range of numbers");
  }
  if (*last - *first >= kMaxHostsInList - numbers.size()) return too_many();
  for (std::uint64_t number = *first; number <= *last; ++number) {
    std::string digits = std::to_string(number);
    if (digits.size() < first_text.size()) digits.insert(0, first_text.size() - digits.size(), '0');
    numbers.push_back(std::move(digits));
  }
  return {};
}

// `ranges`: the text between "[" and "]".
Result<Hosts> expand_ranges(std::string_view ranges) {
  Hosts numbers;
  for (const std::string_view range : parts_of(ranges)) {
    if (auto good = append_range(range, numbers); !good) return fail(std::move(good.error()));
  }
  return numbers;
}

// Combines every name so far with every ending. Slurm's order: the numbers in the last brackets
// change fastest, then those in the first, the second, and so on.
Result<Hosts> combine(const Hosts& names, const Hosts& endings, bool are_last) {
  if (names.size() * endings.size() > kMaxHostsInList) return too_many();
  Hosts result;
  result.reserve(names.size() * endings.size());
  const Hosts& outer = are_last ? names : endings;
  const Hosts& inner = are_last ? endings : names;
  for (const std::string& slow : outer) {
    for (const std::string& fast : inner) result.push_back(are_last ? slow + fast : fast + slow);
  }
  return result;
}

// One name with its brackets, and without a comma outside them.
Result<Hosts> expand_name(std::string_view name) {
  Hosts hosts{""};
  while (!name.empty()) {
    const std::size_t open = std::min(name.find_first_of("[]"), name.size());
    for (std::string& host : hosts) host += name.substr(0, open);
    name.remove_prefix(open);
    if (name.empty()) break;
    const std::size_t close = name.find(']');
    if (name.front() == ']') return wrong("a ']' has no '['");
    if (close == std::string_view::npos) return wrong("a '[' has no ']'");
    const auto numbers = expand_ranges(name.substr(1, close - 1));
    if (!numbers) return fail(numbers.error());
    name.remove_prefix(close + 1);
    const bool are_last = name.find('[') == std::string_view::npos;
    auto combined = combine(hosts, *numbers, are_last);
    if (!combined) return combined;
    hosts = *std::move(combined);
  }
  return hosts;
}

}  // namespace

Result<Hosts> expand_host_list(std::string_view list) {
  Hosts hosts;
  for (const std::string_view name : parts_of(list)) {
    if (name.empty()) return wrong("it is empty or contains an empty name");
    auto expanded = expand_name(name);
    if (!expanded) return expanded;
    if (hosts.size() + expanded->size() > kMaxHostsInList) return too_many();
    hosts.insert(hosts.end(), std::make_move_iterator(expanded->begin()),
                 std::make_move_iterator(expanded->end()));
  }
  return hosts;
}

std::optional<std::uint64_t> slurm_step(std::string_view step_id) {
  constexpr std::uint64_t kLeastSpecial = 0xfffffff0;
  const auto step = parse_number<std::uint64_t>(step_id);
  return step && *step < kLeastSpecial ? step : std::nullopt;
}

std::uint16_t slurm_port(std::uint64_t job, std::uint64_t step) {
  constexpr std::uint64_t kLeast = 12000;
  constexpr std::uint64_t kCount = 20000;
  constexpr std::uint64_t kBetweenSteps = 1009;  // coprime to kCount
  return static_cast<std::uint16_t>(kLeast + (job + step * kBetweenSteps) % kCount);
}

}  // namespace ddprun
