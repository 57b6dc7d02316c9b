// Result<T>: the return value of a call that can fail without a bug (a port is taken, a peer is not
// reachable, a file does not exist). Bugs assert; a user's mistake becomes an Error with a hint at
// the place that knows the hint; exceptions of Asio, CLI11 or Torch are caught once, in the shell
// that called.
//
//   Result<Listener> open(const Endpoint& at);
//   auto listener = open(at);
//   if (!listener) return fail(std::move(listener.error()).with("endpoint", at.to_string()));
//
// Values: copy freely, any thread.
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

namespace ddprun {

enum class ErrorCode {
  kInvalidArgument,    // the caller or the user gave something that can never work
  kNotFound,           // a file, program, key or host does not exist
  kPermissionDenied,   // it exists, but access is denied
  kAddressInUse,       // a port is taken
  kUnavailable,        // a peer cannot be reached now; trying again may help
  kTimeout,            // a deadline passed
  kProtocol,           // a peer broke the protocol
  kClosed,             // the other side ended the connection
  kResourceExhausted,  // memory, descriptors, disk, a limit of ours
  kDataLoss,           // a file is damaged or cut off
  kIo,                 // any other failure of the operating system
};

// What went wrong, as a sentence, and where: callers add to `context` (host, rank, pid, file).
struct [[nodiscard]] Error {
  ErrorCode code = ErrorCode::kIo;
  std::string message;
  std::vector<std::pair<std::string, std::string>> context = {};

  Error&& with(std::string key, std::string value) &&;

  // "message (key: value, key: value)"
  std::string to_string() const;
};

template <typename T>
using Result = tl::expected<T, Error>;

// return fail(ErrorCode::kTimeout, "no answer from 10.0.0.5:29400 after 3 s");
inline tl::unexpected<Error> fail(Error error) { return tl::unexpected<Error>(std::move(error)); }
inline tl::unexpected<Error> fail(ErrorCode code, std::string message) {
  return fail(Error{code, std::move(message)});
}

// An Error from errno: code from the number, message "<what>: <strerror>". If a limit was reached,
// the message names the limit and what to try.
Error error_from_errno(int errno_value, std::string_view what);

// The same for calls that create a process or a thread, where EAGAIN means that their number is
// limited.
Error error_of_start(int errno_value, std::string_view what);

}  // namespace ddprun
