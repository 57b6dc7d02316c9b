// Linked into the program of an example, notes what each of its ranks does in each step, in files that these variables name:
//
//   DDPRUN_RECORD_LOSSES=NAME    NAME.rank<N>: "<step> <loss>" after each step that reports a value to Context::progress(), all
//                                bits of the loss (%a)
//   DDPRUN_RECORD_SAMPLES=NAME   NAME.rank<N>: "<step> <epoch> <world size> <consumed before> <sample> … ." before each step. A
//                                line without the point is from a process that was killed while it wrote the line
//
//   DDPRUN_HOLD_AT=STEP:WORLD    waits before this step while the job has so many ranks: until another round begins, in which a
//                                test has more of them
//
// The rank also dies where a test says (death.h): "batch" is between two steps, "forward" in a step, before the forward.
//
// The linker leads the program's calls of four functions of worker_lib here (--wrap), by their symbols; so the example
// itself has nothing for tests.
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ddprun/checkpoint.h"
#include "ddprun/context.h"
#include "ddprun/ddp.h"
#include "ddprun/error.h"
#include "ddprun/sampler.h"
#include "tests/support/death.h"

// tests/support/CMakeLists.txt has the same four names.
#define DDPRUN_PROGRESS \
  "_ZN6ddprun7Context8progressEllSt4spanIKNS_13ProgressValueELm18446744073709551615EE"
#define DDPRUN_NEXT "_ZN6ddprun18DistributedSampler4nextEm"
#define DDPRUN_FORWARD "_ZN6ddprun15GradientReducer14before_forwardEv"
#define DDPRUN_RESUME "_ZN6ddprun12Checkpointer6resumeERKNS_10BareModuleERN5torch5optim9OptimizerE"

namespace ddprun::test {
namespace {

using Values = std::span<const ProgressValue>;
using Batch = std::optional<std::vector<std::size_t>>;
using Position = std::optional<TrainingPosition>;

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Close>;

// None if the variable is not set.
File file_of_rank(const char* variable, int rank) {
  const char* const name = std::getenv(variable);
  if (name == nullptr) return nullptr;
  const std::string path = std::string(name) + ".rank" + std::to_string(rank);
  File file(std::fopen(path.c_str(), "a"));
  if (!file) throw UsageError("the file " + path + " cannot be written");
  return file;
}

// Where it waits to be ended; 0: nowhere.
std::int64_t step_of_hold(int world_size) {
  const char* const text = std::getenv("DDPRUN_HOLD_AT");
  long long step = 0;
  int held_size = 0;
  if (text == nullptr || std::sscanf(text, "%lld:%d", &step, &held_size) != 2) return 0;
  return held_size == world_size ? step : 0;
}

TrainingPosition resumed;        // where the program began
std::int64_t last_step = 0;      // that the program has reported, or resumed from
std::int64_t batches_begun = 0;  // in this process, for a program that reports no steps

// How many steps lie before the sampler's next batch, counted from where the program began.
std::int64_t steps_before(const DistributedSampler& sampler, std::size_t batch_size) {
  const std::int64_t world = sampler.num_replicas();
  const std::int64_t of_step = static_cast<std::int64_t>(batch_size) * world;
  const auto steps_of = [of_step](std::int64_t samples) {
    return (samples + of_step - 1) / of_step;
  };
  const std::int64_t samples = sampler.consumed() + sampler.remaining() * world;
  return resumed.step +
         (static_cast<std::int64_t>(sampler.epoch()) - resumed.epoch) * steps_of(samples) +
         steps_of(sampler.consumed()) - steps_of(resumed.consumed);
}

}  // namespace

// By the ABI of C++, in which `this` is the first argument.
void real_progress(Context* self, std::int64_t step, std::int64_t total,
                   Values values) asm("__real_" DDPRUN_PROGRESS);
void wrapped_progress(Context* self, std::int64_t step, std::int64_t total,
                      Values values) asm("__wrap_" DDPRUN_PROGRESS);
Batch real_next(DistributedSampler* self, std::size_t batch_size) asm("__real_" DDPRUN_NEXT);
Batch wrapped_next(DistributedSampler* self, std::size_t batch_size) asm("__wrap_" DDPRUN_NEXT);
void real_forward(GradientReducer* self) asm("__real_" DDPRUN_FORWARD);
void wrapped_forward(GradientReducer* self) asm("__wrap_" DDPRUN_FORWARD);
Position real_resume(Checkpointer* self, const BareModule& model,
                     torch::optim::Optimizer& optimizer) asm("__real_" DDPRUN_RESUME);
Position wrapped_resume(Checkpointer* self, const BareModule& model,
                        torch::optim::Optimizer& optimizer) asm("__wrap_" DDPRUN_RESUME);

void wrapped_progress(Context* self, std::int64_t step, std::int64_t total, Values values) {
  static const File losses = file_of_rank("DDPRUN_RECORD_LOSSES", self->rank());
  last_step = step;
  if (losses && !values.empty()) {
    std::fprintf(losses.get(), "%lld %a\n", static_cast<long long>(step), values.front().value);
    std::fflush(losses.get());
  }
  real_progress(self, step, total, values);
}

Batch wrapped_next(DistributedSampler* self, std::size_t batch_size) {
  static const File samples = file_of_rank("DDPRUN_RECORD_SAMPLES", self->rank());
  const std::int64_t consumed = self->consumed();
  // A process that takes the place of a rank begins where the rank was, and has reported no step.
  if (batches_begun == 0 && std::getenv("DDPRUN_PREPARED") != nullptr) {
    last_step = steps_before(*self, batch_size);
  }
  Batch batch = real_next(self, batch_size);
  if (!batch) return batch;
  if (samples) {
    std::fprintf(samples.get(), "\n%lld %lld %d %lld", static_cast<long long>(last_step + 1),
                 static_cast<long long>(self->epoch()), self->num_replicas(),
                 static_cast<long long>(consumed));
    for (const std::size_t sample : *batch) std::fprintf(samples.get(), " %zu", sample);
    std::fprintf(samples.get(), " .");
    std::fflush(samples.get());
  }
  death::at_step(std::max(last_step + 1, ++batches_begun));
  death::reach("batch");
  static const std::int64_t held = step_of_hold(self->num_replicas());
  if (held > 0 && last_step + 1 >= held) {
    for (;;) ::pause();
  }
  return batch;
}

Position wrapped_resume(Checkpointer* self, const BareModule& model,
                        torch::optim::Optimizer& optimizer) {
  Position position = real_resume(self, model, optimizer);
  if (position) resumed = *position;
  last_step = resumed.step;
  return position;
}

void wrapped_forward(GradientReducer* self) {
  death::reach("forward");
  real_forward(self);
}

}  // namespace ddprun::test
