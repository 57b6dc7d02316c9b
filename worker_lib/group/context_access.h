// What parts of this library need of a Context or a Group and users do not. Private to worker_lib; one thread.
#pragma once

#include <functional>
#include <memory>

#include "ddprun/context.h"

namespace ddprun {

class FailureDiagnosis;
class Recovery;

namespace detail {

// ContextOptions::ignore_sigpipe.
void ignore_sigpipe();

struct ContextAccess {
  static AgentLink* link(Context& context) { return context.link_.get(); }
  // This process, from here on also by its link.
  static bool is_told_to_leave(Context& context);
  // None in a world of one, and after the end.
  static std::shared_ptr<FailureDiagnosis> diagnosis(const Context& context);
  // For a backend whose calls do not end when a rank is gone: from here on they are aborted then, and
  // the failure is thrown by this or the next call (failure_diagnosis.h). Every rank.
  static void abort_when_broken(Context& context);
  // None: ranks are not replaced in place here.
  static std::shared_ptr<Recovery> recovery(const Group& group);
  // Whether this process is a standby that has no place yet.
  static bool is_prepared(const Group& group);
  static LeaveVote& leave_vote(Context& context) { return *context.leave_vote_; }
  // All ranks leave at this step.
  static void note_leaving(Context& context);
  static void leave(Context& context);
  // In a handler. `known` is called in one of what is thrown then, before this rank waits for the others
  // that need its store.
  [[noreturn]] static void fail(Context& context, const std::function<void()>& known = {});
};

}  // namespace detail
}  // namespace ddprun
