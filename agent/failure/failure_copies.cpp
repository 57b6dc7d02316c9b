#include "agent/failure/failure_copies.h"

#include <fcntl.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <future>
#include <memory>

#include "agent/failure/error_file.h"
#include "agent/failure/failure_report.h"
#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/thread.h"
#include "rendezvous/common/unique_fd.h"
#include "rendezvous/round/job_outcomes.h"

namespace ddprun::agent {
namespace {

namespace json = boost::json;

constexpr std::size_t kTerminationMessageBytesMax = 4096;
constexpr std::size_t kTextBytesMax = std::size_t{64} * 1024;

// As torchrun: Python's returncode.
int error_code_of(const rdzv::JobOutcome& outcome) {
  if (!outcome.cause) return outcome.exit_code;
  const ExitStatus& status = outcome.cause->status;
  return status.signal != 0 ? -status.signal : status.code;
}

std::string own_account(const rdzv::JobOutcome& outcome) {
  using Kind = rdzv::JobOutcome::Kind;
  if (outcome.kind == Kind::kStopped) return "stopped by " + rdzv::what_stopped(outcome);
  if (outcome.kind == Kind::kCannotRun || !outcome.cause) return outcome.sentence;
  const std::string& message = outcome.cause->message;
  const bool is_said =
      outcome.cause->pid == 0 || message.empty() || was_stopped_for_nan(*outcome.cause);
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
  constexpr int kFlags = O_WRONLY | O_TRUNC | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  const rdzv::UniqueFd file(::open(path.c_str(), kFlags));
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
    // Other forms have no place for the code, so they are copied unchanged.
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
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  const rdzv::UniqueFd file(::open(path.c_str(), kFlags, 0666));
  if (!file) return;
  const std::string text =
      error_file_for_parent(outcome, cause_file, std::chrono::system_clock::now());
  for (std::string_view rest = text; !rest.empty();) {
    const ssize_t written = ::write(file.get(), rest.data(), rest.size());
    if (written <= 0) return;
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
}

void write_failure_copies(const Environment& environment, std::string_view report,
                          const rdzv::JobOutcome& outcome) {
  write_termination_log(termination_log(environment), report);
  const std::string error_file = value_or_empty(environment, "TORCHELASTIC_ERROR_FILE");
  if (!error_file.empty()) write_error_file_for_parent(error_file, outcome);
}

bool copy_failure(const Environment& environment, std::string_view report,
                  const rdzv::JobOutcome& outcome, std::chrono::milliseconds limit) {
  const auto copied = std::make_shared<std::promise<void>>();
  auto copy = [copied, environment, report = std::string(report), outcome] {
    write_failure_copies(environment, report, outcome);
    copied->set_value();
  };
  const auto done = copied->get_future();
  if (auto thread = rdzv::Thread::start("ddprun-copies", copy)) {
    thread->detach();
  } else {
    copy();
  }
  return done.wait_for(limit) == std::future_status::ready;
}

}  // namespace ddprun::agent
