#include "agent/supervisor/stack_samples.h"

#include <boost/asio/post.hpp>
#include <chrono>
#include <utility>

#include "agent/process/process_stacks.h"
#include "agent/process/python_stacks.h"
#include "agent/query/stack_query.h"
#include "rendezvous/common/random_number.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

constexpr int kLooks = 32;
// At random, so that looks and steps do not go in time with each other.
constexpr auto kLookPauseMin = 30ms;
constexpr auto kLookPauseMax = 100ms;
constexpr auto kAnswerLimit = 50ms;
constexpr std::size_t kSampleBytes = std::size_t{256} * 1024;

// The thread's work. Empty: it does not answer.
std::string text_of(pid_t leader) {
  const std::vector<pid_t> tree = process_tree(leader);
  if (tree.empty()) return {};
  const auto asked = PythonStacks::ask(program_in(tree));
  const bool has_answered = asked && asked->await(std::chrono::steady_clock::now() + kAnswerLimit);
  return has_answered ? asked->text(kSampleBytes) : std::string();
}

std::vector<std::string> texts_of(const std::vector<StackSamples::Worker>& workers) {
  std::vector<std::string> texts;
  for (const auto& worker : workers) texts.push_back(text_of(worker.pid));
  return texts;
}

}  // namespace

void StackSamples::take(std::vector<Worker> workers, Done done) {
  if (done_) return boost::asio::post(io_, [done = std::move(done)] { done({}); });
  ++request_;
  workers_ = std::move(workers);
  seen_.clear();
  for (const Worker& each : workers_) seen_.push_back({each.rank, {}});
  looks_ = workers_.empty() ? kLooks : 0;
  done_ = std::move(done);
  look_later();
}

void StackSamples::finish() {
  timer_.cancel();
  if (done_) std::exchange(done_, nullptr)(std::exchange(seen_, {}));
}

void StackSamples::look_later() {
  if (looks_ == kLooks) return timer_.arm(0ms, [this] { finish(); });
  constexpr auto kRange = (kLookPauseMax - kLookPauseMin).count();
  const auto more = static_cast<std::chrono::milliseconds::rep>(random_number() % kRange);
  timer_.arm(kLookPauseMin + std::chrono::milliseconds(more), [this] { look(); });
}

void StackSamples::look() {
  ++looks_;
  calls_.run<std::vector<std::string>>(
      [workers = workers_] { return texts_of(workers); },
      [this, request = request_](const std::vector<std::string>& texts) {
        if (!done_ || request != request_) return;
        for (std::size_t i = 0; i < texts.size(); ++i) {
          if (!texts[i].empty()) add(seen_[i], program_frames_in(texts[i]));
        }
        look_later();
      });
}

}  // namespace ddprun::agent
