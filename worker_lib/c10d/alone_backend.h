// AloneBackend: what a process uses as its group that makes a rank's set-up before it is that rank: a
// broadcast, an all-reduce and a barrier are over at once and change nothing. All else is refused, as c10d
// refuses what a backend does not have. PyTorch's FakeProcessGroup does the same, in a header that needs
// Python.
#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

namespace ddprun {

class AloneBackend : public c10d::Backend {
 public:
  // `name` begins as that of the worker's backend, by which reductions are asked for in other ways.
  AloneBackend(int rank, int size, std::string name)
      : c10d::Backend(rank, size), name_(std::move(name)) {}
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  const std::string getBackendName() const override { return name_; }
  void abort() override {}
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions&) override {
    return done(tensors);
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions&) override {
    return done(tensors);
  }
  WorkPtr barrier(const c10d::BarrierOptions&) override { return done({}); }

 private:
  static WorkPtr done(Tensors tensors) {
    std::vector<c10::Device> gpus;
    if (!tensors.empty() && !tensors.front().is_cpu()) gpus.push_back(tensors.front().device());
    auto future = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), std::move(gpus));
    future->markCompleted(at::IValue(std::move(tensors)));
    return c10d::Work::create_from_future(future);
  }

  const std::string name_;
};

}  // namespace ddprun
