#include "ddprun/environment.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "rendezvous/common/parse_number.h"
#include "rendezvous/common/worker_abi/worker_link.h"
#include "worker_lib/process/slurm.h"

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
  const auto value = parse_number<int>(*text);
  if (!value || *value < least || *value > most) {
    return wrong(name, " is '", *text, "', but must be a whole number from ", std::to_string(least),
                 " to ", std::to_string(most), "; ", kHowToStart);
  }
  return value;
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

Result<Address> parse_init_method(const std::string& method) {
  const auto refuse = [&](const std::string& why) {
    return wrong("the init method '", method, "' ", why,
                 "; use env://, tcp://host:port or file:///path, the latter two perhaps with "
                 "?rank=R&world_size=N");
  };
  const std::size_t question = method.find('?');
  const std::string_view place = std::string_view(method).substr(0, question);
  Address address;
  for (std::string_view rest = question == std::string::npos
                                   ? std::string_view()
                                   : std::string_view(method).substr(question + 1);
       !rest.empty();) {
    const std::string_view pair = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(pair.size() + 1, rest.size()));
    const std::size_t equals = pair.find('=');
    const std::string_view name = pair.substr(0, equals);
    const auto value = equals == std::string_view::npos
                           ? std::nullopt
                           : parse_number<int>(pair.substr(equals + 1));
    if (!value) return refuse("has no number in '" + std::string(pair) + "'");
    if (name == "rank") {
      address.rank = value;
    } else if (name == "world_size") {
      address.world_size = value;
    } else {
      return refuse("says '" + std::string(name) + "', which means nothing here");
    }
  }
  if (place == "env://") return address;
  if (place.starts_with("tcp://")) {
    const std::string_view endpoint = place.substr(6);
    const std::size_t colon = endpoint.rfind(':');
    const auto port = colon == std::string_view::npos
                          ? std::nullopt
                          : parse_number<int>(endpoint.substr(colon + 1));
    if (!port || *port < 1 || *port > 65535) return refuse("has no port");
    std::string_view host = endpoint.substr(0, colon);
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
    if (host.empty()) return refuse("has no host");
    address.host = host;
    address.port = static_cast<std::uint16_t>(*port);
    return address;
  }
  if (place.starts_with("file://")) {
    address.file = place.substr(7);
    if (!address.file.starts_with('/')) return refuse("has no absolute path");
    return address;
  }
  return refuse("is none that there is");
}

// The launcher's variables as they are set.
struct Variables {
  std::optional<int> rank, world, local_rank, local_world, port, restarts;
  std::optional<std::string> address;

  bool is_launched() const { return rank || world || local_rank || local_world; }
};

Result<Variables> read_variables(const VariableLookup& lookup) {
  constexpr int kMost = 1 << 24;  // c10d counts ranks in int; nobody starts more
  Variables set;
  struct Wanted {
    const char* name;
    std::optional<int>* value;
    int least;
    int most;
  };
  for (const Wanted& wanted :
       {Wanted{"RANK", &set.rank, 0, kMost}, Wanted{"WORLD_SIZE", &set.world, 1, kMost},
        Wanted{"LOCAL_RANK", &set.local_rank, 0, kMost},
        Wanted{"LOCAL_WORLD_SIZE", &set.local_world, 1, kMost},
        Wanted{"MASTER_PORT", &set.port, 1, 65535},
        Wanted{"TORCHELASTIC_RESTART_COUNT", &set.restarts, 0, 1 << 30}}) {
    auto value = number(lookup, wanted.name, wanted.least, wanted.most);
    if (!value) return fail(std::move(value.error()));
    *wanted.value = *value;
  }
  set.address = lookup("MASTER_ADDR");
  if (set.address && set.address->empty()) {
    return wrong("MASTER_ADDR is empty, but must be the host of rank 0; ", kHowToStart);
  }
  if (auto ok = index_within("RANK", set.rank, "WORLD_SIZE", set.world); !ok) {
    return fail(ok.error());
  }
  if (auto ok = index_within("LOCAL_RANK", set.local_rank, "LOCAL_WORLD_SIZE", set.local_world);
      !ok) {
    return fail(ok.error());
  }
  if (set.world && set.local_world && *set.local_world > *set.world) {
    return wrong("LOCAL_WORLD_SIZE=", std::to_string(*set.local_world),
                 " contradicts WORLD_SIZE=", std::to_string(*set.world),
                 ": a node cannot have more workers than the job");
  }
  return set;
}

// Who a process is and where it meets the others is said whole, or not at all.
tl::expected<void, Error> check_whole(const Variables& set, bool has_own_words,
                                      bool needs_address) {
  const auto names = [&](bool is_who_known, bool is_where_known) {
    return Names{{"RANK", set.rank || is_who_known},
                 {"WORLD_SIZE", set.world || is_who_known},
                 {"MASTER_ADDR", set.address || is_where_known},
                 {"MASTER_PORT", set.port || is_where_known}};
  };
  const bool is_alone = set.rank && set.world && *set.world == 1;  // nobody to meet
  const std::string missing = join_names(names(has_own_words, !needs_address || is_alone), false);
  if (missing.empty()) return {};
  std::string present = join_names(names(false, false), true);
  if (present.empty()) {
    present = set.is_launched() ? "LOCAL_RANK or LOCAL_WORLD_SIZE" : "none";
  }
  return wrong("of the variables that say who this process is, ", present, " is set and ", missing,
               " is not: ", kHowToStart,
               needs_address ? "" : "; or give the rank and the world size yourself");
}

// Rank and world size as the program says them, over those of the variables.
tl::expected<void, Error> take_own_words(Environment& environment, std::optional<int> rank,
                                         std::optional<int> world) {
  if (!rank && !world) return {};
  environment.rank = rank.value_or(environment.rank);
  environment.world_size = world.value_or(environment.world_size);
  if (environment.world_size < 1 || environment.rank < 0 ||
      environment.rank >= environment.world_size) {
    return wrong("rank ", std::to_string(environment.rank), " in a world of ",
                 std::to_string(environment.world_size),
                 " makes no sense: ranks count from 0 to the world size - 1");
  }
  if (environment.local_world_size > environment.world_size) {
    environment.local_world_size = 1;
    environment.local_rank = 0;
  }
  return {};
}

}  // namespace

Result<Environment> parse_environment(const VariableLookup& lookup, const Meeting& meeting) {
  const auto said = parse_init_method(meeting.init_method);
  if (!said) return fail(said.error());
  const auto set = read_variables(lookup);
  if (!set) return fail(set.error());
  const std::optional<int> own_rank = meeting.rank ? meeting.rank : said->rank;
  const std::optional<int> own_world = meeting.world_size ? meeting.world_size : said->world_size;
  const bool needs_address = said->is_from_environment();

  Environment environment;
  if (!set->is_launched()) {
    auto slurm = slurm_environment(lookup);
    if (!slurm) return fail(slurm.error());
    if (*slurm) environment = **slurm;
  }
  const bool is_anything_said =
      set->is_launched() || set->address || set->port || (own_rank && own_world) || !needs_address;
  if (is_anything_said && !environment.is_slurm_step) {
    const bool has_own_words = own_rank && own_world;
    if (auto ok = check_whole(*set, has_own_words, needs_address); !ok) return fail(ok.error());
    environment.rank = set->rank.value_or(0);
    environment.world_size = set->world.value_or(1);
    environment.local_rank = set->local_rank.value_or(0);
    environment.local_world_size = set->local_world.value_or(1);
  }
  if (auto ok = take_own_words(environment, own_rank, own_world); !ok) return fail(ok.error());

  environment.restart_count = set->restarts.value_or(0);
  environment.error_file = lookup("TORCHELASTIC_ERROR_FILE").value_or("");
  environment.link_fd = descriptor(lookup, link::kSocketVariable);
  environment.link_page_fd = descriptor(lookup, link::kPageVariable);
  environment.agent_hosts_store = lookup("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
  if (set->address) environment.master_addr = *set->address;
  if (set->port) environment.master_port = static_cast<std::uint16_t>(*set->port);
  if (!needs_address) {
    environment.agent_hosts_store = environment.agent_hosts_store &&
                                    said->host == environment.master_addr &&
                                    said->port == environment.master_port;
    environment.master_addr = said->host;
    environment.master_port = said->port;
    environment.store_file = said->file;
  } else if (environment.world_size > 1 && environment.master_addr.empty()) {
    return wrong(
        "this step of Slurm has no SLURM_STEP_NODELIST and no SLURM_JOB_NODELIST: set "
        "MASTER_ADDR to the host of rank 0");
  }
  return environment;
}

Result<Environment> environment_of_this_process(const Meeting& meeting) {
  return parse_environment(
      [](const char* name) -> std::optional<std::string> {
        const char* value = std::getenv(name);
        if (value == nullptr) return std::nullopt;
        return std::string(value);
      },
      meeting);
}

}  // namespace ddprun
