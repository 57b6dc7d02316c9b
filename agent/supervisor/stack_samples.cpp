#include "agent/supervisor/stack_samples.h"

#include <algorithm>
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

constexpr int kAnswers = 32;  // that each worker gives
constexpr int kLooks = 64;    // a busy machine lets some of them be late
constexpr auto kAnswerLimit = 50ms;
constexpr std::size_t kSampleBytes = std::size_t{256} * 1024;

}  // namespace

std::string StackSamples::text_of(pid_t leader) {
  const auto asked = PythonStacks::ask(program_in(process_tree(leader)));
  const bool has_answered = asked && asked->await(std::chrono::steady_clock::now() + kAnswerLimit);
  return has_answered ? asked->text(kSampleBytes) : std::string();
}

void StackSamples::take(std::vector<Worker> workers, Done done) {
  if (done_) {
    return boost::asio::post(io_, lifetime_.guard([done = std::move(done)] { done({}); }));
  }
  ++request_;
  workers_ = std::move(workers);
  seen_.clear();
  for (const Worker& each : workers_) seen_.push_back({each.rank, {}});
  looks_ = 0;
  done_ = std::move(done);
  limit_.arm(ways_.limit, [this] { finish(); });
  look_later();
}

void StackSamples::finish() {
  timer_.cancel();
  limit_.cancel();
  if (done_) std::exchange(done_, nullptr)(std::exchange(seen_, {}));
}

void StackSamples::look_later() {
  const auto has_enough = [](const RankSamples& each) { return answers_of(each) >= kAnswers; };
  if (looks_ == kLooks || std::ranges::all_of(seen_, has_enough))
    return timer_.arm(0ms, [this] { finish(); });
  const auto range = static_cast<std::uint64_t>((ways_.pause_max - ways_.pause_min).count()) + 1;
  const auto more = static_cast<std::chrono::milliseconds::rep>(random_number() % range);
  timer_.arm(ways_.pause_min + std::chrono::milliseconds(more), [this] { look(); });
}

void StackSamples::look() {
  ++looks_;
  calls_.run<std::vector<std::string>>(
      [workers = workers_, text_of = ways_.text_of] {
        std::vector<std::string> texts;
        for (const Worker& each : workers) texts.push_back(text_of(each.pid));
        return texts;
      },
      [this, request = request_](const std::vector<std::string>& texts) {
        if (!done_ || request != request_) return;
        for (std::size_t i = 0; i < texts.size(); ++i) {
          if (texts[i].empty() || answers_of(seen_[i]) == kAnswers) continue;
          add(seen_[i], program_frames_in(texts[i]));
        }
        look_later();
      });
}

}  // namespace ddprun::agent
