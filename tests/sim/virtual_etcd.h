// A model of etcd in virtual time, behind the JSON of its gateway, as far as the election needs it:
// keys with revisions, transactions, leases that expire, and watches from a revision on. It is one
// process, whatever the number of real members; while it is unavailable its leases do not expire,
// as in the real one. Answers are lost, and requests to a member that hung are performed late.
#pragma once

#include <algorithm>
#include <boost/json.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/common/base64.h"
#include "rendezvous/common/clock.h"
#include "rendezvous/etcd/etcd_http.h"
#include "rendezvous/etcd/etcd_messages.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/random.h"

namespace ddprun::sim {

class VirtualEtcd {
 public:
  using EtcdEvent = rdzv::wire::EtcdEvent;
  using EtcdKeyValue = rdzv::wire::EtcdKeyValue;
  using EtcdPut = rdzv::wire::EtcdPut;

  // Until `calm`, answers are lost and requests are performed late.
  VirtualEtcd(EventQueue& queue, Random& random, CoreTime calm)
      : queue_(queue), random_(random), calm_(calm) {}

  // The client of agent `who`, for any number of endpoints.
  std::unique_ptr<rdzv::EtcdHttp> client(int who, ProcessPtr process) {
    return std::make_unique<Http>(*this, who, std::move(process));
  }

  // For the invariants: called before a put takes place, with the sender of its transaction; and
  // before a lease is revoked.
  std::function<void(int who, const EtcdPut&)> on_put;
  std::function<void(int who, std::int64_t lease)> on_revoke;

  // ---- faults

  void set_up(bool is_up) {
    is_up_ = is_up;
    for (auto& [lease, each] : leases_) each.ends = queue_.now() + each.time;
    end_watches();
  }

  void set_cut_off(int who, bool is_cut_off) {
    cut_off_[who] = is_cut_off;
    end_watches();
  }

  EtcdKeyValue find(const std::string& key) const {
    const auto found = entries_.find(key);
    return found == entries_.end() ? EtcdKeyValue{} : found->second;
  }

 private:
  using HttpReply = rdzv::HttpReply;
  using HttpRequest = rdzv::HttpRequest;
  using HttpStream = rdzv::HttpStream;
  using JsonValue = boost::json::value;

  struct Lease {
    CoreTime::duration time{};
    CoreTime ends;
  };
  struct Watch {
    int who = 0;
    ProcessPtr process;
    std::string key;
    std::int64_t from = 0;
    std::weak_ptr<HttpStream::Events> events;  // expired: it was closed
    CoreTime last_arrival{};
  };
  using WatchPtr = std::shared_ptr<Watch>;

  static constexpr std::chrono::milliseconds kTimeLimit{666};  // of a request
  static constexpr CoreTime::duration kShortest{200};          // on its way
  static constexpr CoreTime::duration kLongest{5'000};
  static constexpr std::chrono::seconds kHung{3};  // a member; then it performs old requests
  static constexpr int kLostPercent = 2;
  static constexpr int kLatePercent = 2;

  // ---- JSON

  static std::string quoted(std::int64_t number) { return '"' + std::to_string(number) + '"'; }
  static std::string in_json(const EtcdKeyValue& entry) {
    return "{\"key\":\"" + to_base64(entry.key) +
           "\",\"create_revision\":" + quoted(entry.create_revision) +
           ",\"mod_revision\":" + quoted(entry.mod_revision) + ",\"value\":\"" +
           to_base64(entry.value) + "\",\"lease\":" + quoted(entry.lease) + "}";
  }
  static std::string header(std::int64_t revision) {
    return "\"header\":{\"revision\":" + quoted(revision) + "}";
  }
  static std::int64_t number_at(const JsonValue& text) {
    return std::stoll(std::string(text.as_string()));
  }
  static std::string bytes_at(const JsonValue& text) {
    return from_base64(std::string_view(text.as_string())).value();
  }
  static HttpReply reply(unsigned status, std::string body) {
    return {status, std::move(body), "10.0.0.1"};
  }

  // ---- what an agent has of it

  class Http final : public rdzv::EtcdHttp {
   public:
    Http(VirtualEtcd& etcd, int who, ProcessPtr process)
        : state_(std::make_shared<State>(State{etcd, who, std::move(process), {}})) {}

    void send(std::size_t endpoint, HttpRequest request, rdzv::HttpClient::Done done) override {
      auto& waiting = state_->waiting[endpoint];
      waiting.push_back(std::make_shared<Request>(Request{std::move(request), std::move(done)}));
      if (waiting.size() == 1) ask(state_, endpoint);
    }

    std::unique_ptr<rdzv::Attempt> open_stream(std::size_t, HttpRequest request,
                                               HttpStream::Events events) override {
      auto stream = std::make_unique<OpenStream>();
      stream->events = std::make_shared<HttpStream::Events>(std::move(events));
      const JsonValue asked = boost::json::parse(request.body).at("create_request");
      auto watch = std::make_shared<Watch>();
      watch->who = state_->who;
      watch->process = state_->process;
      watch->key = bytes_at(asked.at("key"));
      watch->from = number_at(asked.at("start_revision"));
      watch->events = stream->events;
      VirtualEtcd& etcd = state_->etcd;
      etcd.queue_.after(etcd.delay(), [&etcd, watch] { etcd.open(watch); });
      return stream;
    }

   private:
    struct Request {
      HttpRequest request;
      rdzv::HttpClient::Done done;
    };
    using RequestPtr = std::shared_ptr<Request>;
    struct State {
      VirtualEtcd& etcd;
      int who;
      ProcessPtr process;
      std::map<std::size_t, std::deque<RequestPtr>> waiting;  // the first is in progress
    };
    struct OpenStream final : rdzv::Attempt {
      std::shared_ptr<HttpStream::Events> events;
    };

    static void ask(const std::shared_ptr<State>& state, std::size_t endpoint) {
      VirtualEtcd& etcd = state->etcd;
      const RequestPtr request = state->waiting[endpoint].front();
      const auto weak = std::weak_ptr(state);
      etcd.queue_.after(kTimeLimit, state->process, [weak, endpoint, request] {
        take(weak, endpoint, request, fail(ErrorCode::kTimeout, "no answer in time"));
      });
      if (!etcd.reaches(state->who)) return;
      Random& random = etcd.random_;
      const bool is_lost = random.chance(kLostPercent) && etcd.queue_.now() < etcd.calm_;
      // A member of etcd that hung performs old requests when it continues.
      const bool is_late = random.chance(kLatePercent) && etcd.queue_.now() < etcd.calm_;
      const auto on_its_way = is_late ? random.time(kLongest, kHung) : etcd.delay();
      etcd.queue_.after(on_its_way, [&etcd, who = state->who, process = state->process, weak,
                                     endpoint, request, is_lost] {
        if (!etcd.reaches(who)) return;
        HttpReply answer = etcd.answer(who, request->request);  // even if the sender has died
        if (is_lost) return;
        etcd.queue_.after(etcd.delay(), process,
                          [weak, endpoint, request, answer = std::move(answer)] {
                            take(weak, endpoint, request, answer);
                          });
      });
    }

    static void take(const std::weak_ptr<State>& weak, std::size_t endpoint,
                     const RequestPtr& request, ::ddprun::Result<HttpReply> answer) {
      const auto state = weak.lock();
      if (!state) return;
      auto& waiting = state->waiting[endpoint];
      if (waiting.empty() || waiting.front() != request) return;  // it has timed out
      waiting.pop_front();
      if (!waiting.empty()) ask(state, endpoint);
      request->done(std::move(answer));
    }

    const std::shared_ptr<State> state_;
  };

  // ---- requests

  HttpReply answer(int who, const HttpRequest& request) {
    if (request.target == "/v3/kv/txn") return transact(who, request.body);
    const JsonValue asked = boost::json::parse(request.body);
    if (request.target == "/v3/lease/grant") {
      const std::int64_t seconds = number_at(asked.at("TTL"));
      const std::int64_t lease = ++last_lease_;
      const auto time = std::chrono::seconds(seconds);
      leases_[lease] = {time, queue_.now() + time};
      await_end(lease);
      return reply(200, "{\"ID\":" + quoted(lease) + ",\"TTL\":" + quoted(seconds) + "}");
    }
    const std::int64_t lease = number_at(asked.at("ID"));
    if (request.target == "/v3/lease/keepalive") return reply(200, keep_alive(lease));
    on_revoke(who, lease);
    revoke(lease);
    return reply(200, "{" + header(revision_) + "}");
  }

  HttpReply transact(int who, const std::string& body) {
    const JsonValue txn = boost::json::parse(body);
    bool holds = true;
    for (const JsonValue& each : txn.at("compare").as_array()) {
      const EtcdKeyValue entry = find(bytes_at(each.at("key")));
      const bool is_create = each.at("target").as_string() == "CREATE";
      holds &= is_create ? entry.create_revision == number_at(each.at("createRevision"))
                         : entry.mod_revision == number_at(each.at("modRevision"));
    }
    const boost::json::array& operations = txn.at(holds ? "success" : "failure").as_array();
    bool changes = false;
    for (const JsonValue& each : operations) {
      const JsonValue* put = each.as_object().if_contains("requestPut");
      changes |= !each.as_object().contains("requestRange");
      const std::int64_t lease = put == nullptr ? 0 : number_at(put->at("lease"));
      if (lease != 0 && !leases_.contains(lease)) {
        return reply(404, R"({"code":5,"message":"etcdserver: requested lease not found"})");
      }
    }
    if (changes) revision_ += 1;
    std::string responses;
    for (const JsonValue& each : operations) {
      if (!responses.empty()) responses += ',';
      if (const JsonValue* its = each.as_object().if_contains("requestPut")) {
        const auto value = bytes_at(its->at("value"));
        put(who, {bytes_at(its->at("key")), value, number_at(its->at("lease"))});
        responses += "{\"response_put\":{}}";
      } else if (const JsonValue* range = each.as_object().if_contains("requestRange")) {
        const EtcdKeyValue entry = find(bytes_at(range->at("key")));
        const bool is_there = entry.create_revision != 0;
        responses +=
            "{\"response_range\":{" + (is_there ? "\"kvs\":[" + in_json(entry) + "]" : "") + "}}";
      } else {
        remove(bytes_at(each.at("requestDeleteRange").at("key")));
        responses += "{\"response_delete_range\":{}}";
      }
    }
    return reply(200, "{" + header(revision_) + (holds ? ",\"succeeded\":true" : "") +
                          ",\"responses\":[" + responses + "]}");
  }

  void put(int who, const EtcdPut& put) {
    on_put(who, put);
    EtcdKeyValue& entry = entries_[put.key];
    const std::int64_t created = entry.create_revision == 0 ? revision_ : entry.create_revision;
    entry = {put.key, put.value, created, revision_, put.lease};
    tell({false, entry});
  }

  void remove(const std::string& key) {
    if (entries_.erase(key) > 0) tell({true, {key, "", 0, revision_, 0}});
  }

  // ---- leases

  std::string keep_alive(std::int64_t lease) {
    const auto found = leases_.find(lease);
    if (found == leases_.end()) return "{\"result\":{\"ID\":" + quoted(lease) + "}}";
    found->second.ends = queue_.now() + found->second.time;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(found->second.time);
    return "{\"result\":{\"ID\":" + quoted(lease) + ",\"TTL\":" + quoted(seconds.count()) + "}}";
  }

  void revoke(std::int64_t lease) {
    if (leases_.erase(lease) == 0) return;
    std::vector<std::string> keys;
    for (const auto& [key, entry] : entries_) {
      if (entry.lease == lease) keys.push_back(key);
    }
    if (!keys.empty()) revision_ += 1;
    for (const auto& key : keys) remove(key);
  }

  void await_end(std::int64_t lease) {
    const auto found = leases_.find(lease);
    if (found == leases_.end() || found->second.time >= std::chrono::hours(1))
      return;  // far in the future
    queue_.at(found->second.ends, [this, lease] {
      const auto still = leases_.find(lease);
      if (still == leases_.end()) return;
      if (is_up_ && queue_.now() >= still->second.ends) return revoke(lease);
      if (still->second.ends <= queue_.now())
        still->second.ends = queue_.now() + still->second.time;
      await_end(lease);
    });
  }

  // ---- watches

  void tell(const EtcdEvent& event) {
    history_.push_back(event);
    std::erase_if(watches_, [](const WatchPtr& each) { return each->events.expired(); });
    for (const WatchPtr& each : watches_) send(each, event);
  }

  void open(const WatchPtr& watch) {
    if (!reaches(watch->who)) {
      queue_.after(kTimeLimit, watch->process, [watch] {
        const auto events = watch->events.lock();
        if (events) events->on_end({ErrorCode::kTimeout, "no answer in time", {}});
      });
      return;
    }
    watches_.push_back(watch);
    watch->last_arrival = queue_.now() + delay();
    queue_.at(watch->last_arrival, watch->process, [watch] {
      if (const auto events = watch->events.lock()) events->on_open(200);
    });
    for (const EtcdEvent& event : history_) send(watch, event);
  }

  void send(const WatchPtr& watch, const EtcdEvent& event) {
    if (event.entry.key != watch->key || event.entry.mod_revision < watch->from) return;
    std::string line = "{\"result\":{" + header(event.entry.mod_revision) + ",\"events\":[{" +
                       (event.is_delete ? "\"type\":\"DELETE\"," : "") +
                       "\"kv\":" + in_json(event.entry) + "}]}}";
    watch->last_arrival = std::max(watch->last_arrival, queue_.now() + delay());
    queue_.at(watch->last_arrival, watch->process, [watch, line = std::move(line)] {
      if (const auto events = watch->events.lock()) events->on_line(line);
    });
  }

  void end_watches() {
    for (const WatchPtr& watch : std::exchange(watches_, {})) {
      if (reaches(watch->who)) {
        watches_.push_back(watch);
        continue;
      }
      queue_.at(std::max(watch->last_arrival, queue_.now() + CoreTime::duration(1000)),
                watch->process, [watch] {
                  const auto events = watch->events.lock();
                  if (events) events->on_end({ErrorCode::kClosed, "the connection broke", {}});
                });
    }
  }

  bool reaches(int who) { return is_up_ && !cut_off_[who]; }
  CoreTime::duration delay() { return random_.time(kShortest, kLongest); }

  EventQueue& queue_;
  Random& random_;
  const CoreTime calm_;
  bool is_up_ = true;
  std::map<int, bool> cut_off_;
  std::int64_t revision_ = 1;
  std::int64_t last_lease_ = 0;
  std::map<std::string, EtcdKeyValue> entries_;
  std::map<std::int64_t, Lease> leases_;
  std::vector<EtcdEvent> history_;
  std::vector<WatchPtr> watches_;
};

}  // namespace ddprun::sim
