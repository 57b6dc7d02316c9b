#include "worker_lib/group/freed_memory.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <cstring>
#include <vector>

namespace ddprun {
namespace {

long page_faults() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// As a step does: takes 40 MiB in ten tensors, writes to them, frees all. The page faults of it.
long faults_of_a_step() {
  constexpr std::size_t kBytes = std::size_t{4} << 20;
  const long before = page_faults();
  std::vector<void*> tensors;
  for (int i = 0; i < 10; ++i) {
    tensors.push_back(std::malloc(kBytes));
    std::memset(tensors.back(), i, kBytes);
  }
  for (void* tensor : tensors) std::free(tensor);
  return page_faults() - before;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
TEST(FreedMemory, DISABLED_IsThereForTheNextStep) {  // malloc is the sanitizer's
#else
TEST(FreedMemory, IsThereForTheNextStep) {
#endif
  keep_freed_memory();
  faults_of_a_step();
  EXPECT_LT(faults_of_a_step(), 1000) << "of ten thousand pages";
}

}  // namespace
}  // namespace ddprun
