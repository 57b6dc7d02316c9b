// The network of a simulation: hosts in slots, ports, and connections that deliver in order, with
// varying delays. It can be cut (no data passes, in one or both directions, until healed), and
// connections can be reset. A process uses it, and the time, through a Transport like the real one.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rendezvous/net/transport.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/random.h"

namespace ddprun::sim {

// The ends of a connection: the one that connected and the one that accepted.
enum End : std::size_t { kAgentEnd = 0, kLeaderEnd = 1 };
constexpr End other(End end) { return end == kAgentEnd ? kLeaderEnd : kAgentEnd; }

class VirtualNetwork {
 public:
  VirtualNetwork(EventQueue& queue, Random& random, std::size_t slots, CoreTime::duration delay_max)
      : queue_(queue), random_(random), delay_max_(delay_max), is_cut_(slots) {}
  // Breaks cycles: data in transit may own its connection.
  ~VirtualNetwork() {
    for (const LinkPtr& link : live_links()) {
      for (Side& side : link->sides) {
        if (const auto stream = side.stream) stream->leave();
      }
    }
  }
  VirtualNetwork(const VirtualNetwork&) = delete;
  VirtualNetwork& operator=(const VirtualNetwork&) = delete;

  // For a process on this host; its connections are cut with this slot.
  std::shared_ptr<rdzv::Transport> transport(std::string host, int slot, ProcessPtr process) {
    return std::make_shared<Transport>(*this, std::move(host), slot, std::move(process));
  }

  // Reserves a port; it listens when an acceptor uses it.
  rdzv::Listener bind(const std::string& host, std::uint16_t port = 0) {
    return {{}, {host, port != 0 ? port : ++last_port_}};
  }

  // ---- faults

  // For connections made from that slot.
  void set_cut(int slot, End towards, bool is_cut) {
    is_cut_[static_cast<std::size_t>(slot)][towards] = is_cut;
    if (is_cut) return;
    for (const LinkPtr& link : live_links()) {
      if (link->slot != slot) continue;
      for (Segment& segment : std::exchange(link->sides[towards].held, {})) {
        deliver(link, towards, std::move(segment));
      }
    }
  }
  void reset_of(int slot) {
    for (const LinkPtr& link : live_links()) {
      if (link->slot == slot) reset(link);
    }
  }
  // All its connections: it was killed.
  void reset_of(const ProcessPtr& process) {
    for (const LinkPtr& link : live_links()) {
      const auto& [near, far] = link->sides;
      if (near.process == process || far.process == process) reset(link);
    }
  }
  // Without power it does not answer.
  void set_dark(const std::string& host, bool is_dark) { dark_[host] = is_dark; }

 private:
  using Address = std::pair<std::string, std::uint16_t>;
  class Stream;
  struct Segment {
    std::string bytes;
    bool is_last = false;
  };
  struct Side {
    ProcessPtr process;
    std::string host;
    std::shared_ptr<Stream> stream{};  // null: it has ended
    CoreTime last_arrival{};
    std::vector<Segment> held{};  // segments held back by a cut
  };
  struct Link {
    int slot = 0;
    bool is_reset = false;
    std::array<Side, 2> sides;
  };
  using LinkPtr = std::shared_ptr<Link>;
  struct Port {
    ProcessPtr process;
    const rdzv::Attempt* acceptor = nullptr;
    std::function<void(rdzv::StreamPtr)> on_stream;
  };

  static constexpr std::chrono::milliseconds kConnectRetry{50};  // if the host does not answer
  static constexpr int kCutInTwoPercent = 10;                    // of sends, which are split in two

  // ---- what a process has of it

  class Stream final : public rdzv::Stream {
   public:
    Stream(VirtualNetwork& network, LinkPtr link, End end)
        : network_(network), link_(std::move(link)), end_(end) {}

    void start(Events events) override {
      events_ = std::make_shared<const Events>(std::move(events));
    }
    void send(std::string_view bytes) override {
      if (!is_open_ || is_finished_ || bytes.empty()) return;
      Random& random = network_.random_;
      if (bytes.size() > 1 && random.chance(kCutInTwoPercent)) {
        const int size = random.number(1, static_cast<int>(bytes.size()) - 1);
        network_.send(link_, end_, {std::string(bytes.substr(0, static_cast<std::size_t>(size)))});
        bytes.remove_prefix(static_cast<std::size_t>(size));
      }
      network_.send(link_, end_, {std::string(bytes)});
    }
    void finish_sending() override {
      if (!is_open_ || std::exchange(is_finished_, true)) return;
      network_.send(link_, end_, {{}, /*is_last=*/true});
    }
    void close() override {
      if (!is_open_) return;
      finish_sending();
      leave();
    }
    rdzv::UniqueFd release() override {
      close();
      return {};
    }
    std::size_t unsent() const override { return 0; }
    bool is_open() const override { return is_open_; }
    std::string local_address() override { return link_->sides[end_].host; }
    std::string peer_address() override { return link_->sides[other(end_)].host; }

    void arrive(const Segment& segment) {
      if (segment.is_last) {
        return end({ErrorCode::kClosed, "the other side closed the connection", {}});
      }
      const auto events = events_;  // it may be replaced meanwhile
      if (events) events->on_bytes(segment.bytes);
    }
    void end(const Error& error) {
      const auto events = events_;
      leave();
      if (events) events->on_end(error);
    }
    void leave() {
      is_open_ = false;
      events_.reset();
      link_->sides[end_].stream.reset();
    }

   private:
    VirtualNetwork& network_;
    const LinkPtr link_;
    const End end_;
    std::shared_ptr<const Events> events_;
    bool is_open_ = true;
    bool is_finished_ = false;
  };

  class Timer final : public rdzv::TransportTimer {
   public:
    Timer(EventQueue& queue, ProcessPtr process) : queue_(queue), process_(std::move(process)) {}

    void at(CoreTime when, std::function<void()> what) override {
      const bool is_armed = armed_->what != nullptr;
      armed_->what = std::move(what);
      if (is_armed && when == when_) return;
      when_ = when;
      armed_->count += 1;
      queue_.at(when, process_, [armed = std::weak_ptr(armed_), count = armed_->count] {
        const auto still = armed.lock();
        if (!still || still->count != count) return;
        if (const auto due = std::exchange(still->what, nullptr)) due();
      });
    }
    void cancel() override {
      armed_->count += 1;
      armed_->what = nullptr;
    }

   private:
    struct Armed {
      std::uint64_t count = 0;
      std::function<void()> what;
    };
    EventQueue& queue_;
    const ProcessPtr process_;
    CoreTime when_{};
    std::shared_ptr<Armed> armed_ = std::make_shared<Armed>();
  };

  template <typename Done>
  struct Pending final : rdzv::Attempt {
    explicit Pending(Done done_) : done(std::make_shared<Done>(std::move(done_))) {}
    std::shared_ptr<Done> done;
  };

  struct Acceptor final : rdzv::Attempt {
    Acceptor(VirtualNetwork& its_network, const rdzv::Endpoint& bound, const ProcessPtr& process,
             rdzv::AcceptEvents events)
        : network(its_network), at(bound.host, bound.port) {
      network.ports_[at] = {process, this, std::move(events.on_stream)};
    }
    ~Acceptor() override {
      const auto found = network.ports_.find(at);
      if (found != network.ports_.end() && found->second.acceptor == this)
        network.ports_.erase(found);
    }
    VirtualNetwork& network;
    const Address at;
  };

  class Transport final : public rdzv::Transport {
   public:
    Transport(VirtualNetwork& network, std::string host, int slot, ProcessPtr process)
        : network_(network), host_(std::move(host)), slot_(slot), process_(std::move(process)) {}

    CoreTime now() const override { return network_.queue_.now(); }
    std::unique_ptr<rdzv::TransportTimer> make_timer() override {
      return std::make_unique<Timer>(network_.queue_, process_);
    }
    void post(std::function<void()> what) override {
      network_.queue_.after({}, process_, std::move(what));
    }
    std::unique_ptr<rdzv::Attempt> connect(const rdzv::Endpoint& to, Connected done) override {
      auto attempt = std::make_unique<Pending<Connected>>(std::move(done));
      network_.connect(attempt->done, to, process_, host_, slot_);
      return attempt;
    }
    std::unique_ptr<rdzv::Attempt> look_up(const std::string& host, LookedUp done) override {
      auto attempt = std::make_unique<Pending<LookedUp>>(std::move(done));
      network_.queue_.after(network_.delay(), process_,
                            [weak = std::weak_ptr(attempt->done), host] {
                              if (const auto still = weak.lock()) (*still)(std::vector{host});
                            });
      return attempt;
    }
    std::unique_ptr<rdzv::Attempt> call(std::function<ddprun::Result<std::string>()> function,
                                        Called done) override {
      auto attempt = std::make_unique<Pending<Called>>(std::move(done));
      network_.queue_.after({}, process_,
                            [weak = std::weak_ptr(attempt->done), function = std::move(function)] {
                              if (const auto still = weak.lock()) (*still)(function());
                            });
      return attempt;
    }
    std::unique_ptr<rdzv::Attempt> accept(rdzv::Listener listener,
                                          rdzv::AcceptEvents events) override {
      return std::make_unique<Acceptor>(network_, listener.bound, process_, std::move(events));
    }

   private:
    VirtualNetwork& network_;
    const std::string host_;
    const int slot_;
    const ProcessPtr process_;
  };

  // ---- connections

  CoreTime::duration delay() { return random_.time(CoreTime::duration(50), delay_max_); }
  bool cut(int slot, End towards) const { return is_cut_[static_cast<std::size_t>(slot)][towards]; }

  std::vector<LinkPtr> live_links() const {
    std::vector<LinkPtr> live;
    for (const auto& each : links_) {
      if (auto link = each.lock()) live.push_back(std::move(link));
    }
    return live;
  }

  // Like a real kernel: connections to a stopped process succeed.
  void connect(const std::weak_ptr<rdzv::Transport::Connected>& done, const rdzv::Endpoint& to,
               const ProcessPtr& process, const std::string& host, int slot) {
    if (cut(slot, kAgentEnd) || cut(slot, kLeaderEnd) || dark_[to.host]) {
      queue_.after(kConnectRetry, process, [this, done, to, process, host, slot] {
        if (!done.expired()) connect(done, to, process, host, slot);
      });
      return;
    }
    queue_.after(delay(), [this, done, to, process, host, slot] {
      const Address at(to.host, to.port);
      const auto port = ports_.find(at);
      const bool listens = port != ports_.end() && port->second.process->is_alive;
      if (!process->is_alive || done.expired()) return;
      if (!listens) {
        queue_.after(delay(), process, [done] {
          const auto still = done.lock();
          if (still) (*still)(fail(ErrorCode::kUnavailable, "Connection refused"));
        });
        return;
      }
      const auto link = std::make_shared<Link>(
          Link{slot, false, {{{process, host}, {port->second.process, to.host}}}});
      const auto near = std::make_shared<Stream>(*this, link, kAgentEnd);
      const auto far = std::make_shared<Stream>(*this, link, kLeaderEnd);
      link->sides[kAgentEnd].stream = near;
      link->sides[kLeaderEnd].stream = far;
      std::erase_if(links_, [](const auto& each) { return each.expired(); });
      links_.push_back(link);
      link->sides[kLeaderEnd].last_arrival = queue_.now();
      queue_.after({}, port->second.process, [this, far, at] {
        const auto still = ports_.find(at);
        if (still == ports_.end()) return far->close();
        if (far->is_open()) still->second.on_stream(far);
      });
      const auto answer = delay();
      link->sides[kAgentEnd].last_arrival = queue_.now() + answer;
      queue_.after(answer, process, [done, near] {
        const auto still = done.lock();
        if (!still) return near->close();
        if (near->is_open()) return (*still)(rdzv::StreamPtr(near));
        (*still)(fail(ErrorCode::kIo, "Connection reset by peer"));
      });
    });
  }

  void send(const LinkPtr& link, End from, Segment segment) {
    if (link->is_reset || !link->sides[from].process->is_alive) return;
    if (cut(link->slot, other(from))) {
      link->sides[other(from)].held.push_back(std::move(segment));
    } else {
      deliver(link, other(from), std::move(segment));
    }
  }

  void deliver(const LinkPtr& link, End to, Segment segment) {
    Side& side = link->sides[to];
    side.last_arrival = std::max(side.last_arrival, queue_.now() + delay());
    queue_.at(side.last_arrival, side.process, [link, to, segment = std::move(segment)] {
      if (link->is_reset) return;
      if (const auto stream = link->sides[to].stream) stream->arrive(segment);
    });
  }

  // Data in transit is lost; each end gets the reset unless the network is cut.
  void reset(const LinkPtr& link) {
    if (std::exchange(link->is_reset, true)) return;
    for (const End end : {kAgentEnd, kLeaderEnd}) {
      Side& side = link->sides[end];
      side.held.clear();
      if (cut(link->slot, end)) continue;
      queue_.after(delay(), side.process, [link, end] {
        const auto stream = link->sides[end].stream;
        if (stream) stream->end({ErrorCode::kIo, "reading: Connection reset by peer", {}});
      });
    }
  }

  EventQueue& queue_;
  Random& random_;
  CoreTime::duration delay_max_;
  std::vector<std::array<bool, 2>> is_cut_;  // by slot: towards the agent, towards the leader
  std::map<std::string, bool> dark_;
  std::map<Address, Port> ports_;
  std::uint16_t last_port_ = 20'000;
  std::vector<std::weak_ptr<Link>> links_;
};

}  // namespace ddprun::sim
