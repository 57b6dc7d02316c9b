// ddpctl leader: leads the rounds of a job without being one of its nodes.
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "launcher/ctl/ddpctl.h"
#include "launcher/plan/leader_options.h"
#include "rendezvous/common/environment.h"
#include "rendezvous/common/exit_codes.h"
#include "rendezvous/common/foreign_text.h"
#include "rendezvous/run_leader.h"

namespace ddprun::cli {
int lead(const LeaderArguments& arguments) {
  const Settings settings = resolve(arguments.line, environment_from(environ), {});
  std::vector<std::string> warnings;
  const auto job = read_leader_job(arguments.listen, settings, warnings);
  for (const std::string& warning : warnings) {
    std::fprintf(stderr, "ddpctl: warning: %s\n", printable(warning).c_str());
  }
  return job ? rdzv::run_leader(*job) : report(job.error(), kExitUsage);
}

}  // namespace ddprun::cli
