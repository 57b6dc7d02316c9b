#include "rendezvous/round/gathering.h"

#include <algorithm>

namespace ddprun::rdzv {
namespace {

constexpr auto kProgressInterval = std::chrono::seconds(10);
// How long to wait for the nodes of another leader's round: often some of them died together with
// it.
constexpr std::chrono::milliseconds kReturnTimeout{10'000};

}  // namespace

Gathering::Next Gathering::go_on(const RoundConfig& config, const Nodes& nodes, CoreTime now) {
  const bool is_enough = nodes.ready >= config.min_nodes;
  const bool is_full = nodes.ready >= config.max_nodes;
  const bool is_complete = nodes.has_run && nodes.ready >= nodes.expected;
  if (is_enough && !last_call) {
    last_call = now + (nodes.has_run ? std::min(config.last_call_timeout, kReturnTimeout)
                                     : config.last_call_timeout);
  }
  if (!is_enough) last_call.reset();
  if (is_full || (is_enough && (is_complete || now >= *last_call))) return Next::kOpen;
  if (!give_up && nodes.is_counting) give_up = now + config.join_timeout;
  return give_up && !is_enough && now >= *give_up ? Next::kGiveUp : Next::kWait;
}

bool Gathering::is_progress_due(CoreTime now) {
  if (!give_up || now < next_progress) return false;
  next_progress = now + kProgressInterval;
  return true;
}

void Gathering::shorten_last_call(CoreTime now) {
  if (last_call) last_call = std::min(*last_call, now + kReturnTimeout);
}

}  // namespace ddprun::rdzv
