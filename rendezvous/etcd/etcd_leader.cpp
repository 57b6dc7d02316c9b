#include "rendezvous/etcd/etcd_leader.h"

#include <utility>

#include "rendezvous/common/loop/lifetime.h"
#include "rendezvous/common/random_number.h"
#include "rendezvous/etcd/election_core.h"
#include "rendezvous/etcd/etcd_client.h"
#include "rendezvous/etcd/job_keys.h"
#include "rendezvous/etcd/leader_claims.h"
#include "rendezvous/etcd/leadership_core.h"
#include "rendezvous/leader/round_client.h"
#include "rendezvous/leader/round_server.h"

namespace ddprun::rdzv {
namespace {

using namespace std::chrono_literals;

constexpr auto kFirstNotice = 1s;
constexpr auto kNoticeInterval = 10s;
constexpr const char* kNoLeaderYet = "no leader is elected yet";

class EtcdLeader final : public Leader {
 public:
  EtcdLeader(EtcdLeaderParts parts, EtcdLeaderOptions options, LeaderEvents events)
      : transport_(std::move(parts.transport)),
        options_(std::move(options)),
        events_(std::move(events)),
        keys_(options_.etcd.prefix, options_.round.run_id),
        election_({random_name(), options_.etcd.lease, options_.join_timeout}),
        leadership_(options_.etcd.lease),
        election_timer_(transport_->make_timer()),
        leadership_timer_(transport_->make_timer()),
        notice_timer_(transport_->make_timer()),
        etcd_(std::move(parts.http), options_.etcd),
        claims_(transport_, etcd_, keys_, options_.etcd, std::move(parts.open_port)) {}

  void join(NodeHello hello) override {
    hello_ = std::move(hello);
    has_joined_ = true;
    if (server_) return join_own_server();
    if (client_) return client_->join(*std::exchange(hello_, std::nullopt));
    if (std::exchange(has_begun_, true)) return;
    tell_of_waiting(kFirstNotice);
    perform(election_.begin(now()));
  }

  void tell(const ToLeader& message) override {
    if (const auto* leaving = std::get_if<NodeLeaving>(&message)) {
      election_.leave();
      leadership_.leave(now(), *leaving);
      arm_leadership_timer();
    }
    if (Leader* leader = present()) leader->tell(message);
  }

  void ask(PeerRequest question) override {
    if (Leader* leader = present()) leader->ask(std::move(question));
  }
  void answer(PeerReply answer) override {
    if (Leader* leader = present()) leader->answer(std::move(answer));
  }

  // The agent calls this after every event, so the work at the end is started here.
  bool may_exit() override {
    if (leadership_.has_let_go()) return true;
    if (!server_) return client_ == nullptr || client_->may_exit();
    perform(leadership_.done(now(), server_->core().is_deserted(), server_->may_exit()));
    return false;
  }

  bool is_here() const override { return server_ != nullptr; }

  std::string local_address() const override {
    if (server_) return server_->local_address();
    return client_ ? client_->local_address() : "127.0.0.1";
  }

 private:
  CoreTime now() const { return transport_->now(); }
  void notice(std::string line) { events_.on_event(LeaderNotice{std::move(line)}); }
  Leader* present() const { return server_ ? static_cast<Leader*>(server_.get()) : client_.get(); }

  // ---- who leads

  void perform(const ElectionCore::Out& actions) {
    if (leadership_.is_ending()) return;
    for (const ElectionAction& each : actions) {
      std::visit([this](const auto& action) { perform(action); }, each);
    }
    const auto deadline = election_.deadline();
    if (!deadline) return election_timer_->cancel();
    election_timer_->at(*deadline, [this] { perform(election_.tick(now())); });
  }

  void failed(const Error& error) {
    why_not_ = error.to_string();
    perform(election_.failed(now(), why_not_, is_final(error)));
  }

  void perform(const ReadEtcd&) {
    etcd_.txn(read_txn(keys_), [this](const Result<wire::EtcdTxnAnswer>& answer) {
      if (!answer) return failed(answer.error());
      watch(answer->revision + 1);
      take_view(*answer);
    });
  }

  void take_view(const wire::EtcdTxnAnswer& answer) {
    claims_.seen(answer);
    const auto view = view_of(keys_, answer);
    if (!view) return failed(view.error());  // a value was not written by ddprun
    perform(election_.view(now(), *view));
  }

  void watch(std::int64_t from_revision) {
    if (std::exchange(is_watching_, true)) return;
    EtcdClient::WatchEvents seen;
    seen.on_event = [this](const wire::EtcdEvent& event) {
      if (event.is_delete) {
        return perform(election_.leader_deleted(now(), event.entry.mod_revision));
      }
      const auto key = read_leader_key(event.entry.value, event.entry.create_revision);
      if (key) perform(election_.leader_put(now(), *key));
    };
    seen.on_end = [this](const Error& error) {
      is_watching_ = false;
      why_not_ = error.to_string();
      perform(election_.watch_ended(now()));
    };
    etcd_.watch(keys_.leader, from_revision, std::move(seen));
  }

  void perform(const Depose& action) {
    etcd_.txn(depose_txn(keys_, action.revision), [](const auto&) {});
  }

  void perform(const Claim& action) {
    claims_.claim(action, /*leads=*/server_ != nullptr,
                  [this](const Result<wire::EtcdTxnAnswer>& answer) {
                    if (!answer) return failed(answer.error());
                    if (!answer->has_succeeded) return take_view(*answer);
                    perform(election_.claimed(now(), answer->revision));
                  });
  }

  // ---- to lead

  void perform(const Lead& action) {
    if (term_ > 0) notice("this node leads the job now");
    why_not_ = kNoLeaderYet;
    term_ += 1;
    leadership_.begin(now(), action.record);
    Resumption resumption = resumption_of(action);
    resumption.now = now();
    if (started_ && started_->first == action.record.round) {
      resumption.uptime = now() - started_->second;
    }
    RoundServerOptions options{options_.round, options_.keep_alive,
                               options_.proof, claims_.advertised().host,
                               resumption,     {}};
    options.round.own_node.reset();  // this node may leave like any other
    options.write_ahead = [this](const RoundCore& core, std::vector<ToNode> messages) {
      auto passed = leadership_.pass(core, std::move(messages));
      perform(leadership_.go_on());
      return RoundServerOptions::Passed{std::move(passed), leadership_.is_holding()};
    };
    server_ = std::make_unique<RoundServer>(transport_, std::move(options), member_events(),
                                            claims_.take_listener());
    arm_leadership_timer();
    if (hello_) join_own_server();
  }

  void join_own_server() {
    NodeHello hello = *std::exchange(hello_, std::nullopt);
    if (hello.address.empty()) hello.address = claims_.advertised().host;
    server_->join(std::move(hello));
  }

  void perform(const StopLeading&) {
    events_.on_event(LeaderWarning{
        "this node no longer leads: etcd has another leader, or has lost this node's lease"});
    term_ += 1;
    leadership_.stop();
    server_.reset();
  }

  void perform(const LeadershipCore::Out& actions) {
    for (const LeadershipAction& each : actions) {
      std::visit([this](const auto& action) { perform(action); }, each);
    }
    arm_leadership_timer();
  }

  void arm_leadership_timer() {
    const auto deadline = leadership_.deadline();
    if (!deadline || !server_) return leadership_timer_->cancel();
    leadership_timer_->at(*deadline, [this] {
      if (server_) perform(leadership_.tick(now(), server_->core().is_deserted()));
    });
  }

  void perform(const WriteRecord& action) {
    if (!election_.leads()) {
      return perform(leadership_.written(now(), action.term, RecordWrite::Kind::kFenced));
    }
    const std::int64_t leader = election_.leader()->revision;
    etcd_.txn(
        write_txn(keys_, leader, election_.job_revision(), action.record, claims_.leases().held()),
        [this, leader, action](const Result<wire::EtcdTxnAnswer>& answer) {
          if (!answer) {
            const bool is_lease_over = answer.error().code == ErrorCode::kNotFound;
            return perform(leadership_.not_written(now(), action.term, answer.error().to_string(),
                                                   is_lease_over));
          }
          const RecordWrite write = result_of_write(leader, action.record, *answer);
          if (leadership_.is_current(action.term)) {
            if (write.kind == RecordWrite::Kind::kWritten) {
              election_.written(write.job_revision, action.record);
            } else if (write.kind == RecordWrite::Kind::kOvertaken) {
              election_.overtaken(write.job_revision);
            }
          }
          perform(leadership_.written(now(), action.term, write.kind));
        });
  }

  void perform(const RenewRecordLease& action) {
    etcd_.grant(LeaderClaims::kRecordLease, [this, action](const Result<wire::EtcdLease>& lease) {
      if (lease) claims_.leases().record_lease_renewed(lease->lease);
      perform(leadership_.record_lease(now(), action.term,
                                       lease ? std::string() : lease.error().to_string()));
    });
  }

  void perform(const SayToNodes& action) { server_->release({action.messages, action.is_holding}); }
  void perform(const DoubtLeadership&) { perform(election_.leadership_uncertain()); }
  void perform(const WaitsForEtcd& action) {
    notice("the next round, or the job's end, waits for etcd: " + action.why);
  }

  void perform(const KeepLeases& action) {  // a lost answer changes nothing
    const JobLeases held = claims_.leases().held();
    if (action.with_record) etcd_.keep_alive(held.job, [](const auto&) {});
    etcd_.keep_alive(held.leader, [this, held](const Result<wire::EtcdLease>& kept) {
      const bool is_over =
          kept && kept->seconds == 0 && held.leader == claims_.leases().held().leader;
      if (is_over) perform(leadership_.leaders_lease_over());
    });
  }

  // ---- to follow

  void perform(const Follow& action) {
    why_not_ = kNoLeaderYet;
    if (term_ > 0) notice("the job's leader is now at " + action.key.address);
    term_ += 1;
    RoundClientOptions options{*parse_endpoint(action.key.address), options_.keep_alive,
                               options_.join_timeout, options_.proof};
    LeaderEvents events = member_events();
    // Handled outside the client's own event, because it may destroy the client.
    events.on_event = [this, term = term_, pass_on = events.on_event](LeaderEvent event) {
      auto* const gone = std::get_if<LeaderGone>(&event);
      if (gone == nullptr) return pass_on(std::move(event));
      transport_->post(lifetime_.guard([this, term, gone = std::move(*gone)] {
        if (term == term_) lost(gone);
      }));
    };
    client_ = make_round_client(transport_, std::move(options), std::move(events));
    claims_.take_listener();  // it will not lead at the port of its claim
    if (hello_) client_->join(*std::exchange(hello_, std::nullopt));
  }

  void lost(const LeaderGone& gone) {
    if (gone.was_reached && !gone.was_replaced) notice(gone.sentence);
    // An agent that never reached the leader, perhaps because of a firewall, must not depose it.
    const bool is_dead = gone.was_reached && (gone.was_refused || gone.was_replaced);
    perform(election_.connection_gone(now(), is_dead));
  }

  LeaderEvents member_events() {
    LeaderEvents events = events_;
    events.on_event = [this, term = term_](LeaderEvent event) {
      if (const auto* message = std::get_if<ToAgent>(&event)) {
        if (term != term_) return;  // of an earlier leader
        hear(*message);
      }
      events_.on_event(std::move(event));
    };
    return events;
  }

  void hear(const ToAgent& message) {
    election_.heard();
    if (const auto* start = std::get_if<RoundStart>(&message)) {
      started_ = {start->round, now()};
      election_.saw(*start);
    }
    if (std::holds_alternative<JobEnd>(message)) election_.leave();
  }

  void perform(const LoseLeader&) {
    term_ += 1;
    client_.reset();
    // Reported once, even if several leaders come and go before this node has joined again.
    if (!std::exchange(has_joined_, false) || leadership_.is_leaving()) return;
    events_.on_event(LeaderGone{"", true, /*was_refused=*/false, /*was_replaced=*/true});
  }

  // ---- the end

  void perform(const EndJob& action) {
    leadership_.end();
    events_.on_event(ToAgent(JobEnd{action.outcome}));
  }

  void perform(const GiveUp& action) {
    leadership_.end();
    term_ += 1;
    client_.reset();
    if (action.why == GiveUp::Why::kWrong) {
      return events_.on_event(ToAgent(Refused{action.sentence}));
    }
    const bool was_reached = action.why == GiveUp::Why::kLost;
    events_.on_event(LeaderGone{action.sentence, was_reached, false, false});
  }

  void perform(const LetGoOfLease&) {
    etcd_.revoke(claims_.leases().held().leader, [this] { perform(leadership_.let_go()); });
  }

  void perform(const StopServing&) {
    term_ += 1;
    transport_->post(lifetime_.guard([this] { server_.reset(); }));
  }

  void tell_of_waiting(CoreTime::duration after) {
    notice_timer_->at(now() + after, [this] {
      if (leadership_.has_let_go()) return;
      if (!election_.leader()) {
        const auto left =
            std::chrono::ceil<std::chrono::seconds>(options_.join_timeout - (now() - begun_));
        notice("waiting for etcd at " + to_string(options_.etcd.endpoints) + " (" + why_not_ + ")" +
               (left > 0s ? ", " + std::to_string(left.count()) + " s left" : ""));
      }
      tell_of_waiting(kNoticeInterval);
    });
  }

  const std::shared_ptr<Transport> transport_;
  const EtcdLeaderOptions options_;
  const LeaderEvents events_;
  const JobKeys keys_;
  const CoreTime begun_ = transport_->now();

  ElectionCore election_;
  LeadershipCore leadership_;
  bool has_begun_ = false;
  bool is_watching_ = false;
  std::string why_not_ = kNoLeaderYet;
  std::optional<NodeHello> hello_;  // for the next leader
  bool has_joined_ = false;         // false again after LeaderGone was reported
  std::uint64_t term_ = 0;          // counts each begin and each end of leading or following
  std::optional<std::pair<Round, CoreTime>> started_;  // the last round on this node

  std::unique_ptr<RoundServer> server_;
  std::unique_ptr<Leader> client_;

  const std::unique_ptr<TransportTimer> election_timer_;
  const std::unique_ptr<TransportTimer> leadership_timer_;
  const std::unique_ptr<TransportTimer> notice_timer_;
  const Lifetime lifetime_;
  EtcdClient etcd_;  // after the members that its answers use
  LeaderClaims claims_;
};

}  // namespace

std::unique_ptr<Leader> make_etcd_leader(EtcdLeaderParts parts, EtcdLeaderOptions options,
                                         LeaderEvents events) {
  return std::make_unique<EtcdLeader>(std::move(parts), std::move(options), std::move(events));
}

}  // namespace ddprun::rdzv
