// ddprun_hanging_worker HOW: a rank whose calls go through a backend that hangs as NCCL does: no call notices
// that a rank is gone, and all wait until they are aborted. After a first barrier, over Gloo, every rank
// makes a call that never ends, all but the last rank, which waits for a signal: SIGKILL, or SIGUSR1, upon
// which it throws, or returns (as told by HOW). Who has come that far writes "rank N waits".
//
//   throws, returns   the call is an all_reduce, and throws when it is aborted
//   backward          it is made by DistributedDataParallel in a backward pass
//   quiet             an aborted all_reduce looks like one that is done, as NCCL's does
//   smaller           it is an all_reduce in a smaller group of all ranks
//
// SIGTERM is ignored, as by a program that saves its state when it is told to stop.
#include <torch/torch.h>

#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <mutex>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "ddprun/ddp.h"
#include "ddprun/run.h"
#include "worker_lib/group/context_access.h"

namespace {

class Gate {
 public:
  void open() {
    const std::scoped_lock lock(mutex_);
    is_open_ = true;
    opened_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [this] { return is_open_; });
  }
  bool is_open() {
    const std::scoped_lock lock(mutex_);
    return is_open_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool is_open_ = false;
};

class HangingWork : public c10d::Work {
 public:
  HangingWork(std::shared_ptr<Gate> aborted, bool is_quiet)
      : aborted_(std::move(aborted)), is_quiet_(is_quiet) {}
  bool isCompleted() override { return aborted_->is_open(); }
  bool wait(std::chrono::milliseconds) override {
    aborted_->wait();
    if (!is_quiet_) C10_THROW_ERROR(DistBackendError, "the communicator was aborted");
    return true;
  }
  // The Reducer waits by this.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    try {
      wait({});
    } catch (...) {
      auto failed =
          c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
      failed->setError(std::current_exception());
      return failed;
    }
    throw std::logic_error("a quiet call has no future");
  }

 private:
  std::shared_ptr<Gate> aborted_;
  bool is_quiet_;
};

void say(int rank, const char* what) { std::fprintf(stderr, "rank %d %s\n", rank, what); }

class HangingBackend : public c10d::Backend {
 public:
  HangingBackend(int rank, int size, bool is_quiet) : Backend(rank, size), is_quiet_(is_quiet) {}
  const std::string getBackendName() const override { return "hanging"; }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&,
                                           const c10d::AllreduceOptions&) override {
    say(getRank(), "waits");
    return c10::make_intrusive<HangingWork>(aborted_, is_quiet_);
  }
  void abort() override { aborted_->open(); }

 private:
  std::shared_ptr<Gate> aborted_ = std::make_shared<Gate>();
  bool is_quiet_;
};

void hang(c10d::ProcessGroup& group, bool is_quiet) {
  group.setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM,
                   c10::make_intrusive<HangingBackend>(group.getRank(), group.getSize(), is_quiet));
}

void await_signal() {
  sigset_t wanted;
  sigemptyset(&wanted);
  sigaddset(&wanted, SIGUSR1);
  int signal = 0;
  sigwait(&wanted, &signal);
}

void go_on(ddprun::Context& context, const std::string& how) {
  ddprun::detail::ContextAccess::abort_when_broken(context);
  const auto smaller = context.new_group({0, 1, 2});
  ddprun::DistributedDataParallel model(std::make_shared<torch::nn::LinearImpl>(8, 8), context);
  context.barrier();
  ddprun::Group& group = how == "smaller" ? *smaller : context;
  hang(*group.process_group(), how == "quiet");
  if (context.rank() == context.world_size() - 1) {
    say(context.rank(), "waits");
    await_signal();
    if (how == "returns") return;
    throw std::runtime_error("thrown on purpose");
  }
  if (how == "backward") model(torch::ones({2, 8})).sum().backward();
  if (how != "quiet") return group.all_reduce(torch::ones({3}));
  auto pending = group.all_reduce_async(torch::ones({3}));
  pending.wait();
  say(context.rank(), "goes on with what an aborted call has left");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::signal(SIGTERM, SIG_IGN);
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGUSR1);
  sigprocmask(SIG_BLOCK, &blocked, nullptr);
  return ddprun::run(argc, argv, [&](ddprun::Context& context) { go_on(context, argv[1]); },
                     {.backend = ddprun::Backend::kGloo});
}
