#include "agent/supervisor/agent.h"

#include <fcntl.h>
#include <unistd.h>

#include <string>
#include <tuple>

#include "agent/failure/failure_copies.h"
#include "agent/failure/failure_report.h"
#include "agent/process/process.h"
#include "agent/supervisor/supervisor.h"
#include "rendezvous/common/exit_codes.h"
#include "rendezvous/common/scheduling.h"
#include "rendezvous/net/event_calls.h"
#include "rendezvous/net/exception_error.h"

namespace ddprun::agent {
namespace {

// If the agent was started with one of them closed, the next file that it opens would get that
// number, and workers would write into that file.
void open_standard_streams() {
  for (int fd = 0; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0) std::ignore = ::open("/dev/null", O_RDWR);
  }
}

// The supervisor is destroyed, and its keeper has killed the remaining workers; or there was none.
int end_by(const Error& error, const Job& job) {
  rdzv::JobOutcome outcome;
  outcome.kind = rdzv::JobOutcome::Kind::kCannotRun;
  outcome.exit_code = kExitCannotRun;
  outcome.sentence = error.to_string();
  const std::string report = failure_report(outcome, job.program.name);
  std::ignore = ::write(STDERR_FILENO, report.data(), report.size());
  copy_failure(job.environment, report, outcome, kFailureCopyLimit);
  return job.exit_code(outcome.exit_code);
}

}  // namespace

int run(const Job& job) {
  open_standard_streams();
  adopt_signal_state();
  adopt_descriptor_limit();
  if (const auto tried = rdzv::try_event_calls(); !tried) return end_by(tried.error(), job);
  rdzv::wake_at_once();
  try {
    Supervisor supervisor(job);
    return supervisor.run();
  } catch (const std::exception& exception) {
    return end_by(rdzv::error_from_exception(exception), job);
  }
}

}  // namespace ddprun::agent
