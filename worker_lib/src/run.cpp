#include "ddprun/run.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <typeinfo>

#include "worker_lib/src/error_file.h"
#include "worker_lib/src/stderr_line.h"

namespace ddprun::detail {
namespace {

std::string readable_name(const std::type_info& type) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), std::free);
  return status == 0 ? name.get() : type.name();
}

// One line on stderr, and the error file if the launcher wants one.
void report(const char* program, FailureDescription failure) {
  failure.at = std::chrono::system_clock::now();
  const char* rank = std::getenv("RANK");
  std::string line = std::filesystem::path(program).filename().string();
  if (rank != nullptr) line += std::string(": rank ") + rank;
  line += ": " + failure.message;
  while (line.ends_with('\n')) line.pop_back();
  std::replace(line.begin(), line.end(), '\n', ' ');
  stderr_line::write(line + "\n");

  const char* path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr || *path == '\0') return;
  if (const auto written = write_error_file(path, failure); !written) {
    stderr_line::write(written.error().to_string() + "\n");
  }
}

}  // namespace

int run(const char* program, const std::function<int()>& joined) {
  constexpr int kWrongUsage = 2;
  constexpr int kFailed = 1;
  try {
    return joined();
  } catch (const UsageError& error) {
    report(program, {readable_name(typeid(error)), error.what(), {}, {}});
    return kWrongUsage;
  } catch (const c10::Error& error) {
    report(program, {readable_name(typeid(error)),
                     error.what_without_backtrace(),
                     error.backtrace() ? error.backtrace()->get() : "",
                     {}});
  } catch (const std::exception& error) {
    report(program, {readable_name(typeid(error)), error.what(), {}, {}});
  } catch (...) {
    report(program, {"unknown", "something that is no std::exception was thrown", {}, {}});
  }
  return kFailed;
}

}  // namespace ddprun::detail
