// The exceptions of worker_lib. LibTorch throws exceptions (c10::Error), so public calls do too; what they
// throw carries an Error (rendezvous/common/result.h).
// UsageError is for what the person who started the program has to change; ddprun::run() turns it
// into exit code 2, everything else into exit code 1 and an error file. Any thread.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

#include "rendezvous/common/result.h"

namespace ddprun {

class Failure : public std::runtime_error {
 public:
  explicit Failure(Error error) : std::runtime_error(error.to_string()), error_(std::move(error)) {}
  Failure(ErrorCode code, std::string message) : Failure(Error{code, std::move(message), {}}) {}

  const Error& error() const { return error_; }

 private:
  Error error_;
};

class UsageError : public Failure {
 public:
  explicit UsageError(Error error) : Failure(std::move(error)) {}
  explicit UsageError(std::string message)
      : Failure(ErrorCode::kInvalidArgument, std::move(message)) {}
};

}  // namespace ddprun
