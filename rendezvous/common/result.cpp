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

ErrorCode code_of(int errno_value) {
  switch (errno_value) {
    case ENOENT:
    case ENOTDIR:
      return ErrorCode::kNotFound;
    case EACCES:
    case EPERM:
    case EROFS:
      return ErrorCode::kPermissionDenied;
    case EADDRINUSE:
      return ErrorCode::kAddressInUse;
    case EINVAL:
    case EADDRNOTAVAIL:
      return ErrorCode::kInvalidArgument;
    case ECONNREFUSED:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EAGAIN:
      return ErrorCode::kUnavailable;
    case ETIMEDOUT:
      return ErrorCode::kTimeout;
    case EPIPE:
    case ECONNRESET:
    case ECONNABORTED:
      return ErrorCode::kClosed;
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case ENOSPC:
    case EDQUOT:
    case ENOBUFS:
      return ErrorCode::kResourceExhausted;
    default:
      return ErrorCode::kIo;
  }
}

}  // namespace

Error&& Error::with(std::string key, std::string value) && {
  context.emplace_back(std::move(key), std::move(value));
  return std::move(*this);
}

std::string Error::to_string() const {
  std::string places;
  for (const auto& [key, value] : context) {
    places += (places.empty() ? " (" : ", ") + key + ": " + value;
  }
  return places.empty() ? message : message + places + ")";
}

Error error_from_errno(int errno_value, std::string_view what) {
  return Error{code_of(errno_value),
               std::string(what) + ": " + std::strerror(errno_value) + limit_behind(errno_value)};
}

Error error_of_start(int errno_value, std::string_view what) {
  Error error = error_from_errno(errno_value, what);
  if (errno_value != EAGAIN) return error;
  error.code = ErrorCode::kResourceExhausted;
  error.message += limit_on_processes();
  return error;
}

}  // namespace ddprun
