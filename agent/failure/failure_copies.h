// What is left of a failure for others than the user at the terminal: Kubernetes shows a
// container's termination message, and whoever started ddprun with TORCHELASTIC_ERROR_FILE set (an
// outer launcher) reads that file.
//
// Called at the end of a job. Neither is worth another failure: what cannot be written is left out
// without a word. Both files may be anything that others have put there, so nothing waits for the
// other end of a FIFO, and copy_failure() for no file system that does not answer.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "rendezvous/common/environment.h"
#include "rendezvous/round/round_messages.h"

namespace ddprun::agent {

// Where Kubernetes mounts the message unless terminationMessagePath says otherwise.
inline constexpr std::string_view kTerminationLog = "/dev/termination-log";

// Kubernetes keeps the last 4096 bytes of what it finds; the first lines say more.
std::string termination_message(std::string_view report);

// Where `environment` says: DDPRUN_TERMINATION_LOG, else kTerminationLog.
std::string termination_log(const Environment& environment);

// Only where the file is there already.
void write_termination_log(const std::string& path, std::string_view report);

// The root cause's error file with "errorCode" added, as torchrun does it (a signal is a negative
// code). A worker that left none, and a failure of the agent itself, get an account in the same
// form. `cause_file`: its text, or empty.
std::string error_file_for_parent(const rdzv::JobOutcome& outcome, std::string_view cause_file,
                                  std::chrono::system_clock::time_point now);

void write_error_file_for_parent(const std::string& path, const rdzv::JobOutcome& outcome);

// That an agent which cannot go on waits for file systems that do not answer.
inline constexpr std::chrono::milliseconds kFailureCopyLimit{2000};

// Both, where `environment` (the agent's) says: termination_log() and TORCHELASTIC_ERROR_FILE. May
// hang where their file systems do.
void write_failure_copies(const Environment& environment, std::string_view report,
                          const rdzv::JobOutcome& outcome);
// The same on a thread of its own. False: it was not done within `limit`, and is waited for no longer.
bool copy_failure(const Environment& environment, std::string_view report,
                  const rdzv::JobOutcome& outcome, std::chrono::milliseconds limit);

}  // namespace ddprun::agent
