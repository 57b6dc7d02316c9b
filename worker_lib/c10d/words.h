// What an exception says, without LibTorch's backtrace. Any thread.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace ddprun {

// All of it, which may be several lines.
inline std::string message_of(const std::exception& error) {
  const auto* const from_torch = dynamic_cast<const c10::Error*>(&error);
  return from_torch ? from_torch->what_without_backtrace() : error.what();
}

inline std::string message_of(const std::exception_ptr& thrown) {
  try {
    std::rethrow_exception(thrown);
  } catch (const std::exception& error) {
    return message_of(error);
  } catch (...) {
    return "something that is no std::exception was thrown";
  }
}

// Its first line.
inline std::string words_of(const std::exception& error) {
  const std::string text = message_of(error);
  return text.substr(0, text.find('\n'));
}

}  // namespace ddprun
