#include "worker_lib/group/roll_call.h"

#include <ATen/core/Tensor.h>
#include <pthread.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "ddprun/serialize.h"
#include "rendezvous/common/signals_blocked.h"
#include "worker_lib/c10d/client_store.h"
#include "worker_lib/c10d/shm_work.h"
#include "worker_lib/c10d/words.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;

constexpr auto kAnswersWithin = 1s;
constexpr std::size_t kMostNamed = 8;

std::vector<std::uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

std::string seconds_text(std::int64_t ms) {
  std::ostringstream text;
  text.precision(3);
  text << static_cast<double>(ms) / 1000 << " s";
  return text.str();
}

// "rank 2", "ranks 2 and 5", "ranks 0, 1, 2 and 30 more"
std::string names_of(const std::vector<int>& ranks) {
  std::ostringstream text;
  text << (ranks.size() == 1 ? "rank " : "ranks ");
  const std::size_t named = ranks.size() > kMostNamed ? kMostNamed : ranks.size();
  for (std::size_t i = 0; i < named; ++i) {
    const bool is_last = i + 1 == ranks.size();
    text << (i == 0 ? "" : is_last ? " and " : ", ") << ranks[i];
  }
  if (named < ranks.size()) text << " and " << ranks.size() - named << " more";
  return text.str();
}

std::vector<int> without(const std::vector<int>& ranks, const std::vector<int>& taken) {
  std::vector<int> left;
  for (const int rank : ranks) {
    if (std::find(taken.begin(), taken.end(), rank) == taken.end()) left.push_back(rank);
  }
  return left;
}

}  // namespace

std::string Doing::to_string() const {
  std::ostringstream text;
  text << call;
  if (!tensors.empty()) text << " of " << tensors;
  text << " (call " << number;
  if (group.find('/') != std::string::npos) text << " of the smaller group " << group;
  text << ")";
  return text.str();
}

RollCall::RollCall(c10::intrusive_ptr<c10d::Store> store, std::string name, int rank,
                   std::string host)
    : store_(std::move(store)), name_(std::move(name)), rank_(rank), host_(std::move(host)) {
  auto* const client = dynamic_cast<ClientStore*>(store_.get());
  if (client == nullptr) return;
  try {
    watched_ = client->clone();
  } catch (const std::exception&) {
    return;  // one diagnosis less
  }
  const AllSignalsBlocked blocked;
  watch_ = std::thread([this] {
    ::pthread_setname_np(::pthread_self(), "ddprun-roll");
    answer_calls(*watched_);
  });
}

RollCall::~RollCall() {
  if (!watch_.joinable()) return;
  static_cast<ClientStore&>(*watched_).shut_down();
  watch_.join();
}

bool RollCall::wait_for(const std::vector<int>& ranks, KeyOf key_of,
                        std::chrono::milliseconds timeout) const {
  std::vector<std::string> keys;
  for (const int rank : ranks) keys.push_back((this->*key_of)(rank));
  try {
    if (!keys.empty()) store_->wait(keys, timeout);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// Those whose word is not there. Few questions when few are missing, however many there are.
void RollCall::find_missing(const std::vector<int>& ranks, std::size_t begin, std::size_t end,
                            std::vector<int>& missing) const {
  if (begin == end) return;
  std::vector<std::string> keys;
  for (std::size_t i = begin; i < end; ++i) keys.push_back(word_key(ranks[i]));
  if (store_->check(keys)) return;
  if (end - begin == 1) return missing.push_back(ranks[begin]);
  const std::size_t middle = begin + (end - begin) / 2;
  find_missing(ranks, begin, middle, missing);
  find_missing(ranks, middle, end, missing);
}

std::vector<int> RollCall::missing_of(const std::vector<int>& ranks) const {
  std::vector<int> missing;
  find_missing(ranks, 0, ranks.size(), missing);
  return missing;
}

void RollCall::answer_calls(c10d::Store& store) {
  constexpr auto kForever = std::chrono::hours(24 * 365);
  try {
    store.wait({call_key()}, kForever);
  } catch (const std::exception&) {
    return;  // shut down, or the store is gone
  }
  give(store, {Kind::kHere, {}, doing()});
}

void RollCall::enter(const char* call, const std::string& group, std::int64_t number,
                     const at::Tensor* tensor) {
  const std::scoped_lock lock(doing_mutex_);
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

void RollCall::exit() {
  const std::scoped_lock lock(doing_mutex_);
  is_waiting_ = false;
  since_ = Clock::now();
}

Doing RollCall::doing() const {
  const std::scoped_lock lock(doing_mutex_);
  Doing now;
  if (call_ == nullptr) return now;
  now.call = call_;
  now.group = group_;
  now.number = number_;
  if (type_) {
    std::ostringstream text;
    text << c10::toString(*type_) << c10::IntArrayRef(sizes_);
    now.tensors = text.str();
  }
  now.is_waiting = is_waiting_;
  now.for_ms = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - since_).count();
  return now;
}

void RollCall::give(c10d::Store& store, Word word) {
  const std::scoped_lock lock(word_mutex_);
  if (has_given_word_) return;
  has_given_word_ = true;
  const auto timeout = store.getTimeout();
  try {
    store.setTimeout(kAnswersWithin);
    store.set(word_key(rank_), bytes_of(to_bytes(word)));
    // An answer says that the word has arrived, before any connection closes.
    store.check({word_key(rank_)});
  } catch (const std::exception&) {
  }
  store.setTimeout(timeout);
}

void RollCall::end() {
  try {
    store_->set(end_key(rank_), std::vector<std::uint8_t>{1});
  } catch (const std::exception&) {
  }
}

void RollCall::leave() {
  end();
  give(*store_, {Kind::kLeft, {}, doing()});
}

void RollCall::fail(const std::string& why) {
  end();
  give(*store_, {Kind::kFailed, why, doing()});
}

bool RollCall::await_end(const std::vector<int>& ranks, std::chrono::milliseconds timeout) {
  return wait_for(without(ranks, {rank_}), &RollCall::end_key, timeout);
}

std::string RollCall::findings(const std::vector<int>& ranks, const Doing& mine,
                               bool is_death_seen) {
  std::map<int, Word> words;
  const std::vector<int> others = without(ranks, {rank_});
  const auto read = [&] {
    std::vector<int> missing = missing_of(others);
    for (const int rank : without(others, missing)) {
      if (words.contains(rank)) continue;
      const auto bytes = store_->get(word_key(rank));
      words[rank] = from_bytes<Word>({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    }
    return missing;
  };
  const auto of_kind = [&](Kind kind) {
    std::vector<int> found;
    for (const auto& [rank, word] : words) {
      if (word.kind == kind) found.push_back(rank);
    }
    return found;
  };

  // Who fails says so before anybody could notice.
  std::vector<int> missing = read();
  if (is_death_seen && of_kind(Kind::kFailed).empty()) return {};
  if (of_kind(Kind::kFailed).empty() && !missing.empty()) {
    wait_for(missing, &RollCall::word_key, kAnswersWithin);
    missing = read();
  }

  if (const auto failed = of_kind(Kind::kFailed); !failed.empty()) {
    return names_of(failed) + " failed: " + words[failed.front()].why;
  }
  std::string gone;
  if (!missing.empty()) {
    gone = names_of(missing) +
           (watch_.joinable()
                ? " gave no sign of life within 1 s: killed, crashed or stopped, or the machine is "
                  "lost"
                : " did not come, and left no word");
  }
  if (const auto left = of_kind(Kind::kLeft); !left.empty()) {
    if (!gone.empty()) gone += "; ";
    gone += names_of(left) +
            " had left in good order by then: do all ranks make the same number of calls?";
  }
  if (!gone.empty()) return gone;
  std::vector<int> elsewhere;
  for (const auto& [rank, word] : words) {
    if (!word.doing.is_in_the_same(mine)) elsewhere.push_back(rank);
  }
  if (elsewhere.empty()) {
    std::string text = "all ranks are alive and in this call";
    for (const auto& [rank, word] : words) {
      if (word.doing.tensors == mine.tensors) continue;
      return text + ", but rank " + std::to_string(rank) + " with " + word.doing.tensors;
    }
    return text + ": a connection between two of them broke, or is slow";
  }
  const Doing& other = words[elsewhere.front()].doing;
  std::string text = names_of(elsewhere) + (elsewhere.size() == 1 ? " is" : " are") +
                     " alive but not in this call: rank " + std::to_string(elsewhere.front());
  if (other.call.empty()) return text + " has made no call so far";
  return text + (other.is_waiting ? " has been in " : " has been elsewhere for ") +
         (other.is_waiting ? other.to_string() + " for " + seconds_text(other.for_ms)
                           : seconds_text(other.for_ms) + ", since " + other.to_string());
}

Failure RollCall::explain(const std::vector<int>& ranks, const std::exception& error) {
  const Doing mine = doing();
  const std::string words = words_of(error);
  const ErrorCode code = code_of(error);
  give(*store_, {Kind::kHere, {}, mine});
  std::string found;
  try {
    store_->setTimeout(kAnswersWithin);  // of every question from here on
    store_->set(call_key(), std::vector<std::uint8_t>{1});
    found = findings(ranks, mine, /*is_death_seen=*/code == ErrorCode::kClosed);
  } catch (const std::exception&) {
    found = "the store that could say who is missing does not answer either: " + host_ +
            ", which serves it, is gone or cannot be reached";
  }
  end();
  std::ostringstream message;
  if (mine.is_waiting) {
    message << mine.to_string() << " failed on rank " << rank_ << " after "
            << seconds_text(mine.for_ms);
  } else {
    message << "communication failed on rank " << rank_;
    if (!mine.call.empty()) message << ", after " << mine.to_string();
  }
  message << ": " << (found.empty() ? words : found + " (" + words + ")");
  return Failure(code == ErrorCode::kTimeout ? code : ErrorCode::kUnavailable, message.str());
}

}  // namespace ddprun
