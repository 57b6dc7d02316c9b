#include "worker_lib/group/agreement.h"

#include <exception>

#include "ddprun/error.h"
#include "ddprun/serialize.h"
#include "worker_lib/c10d/error_text.h"

namespace ddprun::detail {
namespace {

std::optional<RankError> error_of(const std::exception_ptr& thrown) {
  if (!thrown) return std::nullopt;
  RankError error{.text = error_text(thrown)};
  try {
    std::rethrow_exception(thrown);
  } catch (const Failure& failure) {
    error.code = failure.error().code;
    error.is_usage_error = dynamic_cast<const UsageError*>(&failure) != nullptr;
  } catch (...) {
  }
  return error;
}

}  // namespace

// Where no rank has one, nothing is sent but lengths.
std::optional<RankError> first_error(Group& group, std::optional<RankError> mine) {
  if (mine) mine->rank = group.rank();
  if (group.size() == 1) return mine;
  for (const std::string& bytes : group.all_gather(mine ? to_bytes(*mine) : std::string())) {
    if (!bytes.empty()) return from_bytes<RankError>(bytes);
  }
  return std::nullopt;
}

LeaveVote::Ballot least(Group& group, LeaveVote::Ballot ballot) {
  if (group.size() > 1) {
    group.all_reduce(torch::from_blob(ballot.data(), {2}, torch::kInt64), ReduceOp::MIN);
  }
  return ballot;
}

void throw_together(Group& group, const std::exception_ptr& mine, const std::string& doing) {
  const auto first = first_error(group, error_of(mine));
  if (mine) std::rethrow_exception(mine);
  if (!first) return;
  const std::string message = doing + " failed on rank " +
                              std::to_string(group.global_rank(first->rank)) + ": " + first->text;
  if (first->is_usage_error) throw UsageError(Error{first->code, message});
  throw Failure(first->code, message);
}

}  // namespace ddprun::detail
