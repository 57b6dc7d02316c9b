#include "rendezvous/find_leader.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "rendezvous/common/loop/blocking_calls.h"
#include "rendezvous/common/notice_times.h"
#include "rendezvous/etcd/etcd_leader.h"
#include "rendezvous/http/tls_context.h"
#include "rendezvous/leader/leader_address.h"
#include "rendezvous/leader/round_client.h"
#include "rendezvous/leader/round_server.h"
#include "rendezvous/net/asio_transport.h"
#include "rendezvous/net/name_lookup.h"

namespace ddprun::rdzv {
namespace {

using namespace std::chrono_literals;
using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{50};  // until the name is looked up again; doubled each time
constexpr milliseconds kLongestPause{1000};
constexpr auto kFirstNotice = 1s;

// Whether `name` is what this machine calls itself, with or without its domain.
bool is_own_name(const std::string& name) {
  const std::string own = own_host_name();
  return !own.empty() && name.substr(0, name.find('.')) == own.substr(0, own.find('.'));
}

class Search final : public Attempt {
 public:
  Search(boost::asio::io_context& io, LeaderSpec spec, RoundConfig config, LeaderEvents events,
         std::function<void(Result<FoundLeader>)> done)
      : io_(io),
        transport_(asio_transport(io)),
        spec_(std::move(spec)),
        config_(std::move(config)),
        events_(std::move(events)),
        done_(std::move(done)),
        retry_timer_(transport_->make_timer()),
        notice_timer_(transport_->make_timer()) {}

  void start() {
    using Where = LeaderSpec::Where;
    if (spec_.where == Where::kAlone) return lead(std::nullopt);
    if (spec_.where == Where::kElsewhere) return follow();
    if (spec_.where == Where::kElected) return elect();
    if (const auto known = addresses_without_lookup(spec_.endpoint.host)) return decide(*known);
    tell_of_waiting(kFirstNotice);
    look_up();
  }

 private:
  void look_up() {
    look_up_ = transport_->look_up(spec_.endpoint.host,
                                   [this](Result<std::vector<std::string>> addresses) {
                                     if (addresses) return decide(*addresses);
                                     not_known(addresses.error().message);
                                   });
  }

  // An agent that was told to lead does not need the addresses of its own name, but others do.
  void not_known(const std::string& error) {
    const bool is_own = is_own_name(spec_.endpoint.host);
    const std::string why = is_own ? error +
                                         "; it is this node's own name: add it to /etc/hosts or "
                                         "to the name service, or give an address instead"
                                   : error;
    const bool must_lead = spec_.where == LeaderSpec::Where::kHere;
    if (!must_lead || (spec_.leads_by_default && !is_own)) return try_later(why);
    notice("this node leads at " + spec_.endpoint.to_string() +
           ", where other nodes and workers may not find it: " + why);
    decide({});
  }

  void try_later(const std::string& why) {
    why_not_ = why;
    pause_ = std::clamp(pause_ * 2, kFirstPause, kLongestPause);
    retry_timer_->at(transport_->now() + pause_, [this] { look_up(); });
  }

  // Also ends the search at the time limit, even if a name server does not answer.
  // `after`: counts from the begin of the wait.
  void tell_of_waiting(CoreTime::duration after) {
    const CoreTime end = started_ + spec_.join_timeout;
    notice_timer_->at(std::min(started_ + after, end), [this, end] {
      const auto left = std::chrono::ceil<std::chrono::seconds>(end - transport_->now());
      const std::string endpoint = spec_.endpoint.to_string() + " (" + why_not_ + ")";
      if (left > 0s) {
        notice("waiting for " + endpoint + ", " + std::to_string(left.count()) + " s left");
        return tell_of_waiting(next_notice(transport_->now() - started_));
      }
      finish(fail(ErrorCode::kTimeout, "the endpoint " + endpoint +
                                           " could not be found in time; check --rdzv-endpoint "
                                           "(--master-addr), and the name service"));
    });
  }

  // `done` may destroy this.
  void finish(Result<FoundLeader> result) {
    retry_timer_->cancel();
    notice_timer_->cancel();
    look_up_.reset();
    std::exchange(done_, nullptr)(std::move(result));
  }

  void decide(const std::vector<std::string>& addresses) {
    const bool must_lead = spec_.where == LeaderSpec::Where::kHere;
    const bool is_ours = local_address_among(addresses).has_value();
    if (!must_lead && !is_ours) return follow();
    const std::string address = addresses.empty() || addresses.front() == spec_.endpoint.host
                                    ? ""
                                    : " (" + addresses.front() + ")";
    if (!is_ours && !addresses.empty() && spec_.leads_by_default) {
      return finish(fail(
          ErrorCode::kInvalidArgument,
          "no --node-rank was given, and " + spec_.endpoint.to_string() + address +
              ", where node 0 is to lead, is no address of this machine; give this node its rank "
              "by --node-rank, or --node-rank=0 if it is node 0 behind a translated address"));
    }
    if (!is_ours && !addresses.empty()) {
      notice("this node leads at " + spec_.endpoint.to_string() + address +
             ", which is no address of this machine; if another node is meant, give "
             "this one its own --node-rank");
    }
    auto listener = open_leader_port(spec_.endpoint, addresses);
    if (listener) return lead(std::move(*listener));
    // Another agent on this machine listens there already.
    if (!must_lead && listener.error().code == ErrorCode::kAddressInUse) return follow();
    Error error = std::move(listener.error());
    const std::string why =
        error.code == ErrorCode::kAddressInUse
            ? "the port is taken: by another job, by this one's last run, or by another node of it "
              "on this machine that has --node-rank=0 too; end it, or give another port or rank"
            : "cannot listen there: " + error.message;
    error.message = "this node is to lead at " + spec_.endpoint.to_string() + ", and " + why;
    finish(fail(std::move(error)));
  }

  void notice(std::string line) { events_.on_event(LeaderNotice{std::move(line)}); }

  void lead(std::optional<Listener> listener) {
    RoundServerOptions options{config_, spec_.keep_alive, spec_.proof, spec_.endpoint.host};
    finish(std::make_unique<RoundServer>(transport_, std::move(options), events_,
                                         std::move(listener)));
  }

  // Beside the event loop, because a file server may hold what certificates and keys are read from.
  void elect() {
    if (!spec_.etcd->is_tls) return elect(std::shared_ptr<TlsContext>());
    files_.emplace(io_.get_executor(), "ddprun-etcd-tls");
    using Made = Result<std::shared_ptr<TlsContext>>;
    files_->run<Made>(
        spec_.join_timeout, [files = spec_.etcd->tls] { return make_tls_context(files); },
        [this](std::optional<Made> made) {
          if (!made) {
            return finish(fail(ErrorCode::kTimeout,
                               "--rdzv-conf: the files with certificates and keys cannot be read: "
                               "their file system does not answer"));
          }
          if (*made) return elect(std::move(**made));
          finish(fail(ErrorCode::kInvalidArgument, "--rdzv-conf: " + made->error().to_string()));
        });
  }

  void elect(std::shared_ptr<TlsContext> tls) {
    finish(make_etcd_leader(
        io_, {*spec_.etcd, config_, spec_.keep_alive, spec_.join_timeout, spec_.proof},
        std::move(tls), events_));
  }

  void follow() {
    RoundClientOptions options{spec_.endpoint, spec_.keep_alive, spec_.join_timeout, spec_.proof};
    finish(make_round_client(transport_, std::move(options), events_));
  }

  boost::asio::io_context& io_;
  const std::shared_ptr<Transport> transport_;
  const LeaderSpec spec_;
  const RoundConfig config_;
  const LeaderEvents events_;
  std::function<void(Result<FoundLeader>)> done_;  // empty after it was called
  std::unique_ptr<Attempt> look_up_;
  std::optional<BlockingCalls> files_;  // reads what etcd over TLS needs
  const std::unique_ptr<TransportTimer> retry_timer_;
  const std::unique_ptr<TransportTimer> notice_timer_;
  const CoreTime started_ = transport_->now();
  milliseconds pause_{};
  std::string why_not_ = "its name is being looked up";
};

}  // namespace

std::unique_ptr<Attempt> find_leader(boost::asio::io_context& io, const LeaderSpec& spec,
                                     const RoundConfig& config, LeaderEvents events,
                                     std::function<void(Result<FoundLeader>)> done) {
  auto search = std::make_unique<Search>(io, spec, config, std::move(events), std::move(done));
  search->start();
  return search;
}

}  // namespace ddprun::rdzv
