#include "launcher/plan/plan.h"

#include <algorithm>
#include <boost/json.hpp>
#include <utility>

#include "agent/core/worker_environment.h"
#include "launcher/cli/secrets.h"
#include "launcher/cli/text.h"
#include "launcher/settings/values.h"
#include "rendezvous/common/exit_status.h"
#include "rendezvous/common/text/durations.h"
#include "rendezvous/common/text/lists.h"

namespace ddprun::cli {
namespace {

// Quoted for a shell.
std::string quoted(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%^";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  return "'" + replaced(word, '\'', "'\\''") + "'";
}

void append_row(std::string& out, std::string_view name, std::string_view value,
                std::string_view origin = "") {
  constexpr std::size_t kValueColumn = 28;
  constexpr std::size_t kOriginColumn = 60;
  std::string row = "  " + std::string(name);
  row.resize(std::max(row.size() + 1, kValueColumn), ' ');
  row += value;
  if (!origin.empty()) row.resize(std::max(row.size() + 2, kOriginColumn), ' ');
  out += row + std::string(origin) + "\n";
}

std::string ports_of(const agent::StoreEndpoint& place) {
  if (place.first_port == 0) return "a free port";
  if (place.first_port == place.last_port) return "port " + std::to_string(place.first_port);
  return "a free port from " + std::to_string(place.first_port) + " to " +
         std::to_string(place.last_port);
}

std::string command_line_of(const agent::Program& program) {
  std::vector<std::string> words;
  for (const std::string& word : program.argv) words.push_back(quoted(word));
  return joined(words, " ");
}

void append_section(std::string& out, std::string_view title,
                    const std::vector<std::string>& lines) {
  if (!lines.empty()) out += "\n" + std::string(title) + "\n";
  for (const std::string& line : lines) out += "  " + line + "\n";
}

std::string store_endpoint_text(const agent::Job& job) {
  const agent::StoreEndpoint& place = job.store_endpoint;
  if (job.nodes.is_alone() || job.nodes.shares_store_port) {
    return place.address + ", " + ports_of(place);
  }
  return "the address of group rank 0's node, " + ports_of(place) + " there";
}

// Of several nodes.
std::string leader_of(const agent::Nodes& nodes) {
  using Where = rdzv::LeaderSpec::Where;
  const Where where = nodes.leader.where;
  if (where == Where::kElected) {
    return "elected by the nodes, in etcd at " + to_string(nodes.leader.etcd->endpoints);
  }
  return (where == Where::kHere ? "this node, at " : "at ") + nodes.leader.endpoint.to_string() +
         (where == Where::kToBeFound ? "; this node if the address is its own and free" : "");
}

std::string_view name_of(rdzv::LeaderSpec::Where leader) {
  constexpr std::string_view kNames[] = {"alone", "here", "elsewhere", "to_be_found", "elected"};
  return kNames[static_cast<std::size_t>(leader)];
}

std::string proof_of(const Plan& plan) {
  switch (plan.job.nodes.leader.proof.wants()) {
    case rdzv::wire::Wants::kToken:
      return "by the token in " + plan.rendezvous.token_file;
    case rdzv::wire::Wants::kMunge:
      return "by munge, as the same user's";
    case rdzv::wire::Wants::kNothing:
      break;
  }
  return plan.job.nodes.leader.proof.is_waived
             ? "not at all, by --no-token"
             : "not at all: there is no token ('ddpctl token FILE' makes one)";
}

std::string_view name_of(rdzv::wire::Wants proof) {
  constexpr std::string_view kNames[] = {"none", "token", "munge"};
  return kNames[static_cast<std::size_t>(proof)];
}

// For a job on one node this has no rows.
void append_nodes(std::string& out, const Plan& plan) {
  const agent::Nodes& nodes = plan.job.nodes;
  if (nodes.is_alone()) return;
  const rdzv::KeepAlive& keep_alive = nodes.leader.keep_alive;
  const bool is_elastic = nodes.min_nodes != nodes.max_nodes;
  const std::string least = std::to_string(nodes.min_nodes);
  append_row(out, "nodes", (is_elastic ? least + " to " : "") + std::to_string(nodes.max_nodes));
  append_row(out, "leader", leader_of(nodes));
  append_row(out, "rank of this node",
             nodes.node_rank ? std::to_string(*nodes.node_rank) +
                                   (nodes.has_exact_ranks ? "" : ", if it can be had")
                             : "as it comes");
  append_row(out, "nodes are awaited",
             duration_text(nodes.leader.join_timeout) +
                 (is_elastic ? " for " + least + ", then " +
                                   duration_text(nodes.last_call_timeout) + " for more"
                             : ""));
  append_row(out, "a node is lost",
             "silent for " + duration_text(keep_alive.timeout()) + ", or disconnected for " +
                 duration_text(keep_alive.reconnect_grace));
  append_row(out, "nodes prove themselves", proof_of(plan));
}

std::string restarts_of(const rdzv::RestartRules& rules) {
  std::string text = std::to_string(rules.max_restarts);
  if (rules.max_restarts == 0) return text;
  if (rules.window.count() > 0) text += " within " + duration_text(rules.window);
  if (rules.no_progress_restarts > 0) {
    text += "; none after " + std::to_string(rules.no_progress_restarts) + " without a step more";
  }
  if (rules.min_uptime.count() > 0) {
    text += "; none if a worker fails within " + duration_text(rules.min_uptime);
  }
  if (rules.pause_after_failure.max.count() > 0) {
    text += "; after " + duration_text(rules.pause_after_failure.first);
    if (rules.pause_after_failure.max > rules.pause_after_failure.first) {
      text += ", at most " + duration_text(rules.pause_after_failure.max);
    }
  }
  if (rules.final_exit_codes.empty()) return text;
  return text + "; none after exit code " + joined(rules.final_exit_codes);
}

// Values that are not known before the job runs.
constexpr const char* kChosenAtStart = "(chosen at the start)";
constexpr const char* kKnownWhenMet = "(known when the nodes have met)";

// The leader decides ranks and sizes, because nodes may have different numbers of workers.
void hide_what_the_leader_decides(Environment& own, const agent::Nodes& nodes) {
  for (const char* const name : {"RANK", "WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE"}) {
    own[name] = kKnownWhenMet;
  }
  own["GROUP_RANK"] = nodes.has_exact_ranks ? std::to_string(*nodes.node_rank) : kKnownWhenMet;
  own["GROUP_WORLD_SIZE"] =
      nodes.min_nodes == nodes.max_nodes ? std::to_string(nodes.max_nodes) : kKnownWhenMet;
  if (!nodes.shares_store_port) own["MASTER_ADDR"] = own["MASTER_PORT"] = kKnownWhenMet;
}

// The variables that are added to, or replace, those that a worker inherits.
Environment own_environment(const agent::Job& job, int local_rank) {
  rdzv::RoundStart first_round;
  first_round.world_size = first_round.role_world_size = job.local_world_size;
  first_round.master_addr = job.store_endpoint.address;
  first_round.max_restarts = job.restarts.max_restarts;
  const bool port_is_fixed = job.store_endpoint.first_port == job.store_endpoint.last_port;
  if (port_is_fixed) first_round.master_port = job.store_endpoint.first_port;
  Environment own =
      agent::worker_environment(job, first_round, local_rank, /*error_file=*/kChosenAtStart).own();
  if (first_round.master_port == 0) own["MASTER_PORT"] = kChosenAtStart;
  if (!job.nodes.is_alone()) hide_what_the_leader_decides(own, job.nodes);
  return own;
}

template <typename T>
boost::json::value or_null(const std::optional<T>& value) {
  return value ? boost::json::value_from(*value) : nullptr;
}

boost::json::array worker_objects(const agent::Job& job) {
  boost::json::array workers;
  for (int local_rank = 0; local_rank < job.local_world_size; ++local_rank) {
    boost::json::object environment;
    for (const auto& [name, value] : own_environment(job, local_rank)) environment[name] = value;
    workers.push_back(boost::json::object{
        {"local_rank", local_rank},
        {"argv", boost::json::value_from(agent::worker_arguments(job.program, local_rank))},
        {"environment", std::move(environment)}});
  }
  return workers;
}

boost::json::array signal_names(const std::vector<int>& signals) {
  boost::json::array names;
  for (const int signal : signals) names.emplace_back(signal_name(signal));
  return names;
}

// A number of milliseconds, "auto", or null.
boost::json::value hang_timeout_of(const rdzv::HangTimeout& timeout) {
  if (timeout.is_automatic) return "auto";
  return timeout.fixed.count() == 0 ? boost::json::value() : timeout.fixed.count();
}

// Never the token itself.
boost::json::object nodes_object(const agent::Nodes& nodes) {
  boost::json::value endpoint;
  if (nodes.leader.etcd) {
    endpoint = to_string(nodes.leader.etcd->endpoints);
  } else if (!nodes.is_alone()) {
    endpoint = nodes.leader.endpoint.to_string();
  }
  return {{"leader", name_of(nodes.leader.where)},
          {"endpoint", endpoint},
          {"min_nodes", nodes.min_nodes},
          {"max_nodes", nodes.max_nodes},
          {"node_rank", or_null(nodes.node_rank)},
          {"has_exact_ranks", nodes.has_exact_ranks},
          {"shares_store_port", nodes.shares_store_port},
          {"local_addr", nodes.local_addr},
          {"keep_alive_interval_ms", nodes.leader.keep_alive.interval.count()},
          {"keep_alive_max_attempt", nodes.leader.keep_alive.attempts},
          {"node_timeout_ms", nodes.leader.keep_alive.timeout().count()},
          {"reconnect_grace_ms", nodes.leader.keep_alive.reconnect_grace.count()},
          {"join_timeout_ms", nodes.leader.join_timeout.count()},
          {"last_call_timeout_ms", nodes.last_call_timeout.count()},
          {"proof", name_of(nodes.leader.proof.wants())}};
}

// As typed, or null.
boost::json::value preempt_notice_of(const agent::NoticeSpec& notice) {
  using From = agent::NoticeSpec::From;
  if (notice.from == From::kNowhere) return nullptr;
  if (notice.from == From::kCommand) return boost::json::value(notice.command);
  return boost::json::value(notice.name());
}

// Keys keep their order of insertion. All of them are always there, so that a reader need not check.
boost::json::object job_object(const agent::Job& job) {
  boost::json::array cpus_of;
  for (const std::vector<int>& cpus : job.cpus_of) cpus_of.emplace_back(agent::to_cpu_list(cpus));
  boost::json::value preempt_signal;
  if (job.preempt_signal) preempt_signal = signal_name(*job.preempt_signal);
  return {{"run_id", job.run_id},
          {"role", job.role},
          {"local_world_size", job.local_world_size},
          {"nodes", nodes_object(job.nodes)},
          {"max_restarts", job.restarts.max_restarts},
          {"restarts",
           {{"max_restarts", job.restarts.max_restarts},
            {"window_ms", job.restarts.window.count()},
            {"no_progress_restarts", job.restarts.no_progress_restarts},
            {"min_uptime_ms", job.restarts.min_uptime.count()},
            {"pause_first_ms", job.restarts.pause_after_failure.first.count()},
            {"pause_max_ms", job.restarts.pause_after_failure.max.count()},
            {"final_exit_codes", boost::json::value_from(job.restarts.final_exit_codes)}}},
          {"program", job.program.path},
          {"argv", boost::json::value_from(job.program.argv)},
          {"first_user_argument", job.program.first_user_argument},
          {"name", job.program.name},
          {"master_addr", job.store_endpoint.address},
          {"master_port_first", job.store_endpoint.first_port},
          {"master_port_last", job.store_endpoint.last_port},
          {"store_memory", job.store_endpoint.store_memory},
          {"log_dir", job.output.log_dir},
          {"metrics", job.metrics ? boost::json::value(job.metrics->to_string()) : nullptr},
          {"stop_signals", signal_names(job.stop_signals)},
          {"preempt_signal", preempt_signal},
          {"preempt_notice", preempt_notice_of(job.preempt_notice)},
          {"health_check", job.health_check},
          {"shutdown_timeout_ms", job.shutdown_timeout.count()},
          {"failure_shutdown_timeout_ms",
           job.failure_shutdown_timeout ? boost::json::value(job.failure_shutdown_timeout->count())
                                        : boost::json::value(nullptr)},
          {"on_event", job.events.command},
          {"kills_orphans", job.kills_orphans},
          {"hang_timeout", hang_timeout_of(job.hangs.timeout)},
          {"restarts_hung_ranks", job.hangs.restarts},
          {"stops_for_nan", job.stops_for_nan},
          {"finds_slow_ranks", job.finds_slow_ranks},
          {"keep_memory_ms", job.keep_memory.time.count()},
          {"exit_code_as_torchrun", job.exit_code_as_torchrun},
          {"visible_devices_of", boost::json::value_from(job.visible_devices_of)},
          {"cpus_of", cpus_of},
          {"standbys", job.standbys.wanted},
          {"preload", boost::json::value_from(job.standbys.modules)},
          {"debugged_ranks", boost::json::value_from(job.debugged_ranks)}};
}

boost::json::object rendezvous_object(const Rendezvous& rendezvous) {
  RdzvConf conf = rendezvous.conf;
  for (auto& [key, value] : conf) value = shown_value(key, value);
  return {{"backend", kBackendNames[static_cast<std::size_t>(rendezvous.backend)]},
          {"standalone", rendezvous.is_standalone},
          {"min_nodes", rendezvous.min_nodes},
          {"max_nodes", rendezvous.max_nodes},
          {"node_rank", or_null(rendezvous.node_rank)},
          {"host", rendezvous.host},
          {"port", rendezvous.port},
          {"local_addr", rendezvous.local_addr},
          {"token_file", rendezvous.token_file},
          {"conf", boost::json::value_from(conf)}};
}

std::string shown(OptionId id, const std::string& text) {
  return id == OptionId::kRdzvConf ? shown_conf(text) : text;
}

void append_settings(std::string& out, const Settings& settings, std::string_view title,
                     bool are_defaults) {
  bool is_begun = false;
  for (const OptionSpec& spec : option_table()) {
    if (spec.id > OptionId::kConfig) break;  // what is printed
    const Setting& setting = settings[spec.id];
    if (setting.is_default() != are_defaults) continue;
    if (!std::exchange(is_begun, true)) out += std::string(title) + "\n";
    append_row(out, spec.name, setting.text.empty() ? "-" : shown(spec.id, setting.text),
               to_string(setting.origin));
  }
}

}  // namespace

std::string to_table(const Plan& plan) {
  const agent::Job& job = plan.job;
  std::string out;
  append_settings(out, plan.settings, "Set", /*are_defaults=*/false);
  out += out.empty() ? "Job\n" : "\nJob\n";
  append_row(out, "program", job.program.path);
  append_row(out, "command", command_line_of(job.program));
  append_row(out, job.nodes.is_alone() ? "workers" : "workers of this node",
             std::to_string(job.local_world_size));
  append_row(out, "run id", job.run_id);
  if (!plan.settings.site.name.empty()) append_row(out, "site", plan.settings.site.name);
  append_row(out, "workers meet at", store_endpoint_text(job));
  append_row(out, "restarts", restarts_of(job.restarts));
  append_nodes(out, plan);
  for (std::size_t i = 0; i < job.cpus_of.size(); ++i) {
    append_row(out, "CPUs of worker " + std::to_string(i), agent::to_cpu_list(job.cpus_of[i]));
  }
  append_settings(out, plan.settings, "\nNot set", /*are_defaults=*/true);
  append_section(out, "Environment of worker 0, beside what it inherits",
                 to_lines(own_environment(job, 0)));
  append_section(out, "Notes", plan.notes);
  append_section(out, "Warnings", plan.warnings);
  return out;
}

std::string to_json(const Plan& plan) {
  boost::json::object settings;
  for (const OptionSpec& spec : option_table()) {
    const Setting& setting = plan.settings[spec.id];
    settings[spec.name] = boost::json::object{{"value", shown(spec.id, setting.text)},
                                              {"origin", to_string(setting.origin)}};
  }
  boost::json::value site;
  if (!plan.settings.site.name.empty()) site = plan.settings.site.name;
  const boost::json::object whole{{"schema", 1},
                                  {"site", site},
                                  {"job", job_object(plan.job)},
                                  {"rendezvous", rendezvous_object(plan.rendezvous)},
                                  {"workers", worker_objects(plan.job)},
                                  {"settings", settings},
                                  {"notes", boost::json::value_from(plan.notes)},
                                  {"warnings", boost::json::value_from(plan.warnings)}};
  return boost::json::serialize(whole) + "\n";
}

}  // namespace ddprun::cli
