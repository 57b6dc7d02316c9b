#include "agent/failure_copies.h"

#include <fcntl.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <fstream>

#include "agent/error_file.h"
#include "agent/event_lines.h"
#include "agent/failure_report.h"
#include "rendezvous/base/unique_fd.h"

namespace ddprun::agent {
namespace {

namespace json = boost::json;

constexpr std::size_t kTerminationMessageBytesMax = 4096;
constexpr std::size_t kTextBytesMax = 64 * 1024;

// torchrun's number: Python's returncode.
int error_code_of(const rdzv::JobOutcome& outcome) {
  if (!outcome.cause) return outcome.exit_code;
  const ExitStatus& status = outcome.cause->status;
  return status.signal != 0 ? -status.signal : status.code;
}

std::string own_account(const rdzv::JobOutcome& outcome) {
  using Kind = rdzv::JobOutcome::Kind;
  if (outcome.kind == Kind::kStopped) return "stopped by " + signal_name(outcome.stop_signal);
  if (outcome.kind == Kind::kCannotRun || !outcome.cause) return outcome.sentence;
  const std::string& message = outcome.cause->message;
  const bool is_said = outcome.cause->pid == 0 || message.empty();
  return describe(*outcome.cause) + (is_said ? "" : ": " + message);
}

}  // namespace

std::string termination_message(std::string_view report) {
  if (report.size() <= kTerminationMessageBytesMax) return std::string(report);
  const auto end = report.rfind('\n', kTerminationMessageBytesMax - 1);
  return std::string(
      report.substr(0, end == std::string_view::npos ? kTerminationMessageBytesMax : end + 1));
}

std::string termination_log(const Environment& environment) {
  const auto path = environment.find("DDPRUN_TERMINATION_LOG");
  return path == environment.end() ? std::string(kTerminationLog) : path->second;
}

void write_termination_log(const std::string& path, std::string_view report) {
  const rdzv::UniqueFd file(::open(path.c_str(), O_WRONLY | O_TRUNC | O_NONBLOCK | O_CLOEXEC));
  if (!file) return;
  const std::string message = termination_message(report);
  [[maybe_unused]] const auto written = ::write(file.get(), message.data(), message.size());
}

std::string error_file_for_parent(const rdzv::JobOutcome& outcome, std::string_view cause_file,
                                  std::chrono::system_clock::time_point now) {
  if (!cause_file.empty()) {
    boost::system::error_code ec;
    json::value root = json::parse(json::string_view(cause_file.data(), cause_file.size()), ec);
    json::object* fields = ec ? nullptr : root.if_object();
    json::value* message = fields == nullptr ? nullptr : fields->if_contains("message");
    // Any other form has no place for the code, and is as good without it.
    if (message == nullptr || !message->is_object()) return std::string(cause_file);
    message->get_object()["errorCode"] = error_code_of(outcome);
    return json::serialize(root);
  }
  const auto when = outcome.cause ? outcome.cause->when : now;
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(when.time_since_epoch()).count();
  json::object message;
  message["message"] = as_utf8(own_account(outcome), kTextBytesMax);
  message["extraInfo"] = json::object{{"timestamp", std::to_string(seconds)}};
  message["errorCode"] = error_code_of(outcome);
  return json::serialize(json::object{{"message", std::move(message)}});
}

void write_error_file_for_parent(const std::string& path, const rdzv::JobOutcome& outcome) {
  const std::string cause_file = outcome.cause ? error_file_text(outcome.cause->error_file) : "";
  std::ofstream(path, std::ios::binary)
      << error_file_for_parent(outcome, cause_file, std::chrono::system_clock::now());
}

void copy_failure(const Environment& environment, std::string_view report,
                  const rdzv::JobOutcome& outcome) {
  write_termination_log(termination_log(environment), report);
  const std::string error_file = value_or_empty(environment, "TORCHELASTIC_ERROR_FILE");
  if (!error_file.empty()) write_error_file_for_parent(error_file, outcome);
}

}  // namespace ddprun::agent
