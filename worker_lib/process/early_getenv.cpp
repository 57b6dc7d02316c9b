// Part of ddprun::standby: which of a worker's variables the program reads before its Context. This getenv() replaces the C
// library's for the program and the libraries that it is linked with, and does the same. What reads
// `environ` itself is not seen.
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string_view>

#include "worker_lib/process/zygote.h"

namespace ddprun::zygote {
namespace {

constexpr const char* kOfAWorker[] = {"RANK",
                                      "LOCAL_RANK",
                                      "WORLD_SIZE",
                                      "GROUP_RANK",
                                      "LOCAL_WORLD_SIZE",
                                      "GROUP_WORLD_SIZE",
                                      "ROLE_RANK",
                                      "ROLE_WORLD_SIZE",
                                      "ROLE_NAME",
                                      "MASTER_ADDR",
                                      "MASTER_PORT",
                                      "TORCHELASTIC_RESTART_COUNT",
                                      "DDPRUN_LINK_FD",
                                      "DDPRUN_LINK_PAGE_FD",
                                      "DDPRUN_LINK_RECORD_FD",
                                      "DDPRUN_SNAPSHOT_FD",
                                      "TORCHELASTIC_MAX_RESTARTS",
                                      "TORCHELASTIC_ERROR_FILE",
                                      "TORCHELASTIC_RUN_ID",
                                      "TORCHELASTIC_USE_AGENT_STORE"};

// Constant initialization: others call getenv() before this file's constructors could run.
constinit std::atomic<const char*> read_early = nullptr;

// dlsym(), or an allocator or a sanitizer that it calls, may ask for a variable itself.
constinit thread_local bool is_in_dlsym = false;

char* in_environ(std::string_view name) {
  for (char** each = ::environ; each != nullptr && *each != nullptr; ++each) {
    const std::string_view variable(*each);
    if (variable.size() > name.size() && variable.starts_with(name) &&
        variable[name.size()] == '=') {
      return *each + name.size() + 1;
    }
  }
  return nullptr;
}

}  // namespace

const char* variable_read_early() { return read_early.load(std::memory_order_relaxed); }

}  // namespace ddprun::zygote

extern "C" {
extern const bool ddprun_reads_variables;
const bool ddprun_reads_variables = true;  // the linker asks for it
}

extern "C" char* getenv(const char* name) noexcept {
  using ddprun::zygote::is_in_dlsym;
  using ddprun::zygote::kOfAWorker;
  using ddprun::zygote::read_early;
  using Getenv = char* (*)(const char*);
  static constinit std::atomic<Getenv> next = nullptr;
  Getenv of_c_library = next.load(std::memory_order_relaxed);
  if (of_c_library == nullptr) {
    if (is_in_dlsym) return ddprun::zygote::in_environ(name);
    is_in_dlsym = true;
    of_c_library = reinterpret_cast<Getenv>(::dlsym(RTLD_NEXT, "getenv"));
    is_in_dlsym = false;
    next.store(of_c_library, std::memory_order_relaxed);
  }
  if (read_early.load(std::memory_order_relaxed) == nullptr) {
    const auto* const found = std::ranges::find(kOfAWorker, std::string_view(name));
    if (found != std::end(kOfAWorker)) read_early.store(*found, std::memory_order_relaxed);
  }
  return of_c_library(name);
}
