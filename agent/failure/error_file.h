// The file in which a worker says why it failed (TORCHELASTIC_ERROR_FILE), as torch's @record and
// our worker_lib write it:
//   {"message": {"message": "<Type>: <text>",
//                "extraInfo": {"py_callstack": "…", "timestamp": "…"}}}
// or with a plain string under "message". Text in another form is not an error: it is shown as it
// is (torchrun's agent fails on it).
//
// Reading may hang if the file server does not answer: not for the event loop.
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

// Empty if the file does not exist, cannot be read or is not regular. Reads at most 1 MiB.
std::string error_file_text(const std::string& path);

// None if the file has no text. Message and call stack are cut to 64 KiB each.
std::optional<WorkerError> read_error_file(const std::string& path);

}  // namespace ddprun::agent
