#include "worker_lib/group/failure_diagnosis.h"

#include <ATen/core/Tensor.h>
#include <pthread.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include "ddprun/serialize.h"
#include "rendezvous/common/signals_blocked.h"
#include "worker_lib/c10d/client_store.h"
#include "worker_lib/c10d/error_text.h"
#include "worker_lib/c10d/shm_work.h"
#include "worker_lib/process/message_text.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;

constexpr auto kAnswersWithin = 1s;
// The second that is spoken of, less what to ask takes.
constexpr auto kSilence = 950ms;

std::vector<int> without(const std::vector<int>& ranks, const std::vector<int>& taken) {
  std::vector<int> left;
  for (const int rank : ranks) {
    if (std::find(taken.begin(), taken.end(), rank) == taken.end()) left.push_back(rank);
  }
  return left;
}

bool wait_for_all(c10d::Store& store, const std::vector<std::string>& keys,
                  std::chrono::milliseconds timeout) {
  try {
    if (!keys.empty()) store.wait(keys, timeout);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

std::string Activity::to_string() const {
  return c10::str(call, tensors.empty() ? "" : " of " + tensors, " (call ", number,
                  group.find('/') == std::string::npos ? "" : " of the smaller group " + group,
                  ")");
}

FailureDiagnosis::FailureDiagnosis(c10::intrusive_ptr<c10d::Store> store, std::string name,
                                   int rank, std::vector<int> all_ranks, std::string host)
    : store_(std::move(store)),
      name_(std::move(name)),
      rank_(rank),
      all_ranks_(std::move(all_ranks)),
      host_(std::move(host)) {
  auto* const client = dynamic_cast<ClientStore*>(store_.get());
  if (client == nullptr) return;
  try {
    answering_store_ = client->clone();
  } catch (const std::exception&) {
    return;  // one diagnosis less
  }
  const AllSignalsBlocked blocked;
  answering_ = std::thread([this] {
    ::pthread_setname_np(::pthread_self(), "ddprun-diag");
    answer_question(*answering_store_);
  });
}

FailureDiagnosis::~FailureDiagnosis() {
  if (!answering_.joinable()) return;
  is_ending_ = true;
  static_cast<ClientStore&>(*answering_store_).shut_down();
  answering_.join();
}

// Those whose report is not there. Few questions when few are missing, however many there are.
void FailureDiagnosis::find_missing(c10d::Store& store, std::span<const int> ranks,
                                    std::vector<int>& missing) const {
  if (ranks.empty()) return;
  std::vector<std::string> keys;
  for (const int rank : ranks) keys.push_back(report_key(rank));
  if (store.check(keys)) return;
  if (ranks.size() == 1) return missing.push_back(ranks[0]);
  find_missing(store, ranks.first(ranks.size() / 2), missing);
  find_missing(store, ranks.subspan(ranks.size() / 2), missing);
}

void FailureDiagnosis::answer_question(c10d::Store& store) {
  constexpr auto kForever = std::chrono::hours(24 * 365);
  try {
    store.wait({question_key()}, kForever);
  } catch (const std::exception&) {
    if (aborts_ && !is_ending_) abort_groups(store_is_gone());
    return;  // shut down, or the store is gone
  }
  publish(store, Kind::kAlive);
  if (!aborts_ || is_ending_) return;
  std::string found;
  try {
    store.setTimeout(kAnswersWithin);
    found = findings(store, all_ranks_, activity(), /*is_death_seen=*/false);
  } catch (const std::exception&) {
    found = store_is_gone();
  }
  abort_groups(found);
}

// ---- groups whose calls do not end by themselves

void FailureDiagnosis::abort_when_broken(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  const std::scoped_lock lock(groups_mutex_);
  groups_.emplace_back(group);
  aborts_ = true;
}

void FailureDiagnosis::forget_groups() {
  const std::scoped_lock lock(groups_mutex_);
  groups_.clear();
  aborts_ = false;
}

void FailureDiagnosis::abort_groups(const std::string& found) {
  std::vector<c10::intrusive_ptr<c10d::ProcessGroup>> groups;
  {
    const std::scoped_lock lock(groups_mutex_);
    if (!found_.empty()) return;
    found_ = found;
    for (const auto& each : groups_) {
      if (auto group = each.lock()) groups.push_back(std::move(group));
    }
  }
  is_broken_.store(true, std::memory_order_release);  // before any call ends by it
  for (const auto& group : groups) {
    try {
      group->abort();
    } catch (const std::exception&) {
    }
  }
}

Failure FailureDiagnosis::failure_of_broken() {
  return explain(all_ranks_, Failure(ErrorCode::kUnavailable, "the group was aborted"));
}

void FailureDiagnosis::report_death(int rank) noexcept {
  try {
    const auto own = connect_anew();
    const auto report = from_bytes<Report>(
        own->compareSet(report_key(rank), "", to_bytes(Report{Kind::kDied, {}, {}})));
    if (report.kind == Kind::kLeft) return;
    ask(*own);
    // The thread that answers may have done so when there was no group to abort.
    if (aborts_) abort_groups(findings(*own, all_ranks_, activity(), /*is_death_seen=*/false));
  } catch (const std::exception&) {
    if (!is_ending_) abort_groups(store_is_gone());
  }
}

// ---- what the main thread does

void FailureDiagnosis::enter(const char* call, const std::string& group, std::int64_t number,
                             const at::Tensor* tensor) {
  const std::scoped_lock lock(activity_mutex_);
  call_ = call;
  group_ = group;
  number_ = number;
  type_.reset();
  if (tensor != nullptr) {
    type_ = tensor->scalar_type();
    sizes_.assign(tensor->sizes().begin(), tensor->sizes().end());
  }
  is_waiting_ = true;
  since_ = Clock::now();
}

void FailureDiagnosis::exit() {
  const std::scoped_lock lock(activity_mutex_);
  is_waiting_ = false;
  since_ = Clock::now();
}

Activity FailureDiagnosis::activity() const {
  const std::scoped_lock lock(activity_mutex_);
  Activity now;
  if (call_ == nullptr) return now;
  now.call = call_;
  now.group = group_;
  now.number = number_;
  if (type_) now.tensors = c10::str(c10::toString(*type_), c10::IntArrayRef(sizes_));
  now.is_waiting = is_waiting_;
  now.for_ms = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - since_).count();
  return now;
}

void FailureDiagnosis::publish(c10d::Store& store, Kind kind, const std::string& why) {
  const std::scoped_lock lock(report_mutex_);
  if (std::exchange(has_reported_, true)) return;
  const auto timeout = store.getTimeout();
  try {
    store.setTimeout(kAnswersWithin);
    store.set(report_key(rank_), to_bytes(Report{kind, why, activity()}));
    // An answer says that the report has arrived, before any connection closes.
    store.check({report_key(rank_)});
  } catch (const std::exception&) {
  }
  store.setTimeout(timeout);
}

void FailureDiagnosis::end(c10d::Store& store) {
  try {
    store.set(end_key(rank_), std::vector<std::uint8_t>{1});
  } catch (const std::exception&) {
  }
}

void FailureDiagnosis::ask(c10d::Store& store) {
  store.set(question_key(), std::vector<std::uint8_t>{1});
}

void FailureDiagnosis::leave() {
  is_ending_ = true;
  end(*store_);
  publish(*store_, Kind::kLeft);
}

void FailureDiagnosis::fail(const std::string& why) {
  is_ending_ = true;
  end(*store_);
  publish(*store_, Kind::kFailed, why);
  if (!aborts_) return;
  try {
    ask(*store_);  // on behalf of those who wait for this rank, and would never ask
  } catch (const std::exception&) {
  }
}

bool FailureDiagnosis::await_end(std::chrono::milliseconds timeout) {
  std::vector<std::string> keys;
  for (const int rank : without(all_ranks_, {rank_})) keys.push_back(end_key(rank));
  return wait_for_all(*store_, keys, timeout);
}

std::string FailureDiagnosis::findings(c10d::Store& store, const std::vector<int>& ranks,
                                       const Activity& mine, bool is_death_seen) {
  std::map<int, Report> reports;
  const std::vector<int> others = without(ranks, {rank_});
  const auto read = [&] {
    std::vector<int> missing;
    find_missing(store, others, missing);
    for (const int rank : without(others, missing)) {
      if (reports.contains(rank)) continue;
      reports[rank] = from_bytes<Report>(store.get_to_str(report_key(rank)));
    }
    return missing;
  };
  const auto of_kind = [&](Kind kind) {
    std::vector<int> found;
    for (const auto& [rank, report] : reports) {
      if (report.kind == kind) found.push_back(rank);
    }
    return found;
  };

  // Who fails says so before anybody could notice.
  std::vector<int> missing = read();
  if (is_death_seen && of_kind(Kind::kFailed).empty()) return {};
  if (of_kind(Kind::kFailed).empty() && of_kind(Kind::kDied).empty() && !missing.empty()) {
    std::vector<std::string> keys;
    for (const int rank : missing) keys.push_back(report_key(rank));
    wait_for_all(store, keys, kSilence);
    missing = read();
  }

  if (const auto failed = of_kind(Kind::kFailed); !failed.empty()) {
    return ranks_text(failed) + " failed: " + reports[failed.front()].why;
  }
  if (const auto died = of_kind(Kind::kDied); !died.empty()) {
    return ranks_text(died) +
           " died, as the launcher says: killed or crashed, or its machine is lost";
  }
  std::string gone;
  if (!missing.empty()) {
    gone = ranks_text(missing) +
           (answering_.joinable()
                ? " gave no sign of life within 1 s: killed, crashed or stopped, or the machine is "
                  "lost"
                : " did not come, and left no word");
  }
  if (const auto left = of_kind(Kind::kLeft); !left.empty()) {
    if (!gone.empty()) gone += "; ";
    gone += ranks_text(left) +
            " had left in good order by then: do all ranks make the same number of calls?";
  }
  if (!gone.empty()) return gone;
  std::vector<int> elsewhere;
  for (const auto& [rank, report] : reports) {
    if (!report.activity.is_in_same_call(mine)) elsewhere.push_back(rank);
  }
  if (elsewhere.empty()) {
    std::string text = "all ranks are alive and in this call";
    for (const auto& [rank, report] : reports) {
      if (report.activity.tensors == mine.tensors) continue;
      return text + ", but rank " + std::to_string(rank) + " with " + report.activity.tensors;
    }
    return text + ": a connection between two of them broke, or is slow";
  }
  const Activity& other = reports[elsewhere.front()].activity;
  std::string text = ranks_text(elsewhere) + (elsewhere.size() == 1 ? " is" : " are") +
                     " alive but not in this call: rank " + std::to_string(elsewhere.front());
  if (other.call.empty()) return text + " has made no call so far";
  return text + (other.is_waiting ? " has been in " : " has been elsewhere for ") +
         (other.is_waiting
              ? other.to_string() + " for " + seconds_text(std::chrono::milliseconds(other.for_ms))
              : seconds_text(std::chrono::milliseconds(other.for_ms)) + ", since " +
                    other.to_string());
}

Failure FailureDiagnosis::explain(const std::vector<int>& ranks, const std::exception& error) {
  return explain(*store_, ranks, error);
}

Failure FailureDiagnosis::explain(c10d::Store& store, const std::vector<int>& ranks,
                                  const std::exception& error) {
  const Activity mine = activity();
  const std::string text = error_line(error);
  const ErrorCode code = code_of(error);
  if (is_broken()) {
    end(store);
    const std::scoped_lock lock(groups_mutex_);
    return failure(mine, found_, text, code);
  }
  publish(store, Kind::kAlive);
  std::string found;
  try {
    store.setTimeout(kAnswersWithin);  // of every question from here on
    ask(store);
    found = findings(store, ranks, mine, /*is_death_seen=*/code == ErrorCode::kClosed);
  } catch (const std::exception&) {
    found = store_is_gone();
  }
  end(store);
  return failure(mine, found, text, code);
}

Failure FailureDiagnosis::failure(const Activity& mine, const std::string& found,
                                  const std::string& text, ErrorCode code) const {
  std::ostringstream message;
  if (mine.is_waiting) {
    message << mine.to_string() << " failed on rank " << rank_ << " after "
            << seconds_text(std::chrono::milliseconds(mine.for_ms));
  } else {
    message << "communication failed on rank " << rank_;
    if (!mine.call.empty()) message << ", after " << mine.to_string();
  }
  message << ": " << (found.empty() ? text : found + " (" + text + ")");
  return Failure(code == ErrorCode::kTimeout ? code : ErrorCode::kUnavailable, message.str());
}

std::string FailureDiagnosis::store_is_gone() const {
  return "the store that could say who is missing does not answer either: " + host_ +
         ", which serves it, is gone or cannot be reached";
}

c10::intrusive_ptr<c10d::Store> FailureDiagnosis::connect_anew() const {
  auto* const client = dynamic_cast<ClientStore*>(store_.get());
  return client != nullptr ? client->clone_within(kAnswersWithin) : store_->clone();
}

std::string FailureDiagnosis::explain_abort(const std::exception& error) noexcept {
  std::string text = error_text(error);
  try {
    const auto own = connect_anew();
    if (dynamic_cast<const c10::DistError*>(&error) != nullptr) {
      text = explain(*own, all_ranks_, error).what();
    }
    end(*own);
    publish(*own, Kind::kFailed, text.substr(0, text.find('\n')));
  } catch (const std::exception&) {
  }
  return text;
}

}  // namespace ddprun
