#include "agent/health/health_check.h"

#include <unistd.h>

#include <utility>
#include <variant>

#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/own_pause.h"
#include "rendezvous/common/text/durations.h"
#include "rendezvous/common/trimmed.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kXidsKept = 32;  // the first ones: later ones follow from them
constexpr std::size_t kSentenceBytesMax = 500;
constexpr auto kLate = 1s;  // more than a loop that runs is late

// The last line of what a foreign program wrote that is not empty.
std::string_view last_line(std::string_view output) {
  output = trimmed(output);
  const std::size_t begin = output.rfind('\n');
  return begin == std::string_view::npos ? output : trimmed(output.substr(begin + 1));
}

std::string shown(std::string_view line) { return printable(as_utf8(line, kSentenceBytesMax)); }

}  // namespace

HealthCheck::HealthCheck(boost::asio::io_context& io, Spec spec, Hooks hooks)
    : io_(io),
      spec_(std::move(spec)),
      hooks_(std::move(hooks)),
      core_(!spec_.check.empty()),
      events_([this](const health::Event& event) { step(event); }),
      next_(io),
      limit_(io) {}

void HealthCheck::before_join(std::function<void()> join) {
  join_ = std::move(join);
  events_.post(health::JoinWanted{});
}

void HealthCheck::look_at(const NodeEvent& event, bool is_running) {
  const bool is_stop = std::holds_alternative<StopSignal>(event) ||
                       std::holds_alternative<PreemptSignal>(event) ||
                       std::holds_alternative<rdzv::JobEnd>(event);
  if (is_stop) end_hold();
  if (suspicion_.arises(event, is_running)) events_.post(health::NodeSuspected{});
}

void HealthCheck::before_restart(std::function<void()> go_on) {
  go_on_ = std::move(go_on);
  events_.post(health::RestartWanted{});
}

void HealthCheck::end() {
  has_ended_ = true;
  is_wanted_ = false;
  next_.cancel();
  limit_.cancel();
  if (run_) run_->kill();
}

// ---- the core

void HealthCheck::step(const health::Event& event) {
  if (has_ended_) return;
  for (const health::Action& action : core_.step(event)) {
    std::visit([this](const auto& each) { perform(each); }, action);
  }
}

void HealthCheck::perform(const health::ArmTimer&) {
  next_.arm(spec_.interval, [this] { events_.post(health::CheckIsDue{}); });
}

void HealthCheck::perform(const health::LetJoin&) {
  if (join_) std::exchange(join_, nullptr)();
}

void HealthCheck::perform(const health::RefuseJoin& refuse) { hooks_.refuse(refuse.sentence); }

void HealthCheck::perform(const health::LetRestart&) {
  if (go_on_) std::exchange(go_on_, nullptr)();
}

// ---- one run

// The limit is of the answer, and includes the end of an earlier run.
void HealthCheck::perform(const health::RunCheck&) {
  next_.cancel();
  is_wanted_ = true;
  arm_limit();
  if (!run_) return start();
  is_stale_ = true;
  run_->kill();
}

void HealthCheck::start() {
  const std::string input = is_auto() ? question() : "";
  auto run = CommandRun::start(
      io_,
      {.command = spec_.check,
       .environment = spec_.environment,
       .input = input,
       .reads = CommandRun::Reads::kEnd,
       .keeper_slot = keeper_slot_,
       .program = is_auto() ? std::vector<std::string>{"/proc/self/exe", std::string(kHealthRole)}
                            : std::vector<std::string>()},
      [this](const ExitStatus& end, const std::string& output) { on_end(end, output); });
  if (!run) return answer_unfit("could not be started: " + run.error().to_string());
  run_ = *std::move(run);
  is_stale_ = false;
}

std::string HealthCheck::question() const {
  HealthQuestion question{.agent = ::getpid(), .folders = {}, .after_record = {}};
  for (const std::string& folder : spec_.folders) question.folders.push_back({folder});
  if (before_) question.after_record = before_->last_record;
  return to_json(question);
}

void HealthCheck::arm_limit() {
  due_ = Timer::Clock::now() + spec_.limit;
  limit_.arm_at(due_, [this] { on_late(); });
}

// Before its answer the process of ddprun says what it looks at.
void HealthCheck::on_late() {
  if (own_pause(due_, Timer::Clock::now(), kLate) > Timer::Clock::duration::zero()) {
    return arm_limit();  // this process was stopped: the check may have ended meanwhile
  }
  std::string why = "did not end within " + duration_text(spec_.limit);
  if (is_auto() && run_) {
    if (const std::string_view at = last_line(run_->end_of_output()); !at.empty()) {
      why += ": the last that it looked at is " + shown(at);
    }
  }
  if (run_) run_->kill();
  answer_unfit(why);
}

void HealthCheck::on_end(const ExitStatus& end, const std::string& output) {
  run_.reset();
  if (!is_wanted_) return;
  if (is_stale_) return start();
  const std::string_view line = last_line(output);
  if (!end.is_success()) {
    return answer_unfit("ended with " + end.to_string() + (line.empty() ? "" : ": " + shown(line)));
  }
  is_auto() ? take_facts(line) : answer({});
}

void HealthCheck::take_facts(std::string_view line) {
  auto facts = read_health_facts(line);
  if (!facts) return answer_unfit("did not tell what it has found: " + facts.error().to_string());
  if (!first_) first_ = *facts;
  // The kernel's log does not keep them for ever.
  if (before_) facts->xids.insert(facts->xids.begin(), before_->xids.begin(), before_->xids.end());
  if (facts->xids.size() > kXidsKept) facts->xids.resize(kXidsKept);
  auto findings = findings_of(*facts, *first_, before_ ? &*before_ : nullptr);
  before_ = *std::move(facts);
  answer(std::move(findings));
}

void HealthCheck::answer_unfit(const std::string& why) {
  answer({{health::Severity::kUnfit, "the health check '" + shown(spec_.check) + "' " + why}});
}

void HealthCheck::answer(std::vector<health::Finding> findings) {
  is_wanted_ = false;
  limit_.cancel();
  events_.post(health::CheckAnswered{std::move(findings)});
}

}  // namespace ddprun::agent
