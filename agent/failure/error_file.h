// The file in which a worker says why it failed (TORCHELASTIC_ERROR_FILE), as torch's @record and
// our worker_lib write it:
//   {"message": {"message": "<Type>: <text>", "extraInfo": {"py_callstack": "…", "timestamp":
//   "…"}}}
// or with a plain string under "message". What cannot be understood is no error of the job: the raw
// text is as good an account as any (torchrun's agent fails on it).
//
// Reading it may hang where its folder does (a file server that does not answer): not for the event
// loop.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ddprun::agent {

struct WorkerError {
  std::string message;    // "ValueError: lr must be positive"
  std::string callstack;  // may be empty
};

WorkerError parse_error_file(std::string_view text);

// Empty where the file is not there, cannot be read or is no regular one. At most 1 MiB is read.
std::string error_file_text(const std::string& path);

// Nothing where the file has no text. Of message and call stack as much as other nodes are told, 64 KiB
// each: every report and history of the job may keep them.
std::optional<WorkerError> read_error_file(const std::string& path);

}  // namespace ddprun::agent
