// Nodes in a private network: each has its own network namespace, hosts file and host name, like a
// machine, and shares files and process ids with the test. Nothing outside is changed, and no
// cleanup is needed: the kernel removes everything with the last process that uses it, however the
// test ends. Owned by one test, used from its thread.
//
//   Network network(2);
//   Job job(ddprun({…}, worker({…})), network.on(1));
//   network.cut(1);                    // node 1 can neither receive nor send any more
//
// Needs root, or the right to create namespaces: ask obstacle() first. A socket that the test
// itself opens is in the test's own network, so open it within() a node.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/common/unique_fd.h"
#include "tests/support/frame_switch.h"
#include "tests/support/job.h"

namespace ddprun::test {
using rdzv::UniqueFd;

class Network {
 public:
  // Why no network can be created here; nullopt if it can.
  static const std::optional<std::string>& obstacle();

  // Every node knows the names of all nodes, unless `with_names` is false: then use add_name().
  explicit Network(int nodes, bool with_names = true);
  ~Network();  // kills the remaining processes
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  static std::string host(int node);      // "node1"
  static std::string address(int node);   // "10.77.0.2"
  static std::string address6(int node);  // "fd77::2"

  // The setup that runs a Job on this node.
  JobSetup on(int node, JobSetup setup = {}) const;
  // Calls `f` in the node, on a new thread, and waits for it.
  void within(int node, const std::function<void()>& f) const;

  void add_name(int node) { add_name(node, host(node)); }
  void add_name(int node, const std::string& name);
  void forget_names();                                   // all but localhost
  void rename(int node, const std::string& host) const;  // changes what gethostname() returns there

  void set_cable(int node, const Cable& cable);
  void cut(int node) { set_cable(node, {.sends = false, .receives = false}); }
  void join(int node) { set_cable(node, {}); }
  // See FrameSwitch.
  bool break_connection(int node, std::uint16_t tcp_port, milliseconds deadline = kDeadline);

  std::vector<pid_t> processes() const;
  // Waits until all processes in the network are gone; returns those that are left at the deadline.
  std::vector<std::string> left_over(milliseconds deadline = seconds(5)) const;

 private:
  struct Node {
    UniqueFd network;
    UniqueFd files;
    UniqueFd name;
    std::string network_link;  // as /proc/PID/ns/net shows it
  };

  std::vector<UniqueFd> make_nodes(int nodes);
  const Node& at(int node) const { return nodes_.at(static_cast<std::size_t>(node)); }

  TemporaryTree folder_;
  std::vector<Node> nodes_;
  std::optional<FrameSwitch> switch_;
};

}  // namespace ddprun::test
