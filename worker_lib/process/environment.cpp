#include "ddprun/environment.h"

#include <cstdlib>
#include <sstream>
#include <string_view>
#include <vector>

#include "ddprun/error.h"
#include "rendezvous/common/parse_number.h"
#include "rendezvous/common/worker_abi/worker_link.h"
#include "worker_lib/process/parse_environment.h"
#include "worker_lib/process/slurm.h"

namespace ddprun {
namespace {

constexpr const char* kHowToStart =
    "start it with ddprun (or torchrun), or unset them all to run alone";

template <typename... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::ostringstream sentence;
  (sentence << ... << parts);
  throw UsageError(sentence.str());
}

// Both or neither, and index < count: RANK of WORLD_SIZE, LOCAL_RANK of LOCAL_WORLD_SIZE.
void check_index(const char* index_name, const std::optional<int>& index, const char* count_name,
                 const std::optional<int>& count) {
  if (index && count && *index >= *count) {
    refuse(index_name, "=", *index, " contradicts ", count_name, "=", *count,
           ": ranks count from 0 to ", count_name, " - 1");
  }
}

// A descriptor of the link, -1 for whatever is none: without one the program runs as well.
int descriptor(const VariableLookup& lookup, const char* name) {
  const auto value = parse_number<int>(lookup(name).value_or(""));
  return value && *value >= 0 ? *value : -1;
}

using Names = std::vector<std::pair<const char*, bool>>;

std::string join_names(const Names& names, bool wanted) {
  std::string text;
  for (const auto& [name, is_set] : names) {
    if (is_set != wanted) continue;
    if (!text.empty()) text += ", ";
    text += name;
  }
  return text;
}

// Where the ranks meet when the program says it, and who this one is if it says that too.
struct Address {
  std::string host;
  std::uint16_t port = 0;
  std::string file;
  std::optional<int> rank;
  std::optional<int> world_size;

  bool is_from_environment() const { return host.empty() && file.empty(); }
};

// What is before the separator, and what is behind it, if it is there.
std::pair<std::string_view, std::optional<std::string_view>> cut(std::string_view text,
                                                                 std::size_t separator) {
  if (separator == std::string_view::npos) return {text, std::nullopt};
  return {text.substr(0, separator), text.substr(separator + 1)};
}

Address parse_init_method(const std::string& method) {
  const auto require = [&](bool is_so, const std::string& otherwise) {
    if (is_so) return;
    refuse("the init method '", method, "' ", otherwise,
           "; use env://, tcp://host:port or file:///path, the latter two perhaps with "
           "?rank=R&world_size=N");
  };
  Address address;
  const auto [place, query] = cut(method, method.find('?'));
  for (auto rest = query; rest && !rest->empty();) {
    const auto [pair, others] = cut(*rest, rest->find('&'));
    const auto [name, text] = cut(pair, pair.find('='));
    const auto value = parse_number<int>(text.value_or(""));
    require(value.has_value(), "has no number in '" + std::string(pair) + "'");
    require(name == "rank" || name == "world_size",
            "says '" + std::string(name) + "', which means nothing here");
    (name == "rank" ? address.rank : address.world_size) = value;
    rest = others;
  }
  if (place.starts_with("tcp://")) {
    const std::string_view endpoint = place.substr(6);
    auto [host, text] = cut(endpoint, endpoint.rfind(':'));
    const auto port = parse_number<int>(text.value_or(""));
    require(port && *port >= 1 && *port <= 65535, "has no port");
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    require(!host.empty(), "has no host");
    address.host = host;
    address.port = static_cast<std::uint16_t>(*port);
  } else if (place.starts_with("file://")) {
    address.file = place.substr(7);
    require(address.file.starts_with('/'), "has no absolute path");
  } else {
    require(place == "env://", "is none that there is");
  }
  return address;
}

// The launcher's variables as they are set.
struct Variables {
  explicit Variables(const VariableLookup& lookup);

  bool is_launched() const { return rank || world || local_rank || local_world; }
  void check_whole(bool has_own_rank, bool needs_address) const;

  std::optional<int> rank, world, local_rank, local_world, port, restarts;
  std::optional<std::string> address;
};

Variables::Variables(const VariableLookup& lookup) {
  constexpr int kMost = 1 << 24;  // c10d counts ranks in int; nobody starts more
  const auto number = [&](const char* name, int least, int most) {
    return number_variable(lookup, name, least, most, kHowToStart);
  };
  rank = number("RANK", 0, kMost);
  world = number("WORLD_SIZE", 1, kMost);
  local_rank = number("LOCAL_RANK", 0, kMost);
  local_world = number("LOCAL_WORLD_SIZE", 1, kMost);
  port = number("MASTER_PORT", 1, 65535);
  restarts = number("TORCHELASTIC_RESTART_COUNT", 0, 1 << 30);
  address = lookup("MASTER_ADDR");
  if (address && address->empty()) {
    refuse("MASTER_ADDR is empty, but must be the host of rank 0; ", kHowToStart);
  }
  check_index("RANK", rank, "WORLD_SIZE", world);
  check_index("LOCAL_RANK", local_rank, "LOCAL_WORLD_SIZE", local_world);
  if (world && local_world && *local_world > *world) {
    refuse("LOCAL_WORLD_SIZE=", *local_world, " contradicts WORLD_SIZE=", *world,
           ": a node cannot have more workers than the job");
  }
}

// Who a process is and where it meets the others is said whole, or not at all.
void Variables::check_whole(bool has_own_rank, bool needs_address) const {
  const auto names = [&](bool is_who_known, bool is_where_known) {
    return Names{{"RANK", rank || is_who_known},
                 {"WORLD_SIZE", world || is_who_known},
                 {"MASTER_ADDR", address || is_where_known},
                 {"MASTER_PORT", port || is_where_known}};
  };
  const bool is_alone = rank && world && *world == 1;  // nobody to meet
  const std::string missing = join_names(names(has_own_rank, !needs_address || is_alone), false);
  if (missing.empty()) return;
  std::string present = join_names(names(false, false), true);
  if (present.empty()) present = is_launched() ? "LOCAL_RANK or LOCAL_WORLD_SIZE" : "none";
  refuse("of the variables that say who this process is, ", present, " is set and ", missing,
         " is not: ", kHowToStart,
         needs_address ? "" : "; or give the rank and the world size yourself");
}

// Rank and world size as the program says them, over those of the variables.
void take_own_rank(Environment& environment, std::optional<int> rank, std::optional<int> world) {
  if (!rank && !world) return;
  environment.rank = rank.value_or(environment.rank);
  environment.world_size = world.value_or(environment.world_size);
  if (environment.world_size < 1 || environment.rank < 0 ||
      environment.rank >= environment.world_size) {
    refuse("rank ", environment.rank, " in a world of ", environment.world_size,
           " makes no sense: ranks count from 0 to the world size - 1");
  }
  if (environment.local_world_size > environment.world_size) {
    environment.local_world_size = 1;
    environment.local_rank = 0;
  }
}

}  // namespace

std::optional<int> number_variable(const VariableLookup& lookup, const char* name, int least,
                                   int most, const char* hint) {
  const auto text = lookup(name);
  if (!text) return std::nullopt;
  const auto value = parse_number<int>(*text);
  if (value && *value >= least && *value <= most) return value;
  refuse(name, " is '", *text, "', but must be a whole number from ", least, " to ", most, "; ",
         hint);
}

Environment parse_environment(const VariableLookup& lookup, const InitMethod& init_method) {
  const Address said = parse_init_method(init_method.url);
  const Variables set(lookup);
  const std::optional<int> own_rank = init_method.rank ? init_method.rank : said.rank;
  const std::optional<int> own_world =
      init_method.world_size ? init_method.world_size : said.world_size;
  const bool has_own_rank = own_rank && own_world;
  const bool needs_address = said.is_from_environment();

  Environment environment;
  if (!set.is_launched()) environment = slurm_environment(lookup).value_or(environment);
  const bool is_anything_said =
      set.is_launched() || set.address || set.port || has_own_rank || !needs_address;
  if (is_anything_said && !environment.is_slurm_step) {
    set.check_whole(has_own_rank, needs_address);
    environment.rank = set.rank.value_or(0);
    environment.world_size = set.world.value_or(1);
    environment.local_rank = set.local_rank.value_or(0);
    environment.local_world_size = set.local_world.value_or(1);
  }
  take_own_rank(environment, own_rank, own_world);

  environment.restart_count = set.restarts.value_or(0);
  environment.error_file = lookup("TORCHELASTIC_ERROR_FILE").value_or("");
  environment.link_fd = descriptor(lookup, link::kSocketVariable);
  environment.link_page_fd = descriptor(lookup, link::kPageVariable);
  environment.agent_hosts_store = lookup("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
  if (set.address) environment.master_addr = *set.address;
  if (set.port) environment.master_port = static_cast<std::uint16_t>(*set.port);
  if (!needs_address) {
    environment.agent_hosts_store = environment.agent_hosts_store &&
                                    said.host == environment.master_addr &&
                                    said.port == environment.master_port;
    environment.master_addr = said.host;
    environment.master_port = said.port;
    environment.store_file = said.file;
  } else if (environment.world_size > 1 && environment.master_addr.empty()) {
    refuse(
        "this step of Slurm has no SLURM_STEP_NODELIST and no SLURM_JOB_NODELIST: set "
        "MASTER_ADDR to the host of rank 0");
  }
  return environment;
}

Environment environment_of_this_process(const InitMethod& init_method) {
  return parse_environment(
      [](const char* name) -> std::optional<std::string> {
        const char* value = std::getenv(name);
        if (value == nullptr) return std::nullopt;
        return std::string(value);
      },
      init_method);
}

}  // namespace ddprun
