#include "launcher/plan/device_count.h"

#include <string_view>
#include <utility>
#include <vector>

#include "launcher/machine/timed_process.h"
#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/parse_number.h"
#include "rendezvous/common/trimmed.h"

namespace ddprun::cli {
namespace {

// What PyTorch prints besides goes before it.
constexpr std::string_view kMark = "ddprun-devices ";
constexpr const char* kQuestion = R"(import sys, torch
kind = sys.argv[1]
its = {"gpu": torch.cuda, "xpu": getattr(torch, "xpu", None), "auto": getattr(torch, "accelerator", torch.cuda)}[kind]
print("\nddprun-devices", its.device_count() if its is not None and its.is_available() else 0)
)";

std::string last_line(std::string_view text) {
  text = trimmed(text);
  return std::string(text.substr(text.rfind('\n') + 1));
}

}  // namespace

Result<int> count_devices(const agent::Program& python_program, const std::string& kind,
                          const Environment& environment, std::chrono::seconds limit) {
  const std::string& python = python_program.path;
  const auto failed = [&](const std::string& why) {
    return fail(ErrorCode::kUnavailable, python + " " + why);
  };
  std::vector<std::string> argv = python_program.argv;
  argv.resize(1 + python_program.python_options);
  argv.front() = python;
  argv.insert(argv.end(), {"-c", kQuestion, kind});
  auto asked = TimedProcess::command(argv, environment);
  if (!asked) return failed("cannot be asked for its devices: " + asked.error().to_string());
  const TimedProcess::End end = asked->finish(TimedProcess::Clock::now() + limit);
  if (!end.was_in_time) {
    return failed("did not say within " + std::to_string(limit.count()) +
                  " s how many devices it has");
  }
  const std::string answer = last_line(end.output);
  const auto count = answer.starts_with(kMark)
                         ? parse_number<int>(std::string_view(answer).substr(kMark.size()))
                         : std::nullopt;
  if (end.status.is_success() && count && *count >= 0) return *count;
  return failed("cannot say how many devices it has: " +
                (answer.empty() ? end.status.to_string() : printable(answer)));
}

}  // namespace ddprun::cli
