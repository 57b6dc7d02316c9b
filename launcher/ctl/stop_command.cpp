// ddpctl stop, ddpctl restart: requests to a job, which its leader carries out.
#include <unistd.h>

#include <boost/json.hpp>
#include <cstdio>
#include <functional>
#include <optional>
#include <string>

#include "launcher/ctl/control_client.h"
#include "launcher/ctl/ddpctl.h"

namespace ddprun::cli {
namespace {

namespace json = boost::json;

// The name of an event, and the number in one of its fields.
struct Seen {
  std::string event;
  std::int64_t round = -1;
  std::int64_t exit_code = -1;
};
Seen seen_in(const std::string& line) {
  const json::object object = object_in(line);
  const auto number_in = [&](const char* name) {
    const auto* found = object.if_contains(name);
    return found != nullptr && found->is_int64() ? found->as_int64() : -1;
  };
  return {field(object, "event"), number_in("round"), number_in("exit_code")};
}

// One connection sends the request; another listens from before that, so that no event is missed.
struct Asked {
  std::optional<ControlClient> events;
  std::string answer;
};
Result<Asked> ask(const StopArguments& arguments, const std::string& request) {
  auto job = find_job(arguments.job);
  if (!job) return fail(std::move(job.error()));
  Asked asked;
  if (!arguments.waits_not) {
    // The same agent, even if another job has this id.
    auto events = find_job(std::to_string(job->agent()));
    if (!events) return fail(std::move(events.error()));
    if (auto said = events->say(R"({"ask":"events","past":false,"follow":true})"); !said) {
      return fail(std::move(said.error()));
    }
    asked.events.emplace(std::move(*events));
  }
  if (auto said = job->say(request); !said) return fail(std::move(said.error()));
  auto answer = job->answer();
  if (!answer) return fail(std::move(answer.error()));
  asked.answer = std::move(*answer);
  return asked;
}

// The exit code, if this is the event that the command waits for.
using Judge = std::function<std::optional<int>(const Seen&)>;

int wait(ControlClient& events, const Judge& judge) {
  for (;;) {
    const auto line = events.line(std::chrono::seconds(0));
    if (!line) return report(line.error(), exit_code_of(line.error()));
    if (!*line) {
      return report("the job's agent is gone and has not reported how the job ended", kJobFailed);
    }
    if (const auto code = judge(seen_in(**line))) return *code;
  }
}

}  // namespace

int stop_job(const StopArguments& arguments) {
  auto asked = ask(arguments, R"({"ask":"stop"})");
  if (!asked) return report(asked.error(), exit_code_of(asked.error()));
  if (!asked->events) return kJobDone;
  return wait(*asked->events, [](const Seen& seen) -> std::optional<int> {
    if (seen.event != "finished") return std::nullopt;
    std::printf("the job has ended with exit code %d\n", static_cast<int>(seen.exit_code));
    return kJobDone;
  });
}

int restart_job(const StopArguments& arguments) {
  auto asked = ask(arguments, R"({"ask":"restart"})");
  if (!asked) return report(asked.error(), exit_code_of(asked.error()));
  if (!asked->events) return kJobDone;
  const json::value answer = json::parse(asked->answer);
  const auto* old_round = answer.as_object().if_contains("round");
  const std::int64_t before = old_round == nullptr ? -1 : old_round->to_number<std::int64_t>();
  return wait(*asked->events, [before](const Seen& seen) -> std::optional<int> {
    if (seen.event == "finished") {
      return report("the job ended instead, with exit code " + std::to_string(seen.exit_code),
                    kJobFailed);
    }
    if (seen.event != "round_started" || seen.round <= before) return std::nullopt;
    std::printf("round %lld runs\n", static_cast<long long>(seen.round));
    return kJobDone;
  });
}

}  // namespace ddprun::cli
