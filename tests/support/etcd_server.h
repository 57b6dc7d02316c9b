// etcd for tests: one, or several as a cluster, on loopback, with folders of its own that go with it.
// Owned by one test, used from its thread; the processes die with the test, however it ends.
//
//   EtcdServers etcd;
//   etcd.kill(0);  etcd.start(0);
//
// The mistake to avoid: an etcd of which a majority is dead answers nothing, etcdctl() included.
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
  std::string password{};     // of the user root; empty: everybody may do everything
  std::string quota_bytes{};  // empty: etcd's own
};

class EtcdServers {
 public:
  explicit EtcdServers(EtcdSetup setup = {});  // and waits until they answer

  // Why none can be started here; empty: it can.
  static std::string obstacle();

  void start(int member);  // with what it had
  void kill(int member);   // SIGKILL, and waits for its end
  void signal(int member, int number) {
    members_.at(static_cast<std::size_t>(member)).job->signal(number);
  }
  int leader();  // which member leads the others

  std::string endpoints() const;  // of all, with commas between them
  std::string endpoint(int member) const;
  std::string get(const std::string& key) const;  // empty: there is no such key
  // Its output; waits for etcd where it is on its way.
  std::string etcdctl(const Command& arguments, milliseconds deadline = kDeadline) const;
  bool answers() const;
  std::string told() const;

 private:
  struct Member {
    rdzv::UniqueFd client;  // its ports, held
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

// The node of a job that etcd says leads; -1: none, or its agent is dead already.
int leading_node(const Cluster& cluster, const EtcdServers& etcd,
                 const std::string& prefix = "/ddprun");

}  // namespace ddprun::test
