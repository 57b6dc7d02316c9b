#include "rendezvous/etcd/etcd_leader.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <optional>
#include <utility>

#include "rendezvous/common/exit_codes.h"
#include "rendezvous/common/random_number.h"
#include "rendezvous/common/shell_clock.h"
#include "rendezvous/etcd/election_core.h"
#include "rendezvous/etcd/job_keys.h"
#include "rendezvous/etcd/round_ledger.h"
#include "rendezvous/http/tls_context.h"
#include "rendezvous/leader/leader_address.h"
#include "rendezvous/leader/round_client.h"
#include "rendezvous/leader/round_server.h"
#include "rendezvous/net/asio_transport.h"
#include "rendezvous/net/name_lookup.h"

namespace ddprun::rdzv {
namespace {

using namespace std::chrono_literals;
using boost::system::error_code;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::chrono::seconds kRecordLease{3600};  // what is left of a job is gone after that
constexpr milliseconds kWritePause{100};            // before a record is written again
// A job that is stopped is stopped on all its nodes at about the same time. A leader that leaves
// waits this long for the others to say so, before it leaves them to another one.
constexpr milliseconds kHandOverPause{300};
constexpr milliseconds kFarewellLimit{300};  // for etcd, to let go of a lease
constexpr auto kFirstNotice = 1s;
constexpr auto kNoticeInterval = 10s;

constexpr const char* kNoLeaderYet = "no leader is elected yet";

std::string random_name() {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string name;
  for (std::uint64_t bits = random_number(); name.size() < 16; bits >>= 4) {
    name += kDigits[bits % 16];
  }
  return name;
}

bool is_final(const Error& error) {
  return error.code == ErrorCode::kPermissionDenied || error.code == ErrorCode::kProtocol ||
         error.code == ErrorCode::kInvalidArgument || error.code == ErrorCode::kDataLoss;
}

}  // namespace

class EtcdLeader::Impl {
 public:
  Impl(boost::asio::io_context& io, EtcdLeaderOptions options, LeaderEvents events,
       EtcdOptions etcd)
      : io_(io),
        options_(std::move(options)),
        events_(std::move(events)),
        keys_(options_.etcd.prefix, options_.round.run_id),
        etcd_(io, std::move(etcd)),
        lookup_(io),
        core_({random_name(), options_.etcd.lease, options_.join_timeout}),
        core_timer_(io),
        lease_timer_(io),
        write_timer_(io),
        leave_timer_(io),
        notice_timer_(io) {}

  void join(NodeHello hello) {
    hello_ = std::move(hello);
    has_joined_ = true;
    if (server_) return join_own_server();
    if (client_) return client_->join(*std::exchange(hello_, std::nullopt));
    if (std::exchange(has_begun_, true)) return;
    tell_of_waiting(kFirstNotice);
    perform(core_.begin(clock_.now()));
  }

  void tell(const ToLeader& message) {
    if (const auto* leaving = std::get_if<NodeLeaving>(&message)) {
      leaving_ = *leaving;
      core_.leave();
      hand_over_soon();
    }
    if (server_) {
      server_->tell(message);
    } else if (client_) {
      client_->tell(message);
    }
  }

  void ask(PeerRequest question) {
    if (Leader* leader = present()) leader->ask(std::move(question));
  }
  void answer(PeerReply answer) {
    if (Leader* leader = present()) leader->answer(std::move(answer));
  }

  // Asked after every event, so what is to be done at the end is done from here.
  bool may_exit() {
    if (has_let_go_) return true;
    if (!server_) return client_ == nullptr || client_->may_exit();
    const bool is_needed = leaving_ ? !server_->core().is_deserted() : !server_->may_exit();
    if (!is_needed && !is_handing_over_) hand_over();
    return false;
  }

  bool is_here() const { return server_ != nullptr; }

  std::string local_address() const {
    if (server_) return server_->local_address();
    return client_ ? client_->local_address() : "127.0.0.1";
  }

 private:
  // A handler of an answer or a timer, which does not outlive this.
  template <typename Handler>
  auto mine(Handler handler) {
    return [life = std::weak_ptr(life_), handler = std::move(handler)](auto&&... arguments) {
      if (!life.expired()) handler(std::forward<decltype(arguments)>(arguments)...);
    };
  }

  Leader* present() const { return server_ ? static_cast<Leader*>(server_.get()) : client_.get(); }

  // ---- the core

  void perform(const ElectionCore::Out& actions) {
    if (is_handing_over_ || has_let_go_) return;
    for (const ElectionAction& each : actions) {
      std::visit([this](const auto& action) { perform(action); }, each);
    }
    core_timer_.cancel();
    if (const auto deadline = core_.deadline()) {
      core_timer_.expires_at(clock_.at(*deadline));
      core_timer_.async_wait(mine([this](error_code ec) {
        if (!ec) perform(core_.tick(clock_.now()));
      }));
    }
    write();
  }

  void failed(const Error& error) {
    why_not_ = error.to_string();
    perform(core_.failed(clock_.now(), why_not_, is_final(error)));
  }

  void perform(const ReadEtcd&) {
    etcd_.txn(read_txn(keys_), mine([this](const Result<wire::EtcdTxnAnswer>& answer) {
                if (!answer) return failed(answer.error());
                watch(answer->revision + 1);
                take_view(*answer, [this](const EtcdView& view) {
                  perform(core_.view(clock_.now(), view));
                });
              }));
  }

  template <typename Then>
  void take_view(const wire::EtcdTxnAnswer& answer, Then then) {
    if (claim_) {
      if (const auto own = leases_of_won_claim(keys_, *claim_, answer)) leases_ = *own;
    }
    const auto view = view_of(keys_, answer);
    if (!view) return failed(view.error());
    then(*view);
  }

  void watch(std::int64_t from_revision) {
    if (std::exchange(is_watching_, true)) return;
    EtcdClient::WatchEvents seen;
    seen.on_event = [this](const wire::EtcdEvent& event) {
      const CoreTime now = clock_.now();
      if (event.is_delete) return perform(core_.leader_deleted(now, event.entry.mod_revision));
      const auto key = read_leader_key(event.entry.value, event.entry.create_revision);
      if (key) perform(core_.leader_put(now, *key));
    };
    seen.on_end = [this](const Error& error) {
      is_watching_ = false;
      why_not_ = error.to_string();
      perform(core_.lost_sight(clock_.now()));
    };
    etcd_.watch(keys_.leader, from_revision, std::move(seen));
  }

  void perform(const Depose& action) {
    etcd_.txn(depose_txn(keys_, action.revision), [](const auto&) {});
  }

  // ---- to lead

  void perform(const Claim& action) {
    if (server_ && leases_.job != 0) return claim_with_leases(action, leases_.job);
    if (server_ || listener_) return claim_with_port(action);
    std::string host = options_.etcd.local_addr;
    if (host.empty()) host = etcd_.local_address();
    const auto open = [this, action, host](const std::vector<std::string>& addresses) {
      if (auto opened = open_port(host, addresses); !opened) return failed(opened.error());
      claim_with_port(action);
    };
    if (const auto known = addresses_without_lookup(host)) return open(*known);
    lookup_.start(host, [open](const Result<std::vector<std::string>>& addresses) {
      open(addresses ? *addresses : std::vector<std::string>{});
    });
  }

  void claim_with_port(const Claim& action) {
    etcd_.grant(kRecordLease, mine([this, action](const Result<wire::EtcdLease>& lease) {
                  if (!lease) return failed(lease.error());
                  claim_with_leases(action, lease->lease);
                }));
  }

  void claim_with_leases(const Claim& action, std::int64_t job_lease) {
    const auto lease_time = std::chrono::ceil<std::chrono::seconds>(options_.etcd.lease);
    etcd_.grant(lease_time, mine([this, action, job_lease](const Result<wire::EtcdLease>& lease) {
                  if (!lease) return failed(lease.error());
                  claim(action, {lease->lease, job_lease});
                }));
  }

  void claim(const Claim& action, const JobLeases& leases) {
    leases_ = leases;
    claim_ = action;
    etcd_.txn(claim_txn(keys_, action, advertised_.to_string(), leases),
              mine([this, action, leases](const Result<wire::EtcdTxnAnswer>& answer) {
                if (!answer) {
                  if (answer.error().code == ErrorCode::kNotFound) leases_.job = 0;
                  return failed(answer.error());
                }
                if (!answer->has_succeeded) {
                  const auto own = leases_of_won_claim(keys_, action, *answer);
                  const bool is_used = own && own->leader == leases.leader;
                  if (!is_used) etcd_.revoke(leases.leader, [] {});
                  return take_view(*answer, [this](const EtcdView& view) {
                    perform(core_.claim_failed(clock_.now(), view));
                  });
                }
                perform(core_.claimed(clock_.now(), answer->revision));
              }));
  }

  // The port is open before anybody is told of it.
  Result<void> open_port(const std::string& host, const std::vector<std::string>& addresses) {
    auto listener = open_leader_port({host, 0}, addresses, options_.etcd.ports);
    if (!listener) return fail(std::move(listener.error()));
    advertised_ = {host, listener->bound.port};
    listener_ = std::move(*listener);
    return {};
  }

  void perform(const Lead& action) {
    if (term_ > 0) notice("this node leads the job now");
    why_not_ = kNoLeaderYet;
    term_ += 1;
    ledger_.emplace(action.record);
    Resumption resumption = resumption_of(action);
    if (started_ && started_->first == action.record.round) {
      resumption.uptime = std::chrono::duration_cast<std::chrono::microseconds>(
          steady_clock::now() - started_->second);
    }
    RoundServerOptions options{options_.round,   options_.keep_alive, options_.token,
                               advertised_.host, resumption,          {}};
    options.round.own_node.reset();  // which may leave, as any other
    options.gate = [this](const RoundCore& core, std::vector<ToNode> messages) {
      RoundServerOptions::Passed passed{ledger_->pass(core, std::move(messages)),
                                        ledger_->due() != nullptr};
      write();
      return passed;
    };
    server_ = std::make_unique<RoundServer>(asio_transport(io_), std::move(options), member_events(),
                                            std::exchange(listener_, std::nullopt));
    keep_lease();
    if (hello_) join_own_server();
  }

  void join_own_server() {
    NodeHello hello = *std::exchange(hello_, std::nullopt);
    if (hello.address.empty()) hello.address = advertised_.host;
    server_->join(std::move(hello));
  }

  void write() {
    const JobRecord* due = ledger_ ? ledger_->due() : nullptr;
    if (due == nullptr || is_writing_ || !core_.leads() || leaving_ || has_let_go_) return;
    is_writing_ = true;
    const std::int64_t leader = core_.leader()->revision;
    etcd_.txn(write_txn(keys_, leader, core_.job_revision(), *due, leases_),
              mine([this, leader, record = *due,
                    term = term_](const Result<wire::EtcdTxnAnswer>& answer) {
                is_writing_ = false;
                if (term != term_ || !server_) return write();
                if (!answer && answer.error().code == ErrorCode::kNotFound) return renew_record();
                if (!answer) return write_later(answer.error());
                const RecordWrite write_result = result_of_write(leader, record, *answer);
                if (write_result.kind == RecordWrite::Kind::kFenced) {
                  return perform(core_.doubted());
                }
                if (write_result.kind == RecordWrite::Kind::kOvertaken) {
                  core_.overtaken(write_result.job_revision);
                  return write();
                }
                auto messages = ledger_->written();
                core_.written(write_result.job_revision, ledger_->record());
                server_->release({std::move(messages), ledger_->due() != nullptr});
                write();
              }));
  }

  // Its lease has run out: after an hour without etcd.
  void renew_record() {
    is_writing_ = true;
    etcd_.grant(kRecordLease, mine([this](const Result<wire::EtcdLease>& lease) {
                  is_writing_ = false;
                  if (!lease) return write_later(lease.error());
                  leases_.job = lease->lease;
                  write();
                }));
  }

  void write_later(const Error& error) {
    const auto now = steady_clock::now();
    if (!last_complaint_ || now - *last_complaint_ >= kNoticeInterval) {
      last_complaint_ = now;
      notice("the next round, or the job's end, waits for etcd: " + error.to_string());
    }
    write_timer_.expires_after(kWritePause);
    write_timer_.async_wait(mine([this](error_code ec) {
      if (!ec) write();
    }));
  }

  // Each time a third of it is over. An answer that does not come is no answer.
  void keep_lease() {
    lease_timer_.expires_after(options_.etcd.lease / 3);
    lease_timer_.async_wait(mine([this](error_code ec) {
      if (ec || !server_ || has_let_go_) return;
      keep_lease();
      const auto now = steady_clock::now();
      if (now - job_lease_kept_ > kRecordLease / 4) {
        job_lease_kept_ = now;
        etcd_.keep_alive(leases_.job, [](const auto&) {});
      }
      etcd_.keep_alive(leases_.leader,
                       mine([this, lease = leases_.leader](const Result<wire::EtcdLease>& kept) {
                         if (kept && kept->seconds == 0 && lease == leases_.leader) {
                           perform(core_.doubted());
                         }
                       }));
    }));
  }

  void perform(const StopLeading&) {
    events_.on_event(LeaderWarning{
        "this node leads no more: etcd has another leader, or lost this one's lease"});
    term_ += 1;
    lease_timer_.cancel();
    server_.reset();
    ledger_.reset();
  }

  // ---- to follow

  void perform(const Follow& action) {
    why_not_ = kNoLeaderYet;
    if (term_ > 0) {
      notice("the job's leader is now at " + action.key.address);
    }
    term_ += 1;
    RoundClientOptions options{*parse_endpoint(action.key.address), options_.keep_alive,
                               options_.join_timeout, options_.token};
    LeaderEvents events = member_events();
    // Outside of its own event, because it may end the client.
    events.on_event = [this, term = term_, pass_on = events.on_event](LeaderEvent event) {
      auto* const gone = std::get_if<LeaderGone>(&event);
      if (gone == nullptr) return pass_on(std::move(event));
      boost::asio::post(io_, mine([this, term, gone = std::move(*gone)] {
                          if (term == term_) lost(gone);
                        }));
    };
    client_ = std::make_unique<RoundClient>(asio_transport(io_), std::move(options), std::move(events));
    listener_.reset();
    if (hello_) client_->join(*std::exchange(hello_, std::nullopt));
  }

  void lost(const LeaderGone& gone) {
    if (gone.was_reached && !gone.was_replaced) notice(gone.sentence);
    // Who never reached it, for a firewall perhaps, must not depose it for those who do.
    const bool is_dead = gone.was_reached && (gone.was_refused || gone.was_replaced);
    perform(core_.connection_gone(clock_.now(), is_dead));
  }

  LeaderEvents member_events() {
    LeaderEvents events = events_;
    events.on_event = [this, term = term_](LeaderEvent event) {
      if (const auto* message = std::get_if<ToAgent>(&event)) {
        if (term != term_) return;  // of a leader of before
        hear(*message);
      }
      events_.on_event(std::move(event));
    };
    return events;
  }

  void hear(const ToAgent& message) {
    core_.heard();
    if (const auto* start = std::get_if<RoundStart>(&message)) {
      started_ = {start->round, steady_clock::now()};
      core_.saw(*start);
    }
    if (std::holds_alternative<JobEnd>(message)) core_.leave();
  }

  void notice(std::string line) { events_.on_event(LeaderNotice{std::move(line)}); }

  void perform(const LoseLeader&) {
    term_ += 1;
    client_.reset();
    // Once, however many leaders come and go before it has joined anew.
    if (!std::exchange(has_joined_, false) || leaving_) return;
    LeaderGone gone;
    gone.was_reached = gone.was_replaced = true;
    events_.on_event(std::move(gone));
  }

  // ---- the end

  void perform(const EndJob& action) {
    has_let_go_ = true;
    events_.on_event(ToAgent(JobEnd{action.outcome}));
  }

  void perform(const GiveUp& action) {
    has_let_go_ = true;
    term_ += 1;
    client_.reset();
    if (action.why == GiveUp::Why::kWrong) {
      events_.on_event(ToAgent(Refused{action.sentence}));
    } else {
      LeaderGone gone;
      gone.sentence = action.sentence;
      gone.was_reached = action.why == GiveUp::Why::kLost;
      events_.on_event(std::move(gone));
    }
  }

  void hand_over_soon() {
    leave_timer_.expires_after(kHandOverPause);
    leave_timer_.async_wait(mine([this](error_code ec) {
      if (!ec && server_ && !is_handing_over_) hand_over();
    }));
  }

  // Lets go of the lease, so that nobody has to wait for its end. A job that is deserted because all
  // its nodes were told to stop has ended.
  void hand_over() {
    is_handing_over_ = true;
    leave_timer_.expires_after(kFarewellLimit);
    leave_timer_.async_wait(mine([this](error_code ec) {
      if (!ec) let_go();
    }));
    const bool is_over = leaving_ && server_->core().is_deserted() && !ledger_->newest().outcome;
    if (!is_over) return revoke();
    JobRecord record = ledger_->newest();
    record.outcome.emplace();
    record.outcome->kind = JobOutcome::Kind::kStopped;
    record.outcome->stop_signal = leaving_->signal;
    record.outcome->exit_code = leaving_->is_preemption ? kExitPreempted : 128 + leaving_->signal;
    write_last(core_.job_revision(), record);
  }

  void write_last(std::int64_t job_revision, const JobRecord& record) {
    const std::int64_t leader = core_.leader()->revision;
    etcd_.txn(write_txn(keys_, leader, job_revision, record, leases_),
              mine([this, leader, record](const Result<wire::EtcdTxnAnswer>& answer) {
                if (answer) {
                  const RecordWrite write = result_of_write(leader, record, *answer);
                  if (write.kind == RecordWrite::Kind::kOvertaken) {
                    return write_last(write.job_revision, record);
                  }
                }
                revoke();
              }));
  }

  void revoke() {
    etcd_.revoke(leases_.leader, mine([this] { let_go(); }));
  }

  void let_go() {
    if (std::exchange(has_let_go_, true)) return;
    term_ += 1;
    lease_timer_.cancel();
    boost::asio::post(io_, mine([this] { server_.reset(); }));
  }

  void tell_of_waiting(steady_clock::duration after) {
    notice_timer_.expires_after(after);
    notice_timer_.async_wait(mine([this](error_code ec) {
      if (ec || has_let_go_) return;
      if (!core_.leader()) {
        const auto left = std::chrono::ceil<std::chrono::seconds>(options_.join_timeout -
                                                                  (steady_clock::now() - begun_));
        notice("waiting for etcd at " + to_string(options_.etcd.endpoints) + " (" + why_not_ + ")" +
               (left > 0s ? ", " + std::to_string(left.count()) + " s left" : ""));
      }
      tell_of_waiting(kNoticeInterval);
    }));
  }

  boost::asio::io_context& io_;
  const EtcdLeaderOptions options_;
  const LeaderEvents events_;
  const JobKeys keys_;
  const ShellClock clock_;
  const steady_clock::time_point begun_ = steady_clock::now();

  EtcdClient etcd_;
  NameLookup lookup_;
  ElectionCore core_;
  bool has_begun_ = false;
  bool is_watching_ = false;
  std::string why_not_ = kNoLeaderYet;
  std::optional<NodeHello> hello_;  // to be said to the next leader
  bool has_joined_ = false;         // and was not told of a loss since
  std::uint64_t term_ = 0;          // counts what was led or followed, and each end of that
  std::optional<std::pair<Round, steady_clock::time_point>> started_;  // the last round here

  std::optional<Listener> listener_;  // open, and not a server's yet
  Endpoint advertised_;
  std::optional<Claim> claim_;  // the last one that was asked for
  JobLeases leases_;
  steady_clock::time_point job_lease_kept_ = steady_clock::now();
  std::optional<RoundLedger> ledger_;
  bool is_writing_ = false;
  std::optional<steady_clock::time_point> last_complaint_;
  std::unique_ptr<RoundServer> server_;
  std::unique_ptr<RoundClient> client_;

  std::optional<NodeLeaving> leaving_;
  bool is_handing_over_ = false;
  bool has_let_go_ = false;

  boost::asio::steady_timer core_timer_;
  boost::asio::steady_timer lease_timer_;
  boost::asio::steady_timer write_timer_;
  boost::asio::steady_timer leave_timer_;
  boost::asio::steady_timer notice_timer_;

  struct Life {};  // handlers that are under way end with it
  std::shared_ptr<Life> life_ = std::make_shared<Life>();
};

Result<std::unique_ptr<EtcdLeader>> EtcdLeader::make(boost::asio::io_context& io,
                                                     EtcdLeaderOptions options,
                                                     LeaderEvents events) {
  EtcdOptions etcd;
  etcd.endpoints = options.etcd.endpoints;
  etcd.user = options.etcd.user;
  etcd.password = options.etcd.password;
  etcd.time_limit = std::clamp<milliseconds>(options.etcd.lease / 3, 500ms, 3000ms);
  if (options.etcd.is_tls) {
    auto tls = make_tls_context(options.etcd.tls);
    if (!tls) return fail(ErrorCode::kInvalidArgument, "--rdzv-conf: " + tls.error().to_string());
    etcd.tls = std::move(*tls);
  }
  return std::unique_ptr<EtcdLeader>(new EtcdLeader(
      std::make_unique<Impl>(io, std::move(options), std::move(events), std::move(etcd))));
}

EtcdLeader::EtcdLeader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EtcdLeader::~EtcdLeader() = default;
void EtcdLeader::join(NodeHello hello) { impl_->join(std::move(hello)); }
void EtcdLeader::tell(const ToLeader& message) { impl_->tell(message); }
void EtcdLeader::ask(PeerRequest question) { impl_->ask(std::move(question)); }
void EtcdLeader::answer(PeerReply answer) { impl_->answer(std::move(answer)); }
bool EtcdLeader::may_exit() { return impl_->may_exit(); }
bool EtcdLeader::is_here() const { return impl_->is_here(); }
std::string EtcdLeader::local_address() const { return impl_->local_address(); }

}  // namespace ddprun::rdzv
