// The inputs, states and decisions of the cores, in words, for `ddpctl replay` and the scenarios of the tests. Pure.
#pragma once

#include <string>

#include "agent/core/hang_response_core.h"
#include "agent/core/node_core.h"
#include "rendezvous/round/hang_core.h"
#include "rendezvous/round/round_core.h"

namespace ddprun::agent {

std::string in_words(const rdzv::ToLeader& message);
std::string in_words(const rdzv::ToAgent& message);
std::string in_words(const rdzv::RoundInput& input);  // without its time
std::string in_words(const rdzv::ToNode& message);
std::string in_words(const rdzv::RankCalls& rank);
std::string in_words(const NodeEvent& event);
std::string in_words(const NodeAction& action);
std::string in_words(const hang_response::Event& event);
std::string in_words(const hang_response::Action& action);
std::string state_of(const NodeCore& core);  // "running (round 1)"
std::string state_of(const rdzv::LeaderView& view);

}  // namespace ddprun::agent
