#include <exception>

#include "tests/sim/virtual_agent.h"

namespace ddprun::sim {

VirtualJob::VirtualJob(std::uint64_t seed, bool with_trace, std::size_t slots,
                       CoreTime::duration delay_max, const WorkerTiming& its_timing,
                       const RecoveryHabits& its_recovery)
    : trace(queue, with_trace),
      random(seed),
      network(queue, random, slots, delay_max),
      timing(its_timing),
      recovery(its_recovery),
      habits(~seed),
      current(slots) {}

VirtualJob::~VirtualJob() = default;

Result VirtualJob::run(CoreTime limit, std::uint64_t events_max) {
  Result result;
  try {
    begin();
    while (queue.run_next() && queue.now() <= limit) {
      require(queue.count() < events_max, "the job goes round in circles");
    }
    trace("the end is checked");
    for (const auto& agent : agents) {
      require(!agent->is_alive(), "an agent has not ended long after all faults");
      require(agent->live_workers() == 0, "workers were left behind");
    }
    check_end();
  } catch (const Violation& violation) {
    result.violation = violation.what();
    trace("VIOLATION: ", result.violation);
  } catch (const std::exception& exception) {  // a core throws where it meets what cannot be
    result.violation = std::string("an exception: ") + exception.what();
    trace("VIOLATION: ", result.violation);
  }
  result.trace = trace.text();
  result.events = queue.count();
  agents.clear();  // while what they use is there
  return result;
}

VirtualAgent& VirtualJob::add(AgentSettings settings, ProcessPtr process) {
  settings.number = static_cast<int>(agents.size());
  agents.push_back(std::make_unique<VirtualAgent>(*this, std::move(settings), std::move(process)));
  VirtualAgent& agent = *agents.back();
  current[static_cast<std::size_t>(agent.slot())] = &agent;
  return agent;
}

void VirtualJob::kill(VirtualAgent& agent) {
  agent.kill();
  agent.let_peers_notice();
  network.reset_of(agent.process());
}

}  // namespace ddprun::sim
