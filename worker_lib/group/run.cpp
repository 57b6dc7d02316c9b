#include "ddprun/run.h"

#include <c10/util/Type.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <typeinfo>
#include <utility>

#include "worker_lib/c10d/error_text.h"
#include "worker_lib/group/context_access.h"
#include "worker_lib/group/failure_diagnosis.h"
#include "worker_lib/process/error_file.h"
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

int run(const char* program, const std::function<int()>& joined) {
  running_program = program;
  is_reported = false;
  handler_before = std::set_terminate(terminated);
  try {
    return joined();
  } catch (...) {
    return report_current();
  }
}

}  // namespace ddprun::detail
