// What is said of an exception that nothing has caught.
#pragma once

#include <boost/system/system_error.hpp>
#include <exception>
#include <new>
#include <string>
#include <system_error>

#include "rendezvous/common/result.h"

namespace ddprun::rdzv {

// Asio's constructors throw if there are no more descriptors, and anything may throw if there is no
// more memory. Caught only at the edges (the agent's run(), main), which end with kExitCannotRun.
// Pure; any thread.
inline Error error_from_exception(const std::exception& exception) {
  constexpr const char* kWhat = "ddprun cannot do its work";
  const auto* const asio = dynamic_cast<const boost::system::system_error*>(&exception);
  if (asio != nullptr && asio->code().category() == boost::system::system_category()) {
    return error_from_errno(asio->code().value(), kWhat);
  }
  // The standard library throws these for threads, where EAGAIN means that a limit is reached.
  if (const auto* standard = dynamic_cast<const std::system_error*>(&exception)) {
    return error_of_start(standard->code().value(), kWhat);
  }
  if (dynamic_cast<const std::bad_alloc*>(&exception) == nullptr) {
    return {ErrorCode::kIo, std::string(kWhat).append(": ").append(exception.what()), {}};
  }
  return {ErrorCode::kResourceExhausted,
          std::string(kWhat).append(": there is no memory left for it; give it more (ulimit -v, "
                                    "memory.max of its control group), or end other programs"),
          {}};
}

}  // namespace ddprun::rdzv
