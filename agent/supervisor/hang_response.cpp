#include "agent/supervisor/hang_response.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kCasesMax = 8;
constexpr std::size_t kQuestionsMax = 8;
constexpr std::size_t kRanksMax = 64;  // of a question
// A question may be lost, or a tool hold a rank: it is asked again so often, once a second.
constexpr int kAttempts = 5;
constexpr auto kEndPatience = 1s;

// Those whose stacks are taken first.
std::vector<int> culprits_of(const rdzv::Hung& hung) {
  std::vector<int> ranks = hung.ranks;
  if (ranks.size() > kRanksMax) ranks.resize(kRanksMax);
  return ranks;
}

}  // namespace

RankStack stack_of(const WorkerStacks& worker) {
  return {worker.state, worker.threads.empty() ? "" : worker.threads.front().stack, worker.trouble};
}

HangResponse::HangResponse(boost::asio::io_context& io, bool ends, Hooks hooks)
    : io_(io), ends_(ends), hooks_(std::move(hooks)), again_(io) {}

void HangResponse::forget() {
  ++rounds_;
  cases_.clear();
  again_.cancel();
}

void HangResponse::respond(const rdzv::Hung& hung, const JobStatus& status) {
  Case added;
  added.hung = hung;
  added.status = status;
  begin(std::move(added));
}

void HangResponse::tell(const rdzv::WaitingFor& wait) {
  if (wait.missing.empty()) return hooks_.wait_report(wait, {});
  Case added;
  added.hung.ranks = {wait.missing.front()};
  added.wait = wait;
  begin(std::move(added));
}

void HangResponse::begin(Case added) {
  if (cases_.size() >= kCasesMax) return;
  cases_.push_back(std::move(added));
  if (cases_.size() == 1) ask_first();
}

void HangResponse::ask_first() { ask({culprits_of(cases_.front().hung), {}, /*is_brief=*/true}); }

// Both answers come, or their limits.
void HangResponse::ask(StackQuery question) {
  cases_.front().awaited = 2;
  const auto is_current = [this, round = rounds_] { return round == rounds_; };
  hooks_.stacks(question,
                lifetime_.guard([this, is_current](const std::vector<WorkerStacks>& stacks) {
                  if (!is_current()) return;
                  take(stacks);
                  taken();
                }));
  hooks_.query().ask(std::nullopt, to_json(question),
                     lifetime_.guard([this, is_current](const JobQuery::Outcome& outcome) {
                       if (!is_current()) return;
                       for (const auto& [id, text] : outcome.answers) {
                         if (const auto stacks = worker_stacks_from(text)) take(*stacks);
                       }
                       taken();
                     }),
                     kStackLimit + 1s);
}

void HangResponse::take(const std::vector<WorkerStacks>& stacks) {
  for (const WorkerStacks& worker : stacks) {
    cases_.front().stacks[worker.rank] = stack_of(worker);
  }
}

// Those that hang come first: the tools for all others together may take longer than the limit.
void HangResponse::taken() {
  Case& current = cases_.front();
  if (--current.awaited > 0) return;
  if (current.wait) {
    hooks_.wait_report(*current.wait, current.stacks);
    return next();
  }
  if (!std::exchange(current.is_about_others, true)) {
    return ask({{}, culprits_of(current.hung), /*is_brief=*/true});
  }
  const HangReport report = make_hang_report(current.hung, current.status, current.stacks);
  hooks_.report(report);
  const bool ends = ends_ && report.hung.is_verdict();
  ends ? confirm(report, kAttempts) : next();
}

void HangResponse::confirm(const HangReport& report, int attempts) {
  hooks_.confirm(report.hung, lifetime_.guard([this, report, attempts,
                                               round = rounds_](std::optional<bool> is_so) {
    if (round != rounds_) return;
    if (!is_so && attempts > 1) {
      return again_.arm(kEndPatience, [this, report, attempts] { confirm(report, attempts - 1); });
    }
    const std::string who = rdzv::ranks_in_words(report.hung.ranks);
    if (!is_so) {
      hooks_.warn("a debugger holds a rank: " + who + " will not be killed");
    } else if (*is_so) {
      act(report);
    } else {
      hooks_.warn(who + " went on by " + (report.hung.ranks.size() == 1 ? "itself" : "themselves") +
                  " meanwhile: nothing is done");
    }
    next();
  }));
}

// A question for the ranks of each stack.
void HangResponse::act(const HangReport& report) {
  std::vector<EndHung> elsewhere;
  for (std::size_t i = 0; i < std::min(report.culprits.size(), kQuestionsMax); ++i) {
    const RanksAlike& group = report.culprits[i];
    EndHung question{report.round, group.ranks, sentence(report.hung), group.stack};
    // One is enough to end the round.
    if (question.ranks.size() > kRanksMax) question.ranks.resize(kRanksMax);
    heard(question, hooks_.end(question));
    if (!question.ranks.empty()) elsewhere.push_back(std::move(question));
  }
  if (!elsewhere.empty()) end_elsewhere(std::move(elsewhere), kAttempts);
}

// What is left of the question after this answer.
void HangResponse::heard(EndHung& question, const EndHungAnswer& answer) {
  std::vector<int> here;
  std::erase_if(question.ranks, [&](int rank) {
    const bool is_here = std::ranges::count(answer.here, rank) > 0;
    if (is_here) here.push_back(rank);
    return is_here;
  });
  if (here.empty() || answer.refused.empty()) return;
  hooks_.warn(rdzv::ranks_in_words(here) + " will not be killed: " + answer.refused);
}

// Until the nodes of all have answered.
void HangResponse::end_elsewhere(std::vector<EndHung> questions, int attempts) {
  struct Asked {
    std::vector<EndHung> open;
    std::size_t awaited = 0;
  };
  const auto asked = std::make_shared<Asked>();
  asked->awaited = questions.size();
  for (const EndHung& question : questions) {
    const auto told = [this, asked, question, attempts,
                       round = rounds_](const JobQuery::Outcome& outcome) {
      if (round != rounds_) return;
      EndHung left = question;
      for (const auto& [id, text] : outcome.answers) {
        if (const auto answer = end_hung_answer_from(text)) heard(left, *answer);
      }
      if (!left.ranks.empty()) asked->open.push_back(std::move(left));
      if (--asked->awaited > 0 || asked->open.empty()) return;
      if (attempts > 1) {
        return again_.arm(kEndPatience, [this, open = asked->open, attempts] {
          end_elsewhere(open, attempts - 1);
        });
      }
      hooks_.warn(rdzv::ranks_in_words(asked->open.front().ranks) +
                  " will not be killed: no node says that it has them");
    };
    hooks_.query().ask(std::nullopt, to_json(question), lifetime_.guard(told), kEndPatience);
  }
}

void HangResponse::next() {
  cases_.pop_front();
  if (!cases_.empty()) ask_first();
}

}  // namespace ddprun::agent
