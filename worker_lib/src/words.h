// What an exception says, in one line and without LibTorch's backtrace. Any thread.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace ddprun {

inline std::string words_of(const std::exception& error) {
  const auto* const from_torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = from_torch ? from_torch->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace ddprun
