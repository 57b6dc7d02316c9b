// Decoder and core against a model that is too simple to be wrong in the same way: random requests
// of a few clients on a few names, sent in random pieces; after each, every client's bytes must
// agree.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>
#include <set>

#include "rendezvous/store_wire/store_encoder.h"
#include "tests/unit/rendezvous/store/golden.h"
#include "tests/unit/rendezvous/store/memory_store.h"

namespace ddprun::rdzv::testing {
namespace {

using wire::Query;
using wire::RequestEncoder;

using Replies = std::map<ClientId, std::string>;

std::string number(std::int64_t value) {
  std::string bytes;
  wire::append(bytes, value);
  return bytes;
}

std::string field(const std::string& value) {
  return number(static_cast<std::int64_t>(value.size())) + value;
}

class Model {
 public:
  // Each returns what every client receives by it.
  Replies set(const std::string& key, const std::string& value) {
    values_[key] = value;
    return arrived(key);
  }

  Replies multi_set(const std::vector<std::pair<std::string, std::string>>& entries) {
    Replies all;
    for (const auto& [key, value] : entries) {
      for (const auto& [client, bytes] : set(key, value)) all[client] += bytes;
    }
    return all;
  }

  Replies compare_set(ClientId client, const std::string& key, const std::string& expected,
                      const std::string& desired) {
    const bool is_absent = !values_.contains(key);
    if (is_absent && !expected.empty()) return {{client, field(expected)}};
    Replies replies;
    if (is_absent || values_[key] == expected) replies = set(key, desired);
    replies[client] += field(values_[key]);
    return replies;
  }

  Replies add(ClientId client, const std::string& key, std::int64_t delta) {
    const std::int64_t sum = (values_.contains(key) ? std::stoll(values_[key]) : 0) + delta;
    Replies replies = set(key, std::to_string(sum));
    replies[client] += number(sum);
    return replies;
  }

  Replies append(const std::string& key, const std::string& value) {
    return set(key, values_.contains(key) ? values_[key] + value : value);
  }

  Replies get(ClientId client, const std::string& key) {
    return {{client, field(values_.contains(key) ? values_[key] : "")}};
  }

  Replies check(ClientId client, const std::vector<std::string>& keys) {
    const bool all =
        std::all_of(keys.begin(), keys.end(), [this](auto& key) { return is_present(key); });
    return {{client, std::string(1, all ? wire::kReady : wire::kNotReady)}};
  }

  Replies erase(ClientId client, const std::string& key) {
    return {{client, number(values_.erase(key) > 0 ? 1 : 0)}};
  }
  Replies num_keys(ClientId client) {
    return {{client, number(static_cast<std::int64_t>(values_.size()))}};
  }

  Replies wait(ClientId client, const std::vector<std::string>& keys) {
    forget(client);
    std::set<std::string> missing;
    for (const auto& key : keys) {
      if (!is_present(key)) missing.insert(key);
    }
    if (missing.empty()) return {{client, std::string(1, wire::kStopWaiting)}};
    waiting_.push_back({client, missing});
    return {};
  }

  Replies cancel(ClientId client) {
    forget(client);
    return {{client, std::string(1, wire::kWaitCanceled)}};
  }

  Replies barrier(ClientId client, const std::string& key, std::int64_t world_size) {
    const std::int64_t count = (values_.contains(key) ? std::stoll(values_[key]) : 0) + 1;
    values_[key] = std::to_string(count);
    forget(client);
    if (count >= world_size) {
      Replies replies = arrived(key);
      replies[client] += wire::kStopWaiting;
      return replies;
    }
    waiting_.push_back({client, {key}});
    return {};
  }

  Replies push(const std::string& name, const std::string& item) {
    queues_[name].push_back(item);
    return item_arrived(name);
  }

  Replies pop(ClientId client, const std::string& name) {
    auto& queue = queues_[name];
    std::string reply = number(static_cast<std::int64_t>(queue.size()));
    if (!queue.empty()) {
      reply += field(queue.front());
      queue.pop_front();
    }
    return {{client, reply}};
  }

  Replies length(ClientId client, const std::string& name) {
    return {{client, number(static_cast<std::int64_t>(queues_[name].size()))}};
  }

  Replies leave(ClientId client) {
    forget(client);
    return pass_on(client, "");
  }

  // To be called before any request of `client`; `popped` names the queue if it is a QUEUE_POP.
  Replies pass_on(ClientId client, const std::string& popped) {
    const auto woken = woken_.find(client);
    if (woken == woken_.end()) return {};
    const std::string name = woken->second;
    woken_.erase(woken);
    return name == popped || queues_[name].empty() ? Replies{} : item_arrived(name);
  }

  bool is_number(const std::string& key) const {
    const auto found = values_.find(key);
    return found == values_.end() ||
           (!found->second.empty() && found->second.size() < 15 &&
            found->second.find_first_not_of("-0123456789") == std::string::npos &&
            found->second.rfind('-') + 1 < 2);
  }

 private:
  struct Waiting {
    ClientId client;
    std::set<std::string> missing;
  };

  bool is_present(const std::string& name) {
    return values_.contains(name) || !queues_[name].empty();
  }
  void forget(ClientId client) {
    std::erase_if(waiting_, [client](const Waiting& waiting) { return waiting.client == client; });
  }

  Replies arrived(const std::string& name) {
    Replies released;
    for (auto& waiting : waiting_) {
      if (waiting.missing.erase(name) > 0 && waiting.missing.empty()) {
        released[waiting.client] += wire::kStopWaiting;
      }
    }
    std::erase_if(waiting_, [](const Waiting& waiting) { return waiting.missing.empty(); });
    return released;
  }

  Replies item_arrived(const std::string& name) {
    for (auto waiting = waiting_.begin(); waiting != waiting_.end(); ++waiting) {
      if (waiting->missing.erase(name) == 0 || !waiting->missing.empty()) continue;
      const ClientId client = waiting->client;
      waiting_.erase(waiting);
      woken_[client] = name;
      return {{client, std::string(1, wire::kStopWaiting)}};
    }
    return {};
  }

  std::map<std::string, std::string> values_;
  std::map<std::string, std::deque<std::string>> queues_;
  std::vector<Waiting> waiting_;  // longest first
  std::map<ClientId, std::string> woken_;
};

class Driver {
 public:
  explicit Driver(std::uint64_t seed) : random_(seed) {
    for (int i = 0; i < 5; ++i) join();
  }

  void step() {
    const ClientId client = clients_[pick(clients_.size())];
    if (pick(200) == 0) return replace(client);
    const std::string key = name();
    RequestEncoder request = RequestEncoder(Query::kPing);
    Replies expected;
    const auto before = [&](const std::string& popped = "") {
      expected = model_.pass_on(client, popped);
    };
    const auto add = [&](const Replies& more) {
      for (const auto& [who, bytes] : more) expected[who] += bytes;
    };
    switch (pick(16)) {
      case 0:
      case 1: {
        const std::string value = this->value();
        request = RequestEncoder(Query::kSet).bytes(key).bytes(value);
        before();
        add(model_.set(key, value));
        break;
      }
      case 2: {
        const std::string expected_value = pick(2) == 0 ? "" : value(), desired = value();
        request =
            RequestEncoder(Query::kCompareSet).bytes(key).bytes(expected_value).bytes(desired);
        before();
        add(model_.compare_set(client, key, expected_value, desired));
        break;
      }
      case 3:
        request = RequestEncoder(Query::kGet).bytes(key);
        before();
        add(model_.get(client, key));
        break;
      case 4: {
        if (!model_.is_number(key)) return;  // would close; the transcripts cover that
        const auto delta = static_cast<std::int64_t>(pick(7)) - 3;
        request = RequestEncoder(Query::kAdd).bytes(key).number(delta);
        before();
        add(model_.add(client, key, delta));
        break;
      }
      case 5: {
        const auto keys = names();
        request = list(Query::kCheck, keys);
        before();
        add(model_.check(client, keys));
        break;
      }
      case 6:
      case 7:
      case 8: {
        const auto keys = names();
        request = list(Query::kWait, keys);
        before();
        add(model_.wait(client, keys));
        break;
      }
      case 9:
        request = RequestEncoder(Query::kDeleteKey).bytes(key);
        before();
        add(model_.erase(client, key));
        break;
      case 10: {
        const std::string value = this->value();
        request = RequestEncoder(Query::kAppend).bytes(key).bytes(value);
        before();
        add(model_.append(key, value));
        break;
      }
      case 11: {
        std::vector<std::pair<std::string, std::string>> entries;
        for (std::size_t i = pick(4); i > 0; --i) entries.emplace_back(name(), value());
        request = RequestEncoder(Query::kMultiSet).number<std::uint64_t>(entries.size());
        for (const auto& [entry_key, entry_value] : entries)
          request.bytes(entry_key).bytes(entry_value);
        before();
        add(model_.multi_set(entries));
        break;
      }
      case 12:
        request = RequestEncoder(Query::kCancelWait);
        before();
        add(model_.cancel(client));
        break;
      case 13: {
        const std::string item = value();
        request = RequestEncoder(Query::kQueuePush).bytes(key).bytes(item);
        before();
        add(model_.push(key, item));
        break;
      }
      case 14:
        if (pick(3) == 0) {
          request = RequestEncoder(Query::kQueueLen).bytes(key);
          before();
          add(model_.length(client, key));
        } else {
          request = RequestEncoder(Query::kQueuePop).bytes(key);
          before(key);
          add(model_.pop(client, key));
        }
        break;
      case 15: {
        if (!model_.is_number(key)) return;
        const auto world_size = static_cast<std::int64_t>(pick(4));
        request = RequestEncoder(Query::kBarrier).bytes(key).number(world_size);
        before();
        add(model_.barrier(client, key, world_size));
        break;
      }
    }
    send_in_pieces(client, request.str());
    compare(expected);
  }

 private:
  std::size_t pick(std::size_t below) { return random_() % below; }
  std::string name() { return std::string(1, static_cast<char>('a' + pick(5))); }
  std::vector<std::string> names() {
    std::vector<std::string> names(pick(4));
    for (auto& one : names) one = name();
    return names;
  }
  std::string value() {
    if (pick(100) == 0) return std::string(limits::kDetachedValueBytes - 2 + pick(5), 'x');
    return pick(2) == 0 ? std::to_string(pick(3)) : std::string(pick(4), 'v');
  }
  static RequestEncoder list(Query query, const std::vector<std::string>& keys) {
    RequestEncoder request(query);
    request.number<std::uint64_t>(keys.size());
    for (const auto& key : keys) request.bytes(key);
    return request;
  }

  void join() {
    clients_.push_back(store_.connect());
    store_.send(clients_.back(), kHandshake);
  }

  void replace(ClientId client) {
    store_.disconnect(client);
    std::erase(clients_, client);
    compare(model_.leave(client));
    join();
  }

  void send_in_pieces(ClientId client, std::string_view bytes) {
    while (!bytes.empty()) {
      const std::size_t part =
          pick(3) == 0 ? std::min<std::size_t>(1 + pick(9), bytes.size()) : bytes.size();
      ASSERT_TRUE(store_.send(client, bytes.substr(0, part)));
      bytes.remove_prefix(part);
    }
  }

  void compare(const Replies& expected) {
    for (const ClientId client : clients_) {
      const auto found = expected.find(client);
      ASSERT_EQ(to_hex(store_.take(client)), to_hex(found == expected.end() ? "" : found->second))
          << "of client " << client;
    }
  }

  std::mt19937_64 random_;
  MemoryStore store_;
  Model model_;
  std::vector<ClientId> clients_;
};

TEST(StoreModel, AgreesOnRandomRequests) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Driver driver(seed);
    for (int i = 0; i < 1000; ++i) {
      driver.step();
      if (::testing::Test::HasFatalFailure()) FAIL() << "at step " << i;
    }
  }
}

}  // namespace
}  // namespace ddprun::rdzv::testing
