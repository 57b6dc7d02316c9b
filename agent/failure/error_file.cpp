#include "agent/failure/error_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <boost/json.hpp>

#include "rendezvous/common/archive.h"
#include "rendezvous/common/file_text.h"
#include "rendezvous/common/limits.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::agent {
namespace {

namespace json = boost::json;

constexpr std::size_t kMaxErrorFileBytes = 1 << 20;

std::string text_of(const json::value* value) {
  if (value == nullptr) return {};
  if (value->is_string()) return std::string(value->get_string());
  return json::serialize(*value);
}

}  // namespace

WorkerError parse_error_file(std::string_view text) {
  boost::system::error_code ec;
  const json::value root = json::parse(json::string_view(text.data(), text.size()), ec);
  const json::object* fields = ec ? nullptr : root.if_object();
  const json::value* message = fields == nullptr ? nullptr : fields->if_contains("message");
  if (message == nullptr) return WorkerError{std::string(text), {}};
  const json::object* details = message->if_object();
  if (details == nullptr) return WorkerError{text_of(message), {}};
  WorkerError error;
  error.message = text_of(details->if_contains("message"));
  if (const json::value* extra = details->if_contains("extraInfo"); extra && extra->is_object()) {
    error.callstack = text_of(extra->get_object().if_contains("py_callstack"));
  }
  return error;
}

std::string error_file_text(const std::string& path) {
  // O_NONBLOCK, because opening a FIFO waits for its other end.
  const rdzv::UniqueFd file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat status {};
  if (!file || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) return {};
  return read_from(file.get(), kMaxErrorFileBytes).value_or("");
}

std::optional<WorkerError> read_error_file(const std::string& path) {
  const std::string text = error_file_text(path);
  if (text.empty()) return std::nullopt;
  WorkerError error = parse_error_file(text);
  for (std::string* each : {&error.message, &error.callstack}) {
    if (each->size() > rdzv::limits::kMaxTextBytes) {
      *each = rdzv::wire::cut(*each, rdzv::limits::kMaxTextBytes);
    }
  }
  return error;
}

}  // namespace ddprun::agent
