#include "launcher/health/health_role.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <string>
#include <string_view>
#include <tuple>

#include "agent/health/health_facts.h"
#include "launcher/health/node_health.h"
#include "rendezvous/common/exit_codes.h"
#include "rendezvous/common/file_text.h"

namespace ddprun::cli {
namespace {

void say(std::string_view text) {
  const std::string line = std::string(text) + "\n";
  std::ignore = ::write(STDOUT_FILENO, line.data(), line.size());
}

// Tests have a tree of their own, with a library of their own.
agent::Machine this_machine(const Environment& environment) {
  agent::Machine machine;
  machine.root = value_or_empty(environment, "DDPRUN_TEST_HEALTH_ROOT");
  if (!machine.root.empty()) machine.nvml_library = machine.root + "/nvml.so";
  return machine;
}

}  // namespace

int run_health_role(const Environment& environment) {
  ::prctl(PR_SET_NAME, "ddprun-health");  // it was executed as /proc/self/exe
  const auto question = agent::read_health_question(read_from(STDIN_FILENO).value_or(""));
  if (!question) {
    say("this is for ddprun itself: " + question.error().to_string());
    return kExitUsage;
  }
  say(agent::to_json(read_node_health(*question, this_machine(environment), environment, say)));
  return kExitSuccess;
}

}  // namespace ddprun::cli
