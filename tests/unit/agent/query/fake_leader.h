// A leader that does nothing: a test reads what it was asked, and says what the leader would.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "rendezvous/leader/leader.h"

namespace ddprun::agent {

class FakeLeader final : public rdzv::Leader {
 public:
  void join(rdzv::NodeHello) override {}
  void tell(const rdzv::ToLeader&) override {}
  void ask(rdzv::PeerRequest question) override { asked.push_back(std::move(question)); }
  void answer(rdzv::PeerReply answer) override { answered.push_back(std::move(answer)); }
  bool may_exit() override { return true; }
  bool is_here() const override { return false; }
  std::string local_address() const override { return "127.0.0.1"; }

  std::vector<rdzv::PeerRequest> asked;
  std::vector<rdzv::PeerReply> answered;
};

}  // namespace ddprun::agent
