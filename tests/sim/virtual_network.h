// The network of a simulation: hosts in slots, ports, and connections that deliver in order, with
// varying delays. It can be cut (no data passes, in one or both directions, until healed), and
// connections can be reset. A process uses it, and the time, through a Transport like the real one.
#pragma once

#include <array>
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

class VirtualStream;

class VirtualNetwork {
 public:
  VirtualNetwork(EventQueue& queue, Random& random, std::size_t slots, CoreTime::duration delay_max)
      : queue_(queue), random_(random), delay_max_(delay_max), is_cut_(slots) {}
  ~VirtualNetwork();
  VirtualNetwork(const VirtualNetwork&) = delete;
  VirtualNetwork& operator=(const VirtualNetwork&) = delete;

  // For a process on this host; its connections are cut with this slot.
  std::shared_ptr<rdzv::Transport> transport(std::string host, int slot, ProcessPtr process);

  // Reserves a port; it listens when an acceptor uses it.
  rdzv::Listener bind(const std::string& host, std::uint16_t port = 0);

  // ---- faults
  void set_cut(int slot, End towards, bool is_cut);  // for connections made from that slot
  void reset_of(int slot);                           // likewise
  void reset_of(const ProcessPtr& process);          // all its connections: it was killed
  // Without power it does not answer.
  void set_dark(const std::string& host, bool is_dark) { dark_[host] = is_dark; }

 private:
  friend class VirtualStream;
  friend class VirtualTransport;

  struct Segment {
    std::string bytes;
    bool is_last = false;
  };
  struct Side {
    ProcessPtr process;
    std::string host;
    std::shared_ptr<VirtualStream> stream{};  // null: it has ended
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

  CoreTime::duration delay() { return random_.time(CoreTime::duration(50), delay_max_); }
  bool cut(int slot, End towards) const { return is_cut_[static_cast<std::size_t>(slot)][towards]; }

  void connect(const std::weak_ptr<rdzv::Transport::Connected>& done, const rdzv::Endpoint& to,
               const ProcessPtr& process, const std::string& host, int slot);
  void send(const LinkPtr& link, End from, Segment segment);
  void deliver(const LinkPtr& link, End to, Segment segment);
  void reset(const LinkPtr& link);
  template <typename Predicate>
  void reset_where(Predicate predicate);

  EventQueue& queue_;
  Random& random_;
  CoreTime::duration delay_max_;
  std::vector<std::array<bool, 2>> is_cut_;  // by slot: towards the agent, towards the leader
  std::map<std::string, bool> dark_;
  std::map<std::pair<std::string, std::uint16_t>, Port> ports_;
  std::uint16_t last_port_ = 20'000;
  std::vector<std::weak_ptr<Link>> links_;
};

}  // namespace ddprun::sim
