// Copies of a failure for programs: the termination message of a container, which Kubernetes shows,
// and the file TORCHELASTIC_ERROR_FILE of an outer launcher.
//
// A copy that cannot be written is skipped silently. The files may be of any kind: nothing waits
// for the other end of a FIFO, and copy_failure() not for a file system that does not answer.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "rendezvous/common/environment.h"
#include "rendezvous/round/round_messages.h"

namespace ddprun::agent {

// Where Kubernetes mounts the message unless terminationMessagePath says otherwise.
inline constexpr std::string_view kTerminationLog = "/dev/termination-log";

// The first 4096 bytes of the report, whole lines (Kubernetes would keep the last 4096).
std::string termination_message(std::string_view report);

// DDPRUN_TERMINATION_LOG in `environment`, else kTerminationLog.
std::string termination_log(const Environment& environment);

// Does not make the file: writes only if it exists.
void write_termination_log(const std::string& path, std::string_view report);

// The root cause's error file with "errorCode" added, as torchrun does (a signal is a negative
// code). `cause_file`: the text of that file; empty: a text in the same form is made.
std::string error_file_for_parent(const rdzv::JobOutcome& outcome, std::string_view cause_file,
                                  std::chrono::system_clock::time_point now);

void write_error_file_for_parent(const std::string& path, const rdzv::JobOutcome& outcome);

// How long an agent that cannot continue waits for file systems that do not answer.
inline constexpr std::chrono::milliseconds kFailureCopyLimit{2000};

// Writes both copies, as the agent's `environment` says. May hang if a file system does not answer.
void write_failure_copies(const Environment& environment, std::string_view report,
                          const rdzv::JobOutcome& outcome);
// The same on a separate thread, where no event loop runs that could await BlockingCalls. False: not complete within `limit`;
// the thread is left running.
bool copy_failure(const Environment& environment, std::string_view report,
                  const rdzv::JobOutcome& outcome, std::chrono::milliseconds limit);

}  // namespace ddprun::agent
