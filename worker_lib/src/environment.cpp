#include "ddprun/environment.h"

#include <charconv>
#include <cstdlib>
#include <initializer_list>
#include <string_view>

#include "rendezvous/base/worker_link.h"

namespace ddprun {
namespace {

constexpr const char* kHowToStart =
    "start it with ddprun (or torchrun), or unset them all to run alone";

template <typename... Parts>
tl::unexpected<Error> wrong(const Parts&... parts) {
  std::string sentence;
  ((sentence += parts), ...);
  return fail(ErrorCode::kInvalidArgument, std::move(sentence));
}

// A whole number in [least, most]; nothing when the variable is not set.
Result<std::optional<int>> number(const VariableLookup& lookup, const char* name, int least,
                                  int most) {
  const auto text = lookup(name);
  if (!text) return std::optional<int>{};
  int value = 0;
  const char* end = text->data() + text->size();
  const auto parsed = std::from_chars(text->data(), end, value);
  if (parsed.ec != std::errc{} || parsed.ptr != end || value < least || value > most) {
    return wrong(name, " is '", *text, "', but must be a whole number from ", std::to_string(least),
                 " to ", std::to_string(most), "; ", kHowToStart);
  }
  return std::optional<int>{value};
}

// Both or neither, and index < count: RANK of WORLD_SIZE, LOCAL_RANK of LOCAL_WORLD_SIZE.
tl::expected<void, Error> index_within(const char* index_name, const std::optional<int>& index,
                                       const char* count_name, const std::optional<int>& count) {
  if (index && count && *index >= *count) {
    return wrong(index_name, "=", std::to_string(*index), " contradicts ", count_name, "=",
                 std::to_string(*count), ": ranks count from 0 to ", count_name, " - 1");
  }
  return {};
}

// A descriptor of the link, -1 for whatever is none: without one the program runs as well.
int descriptor(const VariableLookup& lookup, const char* name) {
  const auto found = number(lookup, name, 0, 1 << 30);
  return found ? found->value_or(-1) : -1;
}

std::string join_names(std::initializer_list<std::pair<const char*, bool>> names, bool wanted) {
  std::string text;
  for (const auto& [name, is_set] : names) {
    if (is_set != wanted) continue;
    if (!text.empty()) text += ", ";
    text += name;
  }
  return text;
}

}  // namespace

Result<Environment> parse_environment(const VariableLookup& lookup) {
  constexpr int kMost = 1 << 24;  // c10d counts ranks in int; nobody starts more
  const auto rank = number(lookup, "RANK", 0, kMost);
  if (!rank) return fail(rank.error());
  const auto world = number(lookup, "WORLD_SIZE", 1, kMost);
  if (!world) return fail(world.error());
  const auto local_rank = number(lookup, "LOCAL_RANK", 0, kMost);
  if (!local_rank) return fail(local_rank.error());
  const auto local_world = number(lookup, "LOCAL_WORLD_SIZE", 1, kMost);
  if (!local_world) return fail(local_world.error());
  const auto port = number(lookup, "MASTER_PORT", 1, 65535);
  if (!port) return fail(port.error());
  const auto restarts = number(lookup, "TORCHELASTIC_RESTART_COUNT", 0, 1 << 30);
  if (!restarts) return fail(restarts.error());
  const auto address = lookup("MASTER_ADDR");

  Environment environment;
  environment.restart_count = restarts->value_or(0);
  environment.error_file = lookup("TORCHELASTIC_ERROR_FILE").value_or("");
  environment.link_fd = descriptor(lookup, link::kSocketVariable);
  environment.link_page_fd = descriptor(lookup, link::kPageVariable);

  const bool any = *rank || *world || *local_rank || *local_world || *port || address;
  if (!any) return environment;

  const auto needed = {
      std::pair{"RANK", rank->has_value()}, std::pair{"WORLD_SIZE", world->has_value()},
      std::pair{"MASTER_ADDR", address.has_value()}, std::pair{"MASTER_PORT", port->has_value()}};
  const bool alone = *rank && *world && **world == 1;  // nobody to meet: no address needed
  if (const std::string missing = join_names(needed, false); !missing.empty() && !alone) {
    const std::string present = join_names(needed, true);
    return wrong("of the variables that say who this process is, ",
                 present.empty() ? "LOCAL_RANK or LOCAL_WORLD_SIZE" : present, " is set and ",
                 missing, " is not: ", kHowToStart);
  }
  if (auto ok = index_within("RANK", *rank, "WORLD_SIZE", *world); !ok) return fail(ok.error());
  if (auto ok = index_within("LOCAL_RANK", *local_rank, "LOCAL_WORLD_SIZE", *local_world); !ok) {
    return fail(ok.error());
  }
  if (*local_world && **local_world > **world) {
    return wrong("LOCAL_WORLD_SIZE=", std::to_string(**local_world),
                 " contradicts WORLD_SIZE=", std::to_string(**world),
                 ": a node cannot have more workers than the job");
  }
  if (address && address->empty()) {
    return wrong("MASTER_ADDR is empty, but must be the host of rank 0; ", kHowToStart);
  }

  environment.rank = **rank;
  environment.world_size = **world;
  environment.local_rank = local_rank->value_or(0);
  environment.local_world_size = local_world->value_or(1);
  environment.master_addr = address.value_or("");
  environment.master_port = static_cast<std::uint16_t>(port->value_or(0));
  environment.agent_hosts_store = lookup("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
  return environment;
}

Result<Environment> environment_of_this_process() {
  return parse_environment([](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    if (value == nullptr) return std::nullopt;
    return std::string(value);
  });
}

}  // namespace ddprun
