// etcd for tests: one member or a cluster, on loopback, with folders that are removed at the end.
// Owned by one test, used from its thread; the processes die with the test, however it ends.
//
//   EtcdServers etcd;
//   etcd.kill(0);  etcd.start(0);
//
// Do not call etcdctl() while a majority of the members is dead, because etcd does not answer then.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rendezvous/common/unique_fd.h"
#include "tests/support/certificates.h"
#include "tests/support/cluster.h"
#include "tests/support/job.h"

namespace ddprun::test {

struct EtcdSetup {
  int members = 1;
  const Certificates* certificates = nullptr;  // TLS, for clients
  bool wants_client_certificate = false;
  std::string password{};     // of the user root; empty: no authentication
  std::string quota_bytes{};  // empty: etcd's default
};

class EtcdServers {
 public:
  explicit EtcdServers(EtcdSetup setup = {});  // waits until they answer

  // Why etcd cannot be started here; empty if it can.
  static std::string obstacle();

  void start(int member);  // with its old data
  void kill(int member);   // SIGKILL, and waits for its end
  void signal(int member, int number) {
    members_.at(static_cast<std::size_t>(member)).job->signal(number);
  }
  int leader();  // the member that leads the others

  std::string endpoints() const;  // of all members, separated by commas
  std::string endpoint(int member) const;
  std::string get(const std::string& key) const;  // empty: there is no such key
  // Returns its output; waits while etcd starts.
  std::string etcdctl(const Command& arguments, milliseconds deadline = kDeadline) const;
  bool answers() const;
  std::string told() const;

 private:
  struct Member {
    rdzv::UniqueFd client;  // its reserved ports
    rdzv::UniqueFd peer;
    std::uint16_t client_port = 0;
    std::uint16_t peer_port = 0;
    std::unique_ptr<Job> job;
  };

  std::string url(int member) const;
  void enable_users();

  EtcdSetup setup_;
  bool has_users_ = false;
  TemporaryTree folder_;
  std::vector<Member> members_;
};

// The node that leads a job according to etcd; -1: none, or its agent is dead already.
int leading_node(const Cluster& cluster, const EtcdServers& etcd,
                 const std::string& prefix = "/ddprun");

}  // namespace ddprun::test
