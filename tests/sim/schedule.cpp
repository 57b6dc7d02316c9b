#include "tests/sim/schedule.h"

#include <algorithm>
#include <sstream>

#include "tests/sim/random.h"

namespace ddprun::sim {
namespace {

using namespace std::chrono_literals;
using Kind = Fault::Kind;

constexpr int kLargeOneIn = 1000;

Kind some_kind(Random& random) {
  struct Weight {
    Kind kind;
    int percent;
  };
  constexpr Weight kWeights[] = {
      {Kind::kWorkerDies, 23},  {Kind::kAgentKilled, 14},    {Kind::kPowerLost, 6},
      {Kind::kPaused, 9},       {Kind::kConnectionLost, 15}, {Kind::kPartition, 8},
      {Kind::kStopSignal, 7},   {Kind::kPreemptSignal, 4},   {Kind::kLeaderKilled, 6},
      {Kind::kRestartAsked, 4}, {Kind::kStopAsked, 1},       {Kind::kStuck, 3}};
  int left = random.number(1, 100);
  for (const auto& [kind, percent] : kWeights) {
    left -= percent;
    if (left <= 0) return kind;
  }
  return Kind::kWorkerDies;
}

Fault some_fault(Random& random, int slots) {
  Fault fault;
  fault.kind = some_kind(random);
  fault.at = CoreTime(random.time(0ms, 5s));
  fault.slot = random.number(0, slots - 1);
  if (fault.kind == Kind::kPaused) fault.length = random.time(10ms, random.chance(50) ? 1s : 14s);
  if (fault.kind == Kind::kStuck) fault.length = random.time(10ms, random.chance(50) ? 2s : 25s);
  if (fault.kind == Kind::kPartition) {
    fault.length = random.time(10ms, random.chance(50) ? 1s : 12s);
    const int cut = random.number(0, 2);
    fault.towards_leader = cut != 1;
    fault.from_leader = cut != 2;
  }
  const bool is_dead = fault.kind == Kind::kAgentKilled || fault.kind == Kind::kPowerLost;
  if (is_dead && random.chance(60)) fault.comes_back_after = random.time(1ms, 3s);
  if (fault.kind == Kind::kLeaderKilled && random.chance(70)) {
    fault.comes_back_after = random.time(1ms, random.chance(70) ? 250ms : 2s);
  }
  return fault;
}

constexpr int kRecoveringPercent = 30;

// All nodes are there from the start, and each death is over before the next one.
void have_only_replacements(Schedule& schedule, Random& random) {
  schedule.has_only_replacements = true;
  schedule.recovery.announces_percent = 100;
  auto& config = schedule.config;
  config.min_nodes = config.max_nodes;
  config.restarts.max_restarts = 4;
  schedule.nodes.resize(static_cast<std::size_t>(config.max_nodes));
  for (Node& node : schedule.nodes) node.starts = CoreTime(random.time(0ms, 50ms));
  if (schedule.nodes.size() == 1) schedule.nodes.front().workers = 2;  // one has the state
  schedule.faults.clear();
  CoreTime at{3s};
  for (int deaths = random.number(1, 4); deaths > 0; --deaths) {
    Fault death;
    death.at = at;
    death.slot = random.number(0, config.max_nodes - 1);
    schedule.faults.push_back(death);
    at += random.time(1s, 2s);
  }
  schedule.calm = at;
  schedule.workers.training = at + 1s - CoreTime{};
}

// In a part of the schedules the workers can recover. Its own random numbers, so that the others stay
// as they are.
void add_recovery(Schedule& schedule) {
  Random random(~schedule.seed);
  const bool is_large = schedule.nodes.size() > 10;
  if (is_large || !random.chance(kRecoveringPercent)) return;
  const bool is_special = schedule.has_only_short_drops || schedule.has_only_new_leader;
  if (!is_special && random.chance(5)) return have_only_replacements(schedule, random);
  RecoveryHabits& habits = schedule.recovery;
  habits.announces_percent = random.chance(90) ? 100 : 80;
  habits.standby_percent = random.chance(70) ? 100 : 70;
  habits.lost_standby_percent = random.chance(30) ? 20 : 0;
  habits.breaks_word_percent = random.chance(20) ? 20 : 0;
  habits.hangs_percent = random.chance(10) ? 10 : 0;
  schedule.config.replace_timeout = std::chrono::milliseconds(random.number(1000, 4000));
  if (is_special) return;
  schedule.config.restarts.max_restarts = random.number(0, 8);
  if (random.chance(8)) habits.poison = {random.number(0, 3), random.number(1, 6)};
  schedule.workers.training = random.time(500ms, 6s);
  for (Fault& fault : schedule.faults) {
    if (random.chance(50)) fault.kind = Kind::kWorkerDies;
  }
}

// Numbers of their own: schedules of older seeds stay as they are but for this.
void have_rules_of_progress(Schedule& schedule) {
  Random random(schedule.seed ^ 0xB0D6E7);
  auto& rules = schedule.config.restarts;
  // A worker that dies at each start would be started for ever within a window.
  if (!schedule.recovery.poison && random.chance(25)) {
    rules.window = std::chrono::seconds(random.number(1, 6));
  }
  if (!schedule.recovery.is_on() && random.chance(25)) {
    rules.no_progress_restarts = random.number(1, 2);
  }
}

// Likewise.
void have_nodes_left_out(Schedule& schedule) {
  Random random(schedule.seed ^ 0xD7A1);
  const bool is_special = schedule.has_only_short_drops || schedule.has_only_new_leader ||
                          schedule.has_only_replacements;
  if (is_special || !random.chance(30)) return;
  for (int asked = random.number(1, 4); asked > 0; --asked) {
    constexpr Kind kKinds[] = {Kind::kDrainAsked, Kind::kDrainAsked, Kind::kUndrainAsked,
                               Kind::kUnfit};
    Fault fault;
    fault.kind = kKinds[random.number(0, 3)];
    fault.at = CoreTime(random.time(0ms, 5s));
    fault.slot = random.number(0, static_cast<int>(schedule.nodes.size()) - 1);
    fault.towards_leader = random.chance(30);
    schedule.calm = std::max(schedule.calm, fault.at);
    schedule.faults.push_back(fault);
  }
}

}  // namespace

Schedule schedule_of(std::uint64_t seed) {
  Random random(seed);
  Schedule schedule;
  schedule.seed = seed;
  const bool is_large = random.number(1, kLargeOneIn) == 1;
  const int nodes = is_large ? random.number(20, 200) : random.number(1, 6);
  auto& config = schedule.config;
  config.max_nodes = nodes;
  const bool is_static = random.chance(20);
  const bool is_elastic = !is_static && random.chance(75);
  config.min_nodes = is_elastic ? random.number(1, nodes) : nodes;
  config.has_exact_ranks = is_static;
  config.restarts.max_restarts = random.number(0, 4);
  config.restarts.pause_after_quick_loss = {100ms, 2s};
  config.join_timeout = 15s;
  config.stop_margin = 12s;
  config.last_call_timeout = random.chance(50) ? 200ms : 2s;
  schedule.leader_is_alone = random.chance(25);
  config.own_node.reset();
  if (!schedule.leader_is_alone) config.own_node = NodeId{0};

  const int slots = nodes + (is_elastic ? random.number(0, 2) : 0);
  const bool has_hints = is_static || random.chance(15);
  const bool has_roles = random.chance(20);
  for (int slot = 0; slot < slots; ++slot) {
    Node node;
    const bool is_late = is_elastic && slot > 0 && random.chance(30);
    node.starts = CoreTime(random.time(0ms, is_late ? 4s : 50ms));
    node.workers = is_large ? 1 : random.number(1, 2);
    node.role = has_roles && random.chance(50) ? "data" : "trainer";
    if (is_static) node.node_rank = slot;
    if (!is_static && has_hints && random.chance(70)) node.node_rank = random.number(0, nodes);
    node.host = "node" + std::to_string(slot * 3);
    schedule.nodes.push_back(std::move(node));
  }

  schedule.workers.training = random.time(20ms, random.chance(30) ? 500ms : 6s);
  schedule.delay_max = random.time(100us, random.chance(80) ? 2ms : 25ms);
  schedule.workers.stop_min = 1ms;
  schedule.workers.stop_max = random.chance(80) ? 20ms : 2s;
  schedule.workers.ignores_term_percent = random.chance(10) ? 30 : 0;

  schedule.has_only_short_drops = random.chance(8);
  schedule.has_only_new_leader = !schedule.has_only_short_drops && random.chance(4);
  const int faults = schedule.has_only_new_leader ? 1
                     : is_large                   ? random.number(1, 20)
                                                  : random.number(0, 8);
  for (int i = 0; i < faults; ++i) {
    Fault fault = some_fault(random, slots);
    // Often a fault follows soon after another one, because bugs appear while a recovery is in
    // progress.
    if (i > 0 && random.chance(40)) {
      fault.at = schedule.faults.back().at + random.time(0ms, random.chance(50) ? 60ms : 500ms);
    }
    if (schedule.has_only_short_drops) fault.kind = Kind::kConnectionLost;
    if (schedule.has_only_new_leader) {
      fault.kind = Kind::kLeaderKilled;
      fault.length = 0us;
      fault.comes_back_after = random.time(1ms, 100ms);
    }
    schedule.faults.push_back(fault);
    schedule.calm =
        std::max(schedule.calm, fault.at + fault.length + fault.comes_back_after.value_or(0us));
  }
  for (const Node& node : schedule.nodes) {
    schedule.calm = std::max(schedule.calm, node.starts);
    // A late node ends a round too.
    if (schedule.has_only_short_drops && node.starts > CoreTime(50ms)) {
      schedule.has_only_short_drops = false;
    }
  }
  if (slots > config.min_nodes) schedule.has_only_short_drops = false;
  add_recovery(schedule);
  const bool may_be_slow = !schedule.has_only_short_drops && !schedule.has_only_new_leader &&
                           !schedule.has_only_replacements;
  if (may_be_slow && random.chance(15)) schedule.workers.slow_exec_percent = 30;
  have_rules_of_progress(schedule);
  have_nodes_left_out(schedule);
  return schedule;
}

std::string to_string(const Fault& fault) {
  constexpr const char* kNames[] = {
      "worker dies", "agent killed", "power lost",     "paused",        "connection lost",
      "partition",   "stop signal",  "preempt signal", "leader killed", "restart asked",
      "stop asked",  "drain asked",  "undrain asked",  "unfit",         "stuck"};
  return std::string(kNames[static_cast<std::size_t>(fault.kind)]) + ", slot " +
         std::to_string(fault.slot);
}

std::string to_string(const Schedule& schedule) {
  std::ostringstream text;
  const auto& config = schedule.config;
  text << "seed " << schedule.seed << ": --nnodes=" << config.min_nodes << ":" << config.max_nodes
       << " --max-restarts=" << config.restarts.max_restarts << "/"
       << config.restarts.window.count()
       << "ms --no-progress-restarts=" << config.restarts.no_progress_restarts
       << (config.has_exact_ranks ? ", static" : "")
       << (schedule.leader_is_alone ? ", ddpctl leader" : ", led by slot 0") << ", training "
       << schedule.workers.training.count() << " us, delay up to " << schedule.delay_max.count()
       << " us";
  if (schedule.workers.slow_exec_percent > 0) text << ", programs on a slow file server";
  text << "\n";
  if (const RecoveryHabits& habits = schedule.recovery; habits.is_on()) {
    text << "  workers recover on " << habits.announces_percent << " % of the nodes, standbys of "
         << habits.standby_percent << " %, lost " << habits.lost_standby_percent
         << " %, word broken by " << habits.breaks_word_percent << " %, hanging "
         << habits.hangs_percent << " %";
    if (habits.poison) {
      text << ", step " << habits.poison->step << " is poison for rank " << habits.poison->rank;
    }
    text << "\n";
  }
  for (std::size_t slot = 0; slot < schedule.nodes.size(); ++slot) {
    const Node& node = schedule.nodes[slot];
    text << "  slot " << slot << ": " << node.host << ", " << node.workers << " workers, "
         << node.role << ", starts at " << node.starts.time_since_epoch().count() << " us";
    if (node.node_rank) text << ", asks for rank " << *node.node_rank;
    text << "\n";
  }
  for (const Fault& fault : schedule.faults) {
    text << "  fault at " << fault.at.time_since_epoch().count() << " us: " << to_string(fault);
    if (fault.length.count() > 0) text << " for " << fault.length.count() << " us";
    if (fault.kind == Kind::kPartition) {
      text << (fault.towards_leader ? ", towards" : "") << (fault.from_leader ? ", from" : "")
           << " the leader";
    }
    if (fault.comes_back_after) text << ", back after " << fault.comes_back_after->count() << " us";
    text << "\n";
  }
  return text.str();
}

}  // namespace ddprun::sim
