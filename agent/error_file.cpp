#include "agent/error_file.h"

#include <boost/json.hpp>
#include <fstream>

#include "rendezvous/base/limits.h"
#include "rendezvous/wire/archive.h"

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
  std::ifstream file(path, std::ios::binary);
  if (!file) return {};
  std::string text(kMaxErrorFileBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
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
