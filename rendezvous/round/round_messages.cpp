#include "rendezvous/round/round_messages.h"

namespace ddprun::rdzv {
namespace {

std::string_view in_words(NodeGone::How how) {
  switch (how) {
    case NodeGone::How::kDisconnected:
      return "was lost: its connection broke and did not come back";
    case NodeGone::How::kSilent:
      return "was lost: nothing was heard of it for too long";
    case NodeGone::How::kReplaced:
      return "was lost, and another node took its place";
    case NodeGone::How::kLeft:
      return "left";
    case NodeGone::How::kUnresponsive:
      return "was lost: its agent lives, but did not answer the leader in time";
    case NodeGone::How::kStuck:
      break;
  }
  return "cannot go on: a worker there does not end even after SIGKILL";
}

}  // namespace

std::string describe(const NodeGone& gone) {
  std::string text = "node " + std::to_string(gone.node_rank);
  if (!gone.host.empty()) text += " (" + gone.host + ")";
  return text + " " + std::string(in_words(gone.how));
}

}  // namespace ddprun::rdzv
