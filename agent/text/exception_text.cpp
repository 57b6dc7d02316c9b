#include "agent/text/exception_text.h"

#include <boost/system/system_error.hpp>
#include <new>
#include <system_error>

namespace ddprun::agent {

Error error_from_exception(const std::exception& exception) {
  constexpr const char* kWhat = "ddprun cannot do its work";
  if (const auto* asio = dynamic_cast<const boost::system::system_error*>(&exception);
      asio != nullptr && asio->code().category() == boost::system::system_category()) {
    return error_from_errno(asio->code().value(), kWhat);
  }
  // The standard library throws these for threads, where EAGAIN means that a limit is reached.
  if (const auto* standard = dynamic_cast<const std::system_error*>(&exception)) {
    return error_of_start(standard->code().value(), kWhat);
  }
  const bool is_memory = dynamic_cast<const std::bad_alloc*>(&exception) != nullptr;
  return {is_memory ? ErrorCode::kResourceExhausted : ErrorCode::kIo,
          std::string(kWhat) + ": " +
              (is_memory ? "there is no memory left for it; give it more (ulimit -v, memory.max of "
                           "its control group), or end other programs"
                         : exception.what()),
          {}};
}

}  // namespace ddprun::agent
