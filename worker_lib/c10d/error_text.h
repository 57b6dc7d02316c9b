// What an exception says, without LibTorch's backtrace, and whether a connection has failed. Any thread.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace ddprun {

// All of it, which may be several lines.
inline std::string error_text(const std::exception& error) {
  const auto* const from_torch = dynamic_cast<const c10::Error*>(&error);
  return from_torch ? from_torch->what_without_backtrace() : error.what();
}

inline std::string error_text(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    return error_text(error);
  } catch (...) {
    return "something that is no std::exception was thrown";
  }
}

// Whether it is c10d's, which those of NCCL and the stores are, or Gloo's.
bool is_of_connection(const std::exception& error);

// Its first line.
inline std::string error_line(const std::exception& error) {
  const std::string text = error_text(error);
  return text.substr(0, text.find('\n'));
}

}  // namespace ddprun
