#include "worker_lib/group/freed_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
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

// The flags of the mappings that are the heap.
std::vector<std::string> flags_of_heap() {
  std::vector<std::string> flags;
  std::ifstream maps("/proc/self/smaps");
  bool is_heap = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find('-') < line.find(':')) is_heap = line.ends_with("[heap]");
    if (is_heap && line.starts_with("VmFlags:")) flags.push_back(line);
  }
  return flags;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
TEST(FreedMemory, DISABLED_ComesInHugePagesToTheFirstStep) {
#else
TEST(FreedMemory, ComesInHugePagesToTheFirstStep) {
#endif
  if (!std::filesystem::exists("/sys/kernel/mm/transparent_hugepage")) GTEST_SKIP();
  keep_freed_memory();
  EXPECT_THAT(flags_of_heap(), ::testing::Contains(::testing::HasSubstr(" hg")));
}

}  // namespace
}  // namespace ddprun
