#include "ddprun/run.h"

#include <c10/util/ScopeExit.h>
#include <c10/util/Type.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <typeinfo>
#include <utility>
#include <vector>

#include "rendezvous/common/worker_abi/worker_link.h"
#include "rendezvous/common/worker_abi/zygote_protocol.h"
#include "worker_lib/c10d/error_text.h"
#include "worker_lib/group/context_access.h"
#include "worker_lib/group/failure_diagnosis.h"
#include "worker_lib/process/error_file.h"
#include "worker_lib/process/slurm.h"
#include "worker_lib/process/stderr_line.h"

namespace ddprun::detail {
namespace {

// What the handler of std::terminate needs: it is given nothing. It may run while the main thread
// leaves, or waits in the store.
std::atomic<const char*> running_program = nullptr;
std::atomic<std::terminate_handler> handler_before = nullptr;
std::mutex running_mutex;
std::shared_ptr<FailureDiagnosis> running_diagnosis;
std::mutex report_mutex;
bool is_reported = false;

void set_running(std::shared_ptr<FailureDiagnosis> diagnosis) {
  const std::scoped_lock lock(running_mutex);
  running_diagnosis.swap(diagnosis);
}

std::shared_ptr<FailureDiagnosis> running() {
  const std::scoped_lock lock(running_mutex);
  return running_diagnosis;
}

// One line on stderr, and the error file if the launcher wants one. The first report stands: what
// another thread throws afterwards is a consequence.
void report(FailureDescription failure) {
  const std::scoped_lock lock(report_mutex);
  if (std::exchange(is_reported, true)) return;
  failure.at = std::chrono::system_clock::now();
  const char* rank = std::getenv("RANK");
  std::string line = std::filesystem::path(running_program.load()).filename().string();
  if (rank != nullptr) line += std::string(": rank ") + rank;
  line += ": " + failure.message;
  while (line.ends_with('\n')) line.pop_back();
  std::replace(line.begin(), line.end(), '\n', ' ');
  stderr_line::write(line + "\n");

  const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr || *path == '\0') return;
  try {
    write_error_file(path, failure);
  } catch (const Failure& unwritten) {
    stderr_line::write(std::string(unwritten.what()) + "\n");
  }
}

FailureDescription describe(const std::exception& error) {
  FailureDescription failure{c10::demangle(typeid(error).name()), error_text(error), {}, {}};
  const auto* const from_torch = dynamic_cast<const c10::Error*>(&error);
  if (from_torch && from_torch->backtrace()) failure.trace = from_torch->backtrace()->get();
  return failure;
}

// Reports what is being handled, and gives the process' exit code.
int report_current() {
  constexpr int kWrongUsage = 2;
  constexpr int kFailed = 1;
  try {
    throw;
  } catch (const UsageError& error) {
    report(describe(error));
    return kWrongUsage;
  } catch (const std::exception& error) {
    report(describe(error));
  } catch (...) {
    report({"unknown", error_text(std::current_exception()), {}, {}});
  }
  return kFailed;
}

// Gloo's own thread throws when a message has another length than was expected: the ranks gave
// tensors of different sizes. NCCL's throws when a collective takes too long, with the others or
// without. Nobody can catch that, but everybody should hear of it.
[[noreturn]] void terminated() {
  if (const std::exception_ptr error = std::current_exception()) {
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& thrown) {
      FailureDescription failure = describe(thrown);
      if (const auto diagnosis = running()) failure.message = diagnosis->explain_abort(thrown);
      report(std::move(failure));
    } catch (...) {
    }
  }
  if (const auto before = handler_before.load()) before();
  std::abort();
}

// A variable of this process' start. Not by getenv(): ddprun::standby takes a program that reads a worker's variables
// before its Context for one that must not be forked.
std::optional<std::string> variable(std::string_view name) {
  for (char** each = ::environ; each != nullptr && *each != nullptr; ++each) {
    const std::string_view text(*each);
    if (text.starts_with(name) && text.substr(name.size()).starts_with('=')) {
      return std::string(text.substr(name.size() + 1));
    }
  }
  return std::nullopt;
}

bool has_launcher(const ContextOptions& options) {
  const bool is_told = options.init_method.url != "env://" || options.init_method.rank ||
                       options.init_method.world_size;
  return is_told || variable("RANK") || slurm_environment(variable) ||
         variable(zygote::kSocketVariable) || variable(link::kSocketVariable);
}

// Becomes the launcher, if so many are to run; returns if this process is to do it alone.
void start_own_workers(int argc, char** argv, const ContextOptions& options) {
  const std::optional<std::string> asked = variable("DDPRUN_NPROC_PER_NODE");
  const std::string count = asked.value_or(std::to_string(options.nproc_per_node));
  if (count == "1" || has_launcher(options)) return;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe");
  const std::filesystem::path beside = self.parent_path() / "ddprun";
  std::vector<std::string> arguments{"ddprun", "--nproc-per-node=" + count, "--no-python",
                                     self.string()};
  arguments.insert(arguments.end(), argv + std::min(argc, 1), argv + argc);
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  ::execv(beside.c_str(), pointers.data());
  ::execvp("ddprun", pointers.data());
  throw UsageError("this program starts " + count +
                   " workers of itself by ddprun, but there is no " + beside.string() +
                   " and no ddprun on PATH that can be executed (" + std::strerror(errno) +
                   "): install ddprun, or set DDPRUN_NPROC_PER_NODE=1 for one process");
}

}  // namespace

int call(Context& context, const std::function<int()>& f) {
  set_running(ContextAccess::diagnosis(context));
  try {
    const int code = f();
    set_running(nullptr);
    ContextAccess::leave(context);
    return code;
  } catch (...) {
    set_running(nullptr);
    try {
      ContextAccess::fail(context, report_current);
    } catch (...) {
      // Before the group ends: with NCCL that may take long, or abort the process.
      return report_current();
    }
  }
}

int run(int argc, char** argv, const ContextOptions& options, const std::function<int()>& joined) {
  running_program = argc > 0 ? argv[0] : "program";
  is_reported = false;
  handler_before = std::set_terminate(terminated);
  const auto is_over = c10::make_scope_exit([] { std::set_terminate(handler_before); });
  try {
    if (options.nproc_per_node > 0) start_own_workers(argc, argv, options);
    if (options.ignore_sigpipe.value_or(true)) ignore_sigpipe();
    return joined();
  } catch (...) {
    return report_current();
  }
}

}  // namespace ddprun::detail
