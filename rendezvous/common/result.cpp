#include "rendezvous/common/result.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>

namespace ddprun {
namespace {

rlim_t limit_on(__rlimit_resource resource) {
  rlimit limit{};
  return ::getrlimit(resource, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

// The limit behind a system error, and what to try; empty for any other error.
std::string limit_behind(int errno_value) {
  if (errno_value == EMFILE) {
    return "; the limit is " + std::to_string(limit_on(RLIMIT_NOFILE)) +
           " open files per process: raise it (ulimit -n)";
  }
  if (errno_value == ENFILE) {
    return "; that is the limit of the whole system: raise fs.file-max, or end other programs";
  }
  return "";
}

std::string limit_on_processes() {
  const rlim_t limit = limit_on(RLIMIT_NPROC);
  if (limit == RLIM_INFINITY) {
    return "; a control group (pids.max) or the system (kernel.pid_max) allows no more";
  }
  return "; the limit is " + std::to_string(limit) +
         " processes and threads of this user: raise it (ulimit -u; or pids.max of the control "
         "group)";
}

}  // namespace

std::string_view name_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kNotFound:
      return "not_found";
    case ErrorCode::kPermissionDenied:
      return "permission_denied";
    case ErrorCode::kAddressInUse:
      return "address_in_use";
    case ErrorCode::kUnavailable:
      return "unavailable";
    case ErrorCode::kTimeout:
      return "timeout";
    case ErrorCode::kProtocol:
      return "protocol";
    case ErrorCode::kClosed:
      return "closed";
    case ErrorCode::kResourceExhausted:
      return "resource_exhausted";
    case ErrorCode::kDataLoss:
      return "data_loss";
    case ErrorCode::kIo:
      return "io";
  }
  return "io";
}

Error&& Error::with(std::string key, std::string value) && {
  context.emplace_back(std::move(key), std::move(value));
  return std::move(*this);
}

Error& Error::with(std::string key, std::string value) & {
  context.emplace_back(std::move(key), std::move(value));
  return *this;
}

std::string Error::to_string() const {
  std::string text = message;
  if (context.empty()) return text;
  text += " (";
  for (std::size_t i = 0; i < context.size(); ++i) {
    if (i > 0) text += ", ";
    text += context[i].first + ": " + context[i].second;
  }
  return text + ")";
}

Error error_from_errno(int errno_value, std::string_view what) {
  ErrorCode code = ErrorCode::kIo;
  switch (errno_value) {
    case ENOENT:
    case ENOTDIR:
      code = ErrorCode::kNotFound;
      break;
    case EACCES:
    case EPERM:
    case EROFS:
      code = ErrorCode::kPermissionDenied;
      break;
    case EADDRINUSE:
      code = ErrorCode::kAddressInUse;
      break;
    case EINVAL:
    case EADDRNOTAVAIL:
      code = ErrorCode::kInvalidArgument;
      break;
    case ECONNREFUSED:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EAGAIN:
      code = ErrorCode::kUnavailable;
      break;
    case ETIMEDOUT:
      code = ErrorCode::kTimeout;
      break;
    case EPIPE:
    case ECONNRESET:
    case ECONNABORTED:
      code = ErrorCode::kClosed;
      break;
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case ENOSPC:
    case EDQUOT:
    case ENOBUFS:
      code = ErrorCode::kResourceExhausted;
      break;
    default:
      break;
  }
  return Error{
      code, std::string(what) + ": " + std::strerror(errno_value) + limit_behind(errno_value), {}};
}

Error error_of_start(int errno_value, std::string_view what) {
  Error error = error_from_errno(errno_value, what);
  if (errno_value != EAGAIN) return error;
  error.code = ErrorCode::kResourceExhausted;
  error.message += limit_on_processes();
  return error;
}

}  // namespace ddprun
