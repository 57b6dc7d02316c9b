// The error file: how a worker tells its agent why it failed (TORCHELASTIC_ERROR_FILE), in the
// format of PyTorch's @record, so that ddprun and torchrun both read it. Pure but for
// write_error_file().
#pragma once

#include <chrono>
#include <string>

namespace ddprun {

struct FailureDescription {
  std::string type;     // of what was thrown: "std::runtime_error"
  std::string message;  // its text
  std::string trace;    // where, if known
  std::chrono::system_clock::time_point at;
};

// {"message": {"message": "<type>: <text>", "extraInfo": {"py_callstack": …, "timestamp": "<s>"}}}
std::string error_file_json(const FailureDescription& failure);

// Throws Failure.
void write_error_file(const std::string& path, const FailureDescription& failure);

}  // namespace ddprun
