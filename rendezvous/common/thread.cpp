#include "rendezvous/common/thread.h"

#include <sys/prctl.h>

#include <memory>

#include "rendezvous/common/signals_blocked.h"

namespace ddprun::rdzv {
namespace {

// Address space only: a page is allocated when it is first touched. There must be room for the
// thread-local storage of any program that links this, and for sanitizers.
constexpr std::size_t kStackBytes = std::size_t{1024} * 1024;

struct Start {
  const char* name;
  std::function<void()> body;
};

// The thread sets its own name: doing that from another thread would open a file in /proc.
void* run(void* argument) {
  const std::unique_ptr<Start> start(static_cast<Start*>(argument));
  ::prctl(PR_SET_NAME, start->name);
  start->body();
  return nullptr;
}

}  // namespace

Result<Thread> Thread::start(const char* name, std::function<void()> body) {
  auto argument = std::make_unique<Start>(Start{name, std::move(body)});
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  pthread_t id{};
  const int error = [&] {
    const AllSignalsBlocked blocked;
    return pthread_create(&id, &attributes, run, argument.get());
  }();
  pthread_attr_destroy(&attributes);
  if (error != 0) return fail(error_of_start(error, "cannot start a thread"));
  static_cast<void>(argument.release());
  return Thread(id);
}

void Thread::join() {
  if (id_) pthread_join(*id_, nullptr);
  id_.reset();
}

void Thread::detach() {
  if (id_) pthread_detach(*id_);
  id_.reset();
}

}  // namespace ddprun::rdzv
