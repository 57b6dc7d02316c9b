#include "tests/sim/virtual_network.h"

#include <algorithm>
#include <chrono>

namespace ddprun::sim {

using namespace std::chrono_literals;
using rdzv::Endpoint;
using rdzv::StreamPtr;

namespace {

constexpr auto kConnectRetry = 50ms;  // the client tries again if the host does not answer
constexpr int kCutInTwoPercent = 10;  // of sends, which are split in two

}  // namespace

// ---- streams

class VirtualStream final : public rdzv::Stream {
 public:
  VirtualStream(VirtualNetwork& network, VirtualNetwork::LinkPtr link, End end)
      : network_(network), link_(std::move(link)), end_(end) {}

  void start(Events events) override {
    events_ = std::make_shared<const Events>(std::move(events));
  }
  void send(std::string_view bytes) override {
    if (!is_open_ || is_finished_ || bytes.empty()) return;
    if (bytes.size() > 1 && network_.random_.chance(kCutInTwoPercent)) {
      const auto size =
          static_cast<std::size_t>(network_.random_.number(1, static_cast<int>(bytes.size()) - 1));
      network_.send(link_, end_, {std::string(bytes.substr(0, size))});
      bytes.remove_prefix(size);
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

  void arrive(VirtualNetwork::Segment segment) {
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
  const VirtualNetwork::LinkPtr link_;
  const End end_;
  std::shared_ptr<const Events> events_;
  bool is_open_ = true;
  bool is_finished_ = false;
};

// ---- what a process has of it

class VirtualTimer final : public rdzv::Timer {
 public:
  VirtualTimer(EventQueue& queue, ProcessPtr process)
      : queue_(queue), process_(std::move(process)) {}

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

class VirtualTransport final : public rdzv::Transport {
 public:
  VirtualTransport(VirtualNetwork& network, std::string host, int slot, ProcessPtr process)
      : network_(network), host_(std::move(host)), slot_(slot), process_(std::move(process)) {}

  CoreTime now() const override { return network_.queue_.now(); }
  std::unique_ptr<rdzv::Timer> make_timer() override {
    return std::make_unique<VirtualTimer>(network_.queue_, process_);
  }
  void post(std::function<void()> what) override {
    network_.queue_.after(0us, process_, std::move(what));
  }

  template <typename Done>
  struct Pending final : rdzv::Attempt {
    explicit Pending(Done done_) : done(std::make_shared<Done>(std::move(done_))) {}
    std::shared_ptr<Done> done;
  };
  std::unique_ptr<rdzv::Attempt> connect(const Endpoint& to, Connected done) override {
    auto attempt = std::make_unique<Pending<Connected>>(std::move(done));
    network_.connect(attempt->done, to, process_, host_, slot_);
    return attempt;
  }
  std::unique_ptr<rdzv::Attempt> look_up(const std::string& host, LookedUp done) override {
    auto attempt = std::make_unique<Pending<LookedUp>>(std::move(done));
    network_.queue_.after(network_.delay(), process_, [weak = std::weak_ptr(attempt->done), host] {
      if (const auto still = weak.lock()) (*still)(std::vector{host});
    });
    return attempt;
  }

  class Accepting final : public rdzv::Attempt {
   public:
    Accepting(VirtualNetwork& network, std::pair<std::string, std::uint16_t> at,
              const ProcessPtr& process, rdzv::AcceptEvents events)
        : network_(network), at_(std::move(at)) {
      network_.ports_[at_] = {process, this, std::move(events.on_stream)};
    }
    ~Accepting() override {
      const auto found = network_.ports_.find(at_);
      if (found != network_.ports_.end() && found->second.acceptor == this) {
        network_.ports_.erase(found);
      }
    }

   private:
    VirtualNetwork& network_;
    const std::pair<std::string, std::uint16_t> at_;
  };
  std::unique_ptr<rdzv::Attempt> accept(rdzv::Listener listener,
                                        rdzv::AcceptEvents events) override {
    return std::make_unique<Accepting>(
        network_, std::pair(listener.bound.host, listener.bound.port), process_, std::move(events));
  }

 private:
  VirtualNetwork& network_;
  const std::string host_;
  const int slot_;
  const ProcessPtr process_;
};

std::shared_ptr<rdzv::Transport> VirtualNetwork::transport(std::string host, int slot,
                                                           ProcessPtr process) {
  return std::make_shared<VirtualTransport>(*this, std::move(host), slot, std::move(process));
}

rdzv::Listener VirtualNetwork::bind(const std::string& host, std::uint16_t port) {
  return {{}, {host, port != 0 ? port : ++last_port_}};
}

// ---- connections

// Breaks cycles: data in transit may own its connection.
VirtualNetwork::~VirtualNetwork() {
  for (const auto& each : links_) {
    const auto link = each.lock();
    if (!link) continue;
    for (Side& side : link->sides) {
      if (const auto stream = side.stream) stream->leave();
    }
  }
}

// Like a real kernel: connections to a stopped process succeed.
void VirtualNetwork::connect(const std::weak_ptr<rdzv::Transport::Connected>& done,
                             const Endpoint& to, const ProcessPtr& process, const std::string& host,
                             int slot) {
  if (cut(slot, kAgentEnd) || cut(slot, kLeaderEnd) || dark_[to.host]) {
    queue_.after(kConnectRetry, process, [this, done, to, process, host, slot] {
      if (!done.expired()) connect(done, to, process, host, slot);
    });
    return;
  }
  queue_.after(delay(), [this, done, to, process, host, slot] {
    const auto port = ports_.find({to.host, to.port});
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
    const auto near = std::make_shared<VirtualStream>(*this, link, kAgentEnd);
    const auto far = std::make_shared<VirtualStream>(*this, link, kLeaderEnd);
    link->sides[kAgentEnd].stream = near;
    link->sides[kLeaderEnd].stream = far;
    std::erase_if(links_, [](const auto& each) { return each.expired(); });
    links_.push_back(link);
    link->sides[kLeaderEnd].last_arrival = queue_.now();
    queue_.after(0us, port->second.process, [this, far, at = std::pair(to.host, to.port)] {
      const auto still = ports_.find(at);
      if (still == ports_.end()) return far->close();
      if (far->is_open()) still->second.on_stream(far);
    });
    const auto answer = delay();
    link->sides[kAgentEnd].last_arrival = queue_.now() + answer;
    queue_.after(answer, process, [done, near] {
      const auto still = done.lock();
      if (!still) return near->close();
      if (near->is_open()) return (*still)(StreamPtr(near));
      (*still)(fail(ErrorCode::kIo, "Connection reset by peer"));
    });
  });
}

void VirtualNetwork::send(const LinkPtr& link, End from, Segment segment) {
  if (link->is_reset || !link->sides[from].process->is_alive) return;
  if (cut(link->slot, other(from))) {
    link->sides[other(from)].held.push_back(std::move(segment));
  } else {
    deliver(link, other(from), std::move(segment));
  }
}

void VirtualNetwork::deliver(const LinkPtr& link, End to, Segment segment) {
  Side& side = link->sides[to];
  side.last_arrival = std::max(side.last_arrival, queue_.now() + delay());
  queue_.at(side.last_arrival, side.process, [link, to, segment = std::move(segment)]() mutable {
    if (link->is_reset) return;
    if (const auto stream = link->sides[to].stream) stream->arrive(std::move(segment));
  });
}

// Data in transit is lost; each end gets the reset unless the network is cut.
void VirtualNetwork::reset(const LinkPtr& link) {
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

template <typename Predicate>
void VirtualNetwork::reset_where(Predicate predicate) {
  for (const auto& each : std::vector(links_)) {
    if (const auto link = each.lock(); link && predicate(*link)) reset(link);
  }
}

void VirtualNetwork::reset_of(int slot) {
  reset_where([slot](const Link& link) { return link.slot == slot; });
}

void VirtualNetwork::reset_of(const ProcessPtr& process) {
  reset_where([&](const Link& link) {
    return link.sides[kAgentEnd].process == process || link.sides[kLeaderEnd].process == process;
  });
}

void VirtualNetwork::set_cut(int slot, End towards, bool is_cut) {
  is_cut_[static_cast<std::size_t>(slot)][towards] = is_cut;
  if (is_cut) return;
  for (const auto& each : links_) {
    const auto link = each.lock();
    if (!link || link->slot != slot) continue;
    for (Segment& segment : std::exchange(link->sides[towards].held, {})) {
      deliver(link, towards, std::move(segment));
    }
  }
}

}  // namespace ddprun::sim
