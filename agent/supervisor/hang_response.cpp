#include "agent/supervisor/hang_response.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>
#include <variant>

#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/text/ranks.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

constexpr auto kEndPatience = 1s;  // for the answers of the nodes

}  // namespace

RankStack stack_of(const WorkerStacks& worker) {
  return {worker.state, worker.threads.empty() ? "" : worker.threads.front().stack, worker.trouble};
}

HangResponse::HangResponse(const AgentParts& parts, const Others& others, OnVerdict on_verdict)
    : parts_(parts),
      others_(others),
      on_verdict_(std::move(on_verdict)),
      core_(parts.job.hangs.restarts),
      events_([this](const hang_response::Event& event) { step(event); }) {}

void HangResponse::respond(const rdzv::Hung& hung, const JobStatus& status) {
  const CaseId id = new_case();
  cases_.at(id).status = status;
  post(hang_response::Found{id, hung});
}

HangResponse::CaseId HangResponse::new_case() {
  const CaseId id{++last_case_};
  cases_.try_emplace(id, parts_.io);
  return id;
}

void HangResponse::step(const hang_response::Event& event) {
  const auto actions = core_.step(event);
  // The end of a round changes nothing unless something was found in it.
  const bool matters = !actions.empty() || !std::holds_alternative<hang_response::RoundOver>(event);
  if (recorder_ != nullptr && matters) recorder_->note(ResponseInput{event}, actions.size());
  for (const hang_response::Action& action : actions) {
    std::visit([this](const auto& each) { perform(each); }, action);
  }
}

// Both answers come, or their limits: this node's, and those of all others.
void HangResponse::perform(const hang_response::TakeStacks& action) {
  const StackQuery question{action.ranks, action.without, /*is_brief=*/true};
  cases_.at(action.id).awaited = 2;
  const auto take = [this, id = action.id](const std::vector<WorkerStacks>& stacks, bool is_last) {
    const auto found = cases_.find(id);
    if (found == cases_.end()) return;
    for (const WorkerStacks& worker : stacks) found->second.stacks[worker.rank] = stack_of(worker);
    if (is_last && --found->second.awaited == 0) post(hang_response::StacksTaken{id});
  };
  others_.workers.stacks().show(question,
                                lifetime_.guard([take](const std::vector<WorkerStacks>& stacks) {
                                  take(stacks, /*is_last=*/true);
                                }));
  others_.job.ask(std::nullopt, to_json(question),
                  lifetime_.guard([take](const JobQuery::Outcome& outcome) {
                    for (const auto& [node, text] : outcome.answers) {
                      if (const auto stacks = worker_stacks_from(text)) take(*stacks, false);
                    }
                    take({}, /*is_last=*/true);
                  }),
                  kStackLimit + 1s);
}

void HangResponse::perform(const hang_response::Report& action) {
  Case& its = cases_.at(action.id);
  its.report = make_hang_report(action.hung, its.status, its.stacks);
  const std::string who = printable(ranks_in_words(its.report.hung.ranks));
  const std::string why = !its.report.hung.is_verdict()       ? "others wait for " + who
                          : its.report.hung.ranks.size() == 1 ? who + " hangs"
                                                              : who + " hang";
  parts_.console.say(Stream::kStderr,
                     "ddprun: what the ranks do while " + why + "\n" + to_text(its.report));
  others_.events.write(HangReported{its.report});
  std::vector<std::vector<int>> culprits;
  std::ranges::transform(its.report.culprits, std::back_inserter(culprits), &RanksAlike::ranks);
  post(hang_response::Reported{action.id, std::move(culprits)});
}

void HangResponse::perform(const hang_response::ReportWait& action) {
  parts_.log.warn(wait_line(action.wait, cases_.at(action.id).stacks, ::getpid()));
}

void HangResponse::perform(const hang_response::Confirm& action) {
  others_.watch.confirm(action.hung,
                        lifetime_.guard([this, id = action.id](std::optional<bool> is_so) {
                          post(hang_response::Confirmed{id, is_so});
                        }));
}

// A question for the ranks of each stack, to this node first.
void HangResponse::perform(const hang_response::End& action) {
  const HangReport& report = cases_.at(action.id).report;
  struct Answers {
    hang_response::EndAnswered all;
    std::function<void(hang_response::EndAnswered)> done;
    void add(const std::vector<int>& asked, const EndHungAnswer& answer) {
      std::vector<int> here;
      std::ranges::copy_if(asked, std::back_inserter(here), [&](int rank) {
        return std::ranges::count(answer.here, rank) > 0 &&
               std::ranges::count(all.known, rank) == 0;
      });
      all.known.insert(all.known.end(), here.begin(), here.end());
      if (!here.empty() && !answer.refused.empty()) all.refused.push_back({here, answer.refused});
    }
    ~Answers() { done(std::move(all)); }
  };
  // Held by every question: the last one tells.
  const std::shared_ptr<Answers> answers(new Answers{
      {action.id, {}, {}},
      lifetime_.guard([this](hang_response::EndAnswered all) { post(std::move(all)); })});
  for (const auto& ranks : action.ranks) {
    const auto alike = std::ranges::find_if(report.culprits, [&](const RanksAlike& each) {
      return std::ranges::count(each.ranks, ranks.front()) > 0;
    });
    const std::string stack = alike == report.culprits.end() ? "" : alike->stack;
    EndHung question{report.round, ranks, sentence(report.hung), stack};
    answers->add(ranks, end_here(question));
    std::erase_if(question.ranks,
                  [&](int rank) { return std::ranges::count(answers->all.known, rank) > 0; });
    if (question.ranks.empty()) continue;
    others_.job.ask(
        std::nullopt, to_json(question),
        lifetime_.guard([answers, asked = question.ranks](const JobQuery::Outcome& outcome) {
          for (const auto& [node, text] : outcome.answers) {
            if (const auto answer = end_hung_answer_from(text)) answers->add(asked, *answer);
          }
        }),
        kEndPatience);
  }
}

EndHungAnswer HangResponse::end_here(const EndHung& question) {
  EndHungAnswer answer;
  const rdzv::RoundStart* const round = others_.node.running_round();
  if (round == nullptr || round->round != question.round) return answer;
  for (const int rank : question.ranks) {
    const int local_rank = rank - round->rank_offset;
    if (local_rank < 0 || local_rank >= parts_.job.local_world_size) continue;
    answer.here.push_back(rank);
    if (!parts_.job.hangs.restarts) {
      answer.refused = parts_.host + " was started with --on-hang=report";
    } else if (others_.workers.is_to_end(local_rank, question.why, question.stack)) {
      on_verdict_(WorkerHung{round->round, local_rank});
    }
  }
  return answer;
}

void HangResponse::perform(const hang_response::ArmTimer& action) {
  cases_.at(action.id).timer.arm(action.after,
                                 [this, id = action.id] { post(hang_response::TimerExpired{id}); });
}

}  // namespace ddprun::agent
