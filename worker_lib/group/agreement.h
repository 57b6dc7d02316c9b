// What the ranks of a group agree on: whether one of them has an error, and what is the least.
// Collective; private to worker_lib; one thread.
#pragma once

#include <optional>
#include <string>

#include "ddprun/collectives.h"
#include "worker_lib/group/leave_vote.h"

namespace ddprun::detail {

struct RankError {
  ErrorCode code = ErrorCode::kUnavailable;
  std::string text;
  bool is_usage_error = false;
  int rank = 0;  // of the group; filled in by first_error()

  template <typename Fields>
  void fields(Fields& field) {
    field(code, text, is_usage_error, rank);
  }
};

// That of the first rank which has one, on every rank; one small collective where none has.
std::optional<RankError> first_error(Group& group, std::optional<RankError> mine);

// The least of each element.
LeaveVote::Ballot least(Group& group, LeaveVote::Ballot ballot);

}  // namespace ddprun::detail
