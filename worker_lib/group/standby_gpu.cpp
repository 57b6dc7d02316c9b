#include "worker_lib/group/standby_gpu.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <string>
#include <thread>

#include "ddprun/error.h"
#include "worker_lib/c10d/error_text.h"
#include "worker_lib/c10d/nccl_module.h"

namespace ddprun {
namespace {

// The driver gives memory back while it ends a process, in some 0.1 s for tens of gigabytes, and does not say when.
constexpr auto kMemoryLimit = std::chrono::seconds(5);
constexpr auto kLooksForMemory = std::chrono::milliseconds(10);

template <typename Number>
bool take_number(std::string_view& text, Number& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  if (text.starts_with(' ')) text.remove_prefix(1);
  return true;
}

[[noreturn]] void refuse(AgentLink& link, const std::string& why) {
  link.refuse_recovery(why);
  throw Failure(ErrorCode::kUnavailable, why);
}

std::string mebibytes(std::uint64_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

}  // namespace

std::optional<StandbyGpu> parse_standby_gpu(std::string_view text) {
  const std::string_view word = text.substr(0, text.find(' '));
  const auto* const found = std::ranges::find(link::kPreparations, word);
  if (found == link::kPreparations.end() || word.size() == text.size()) return std::nullopt;
  text.remove_prefix(word.size() + 1);
  StandbyGpu its{.preparation =
                     static_cast<link::Preparation>(found - link::kPreparations.begin())};
  if (!take_number(text, its.index) || !take_number(text, its.bytes) || !text.empty()) {
    return std::nullopt;
  }
  return its;
}

void await_room_on_gpu(AgentLink& link, int gpu) {
  const char* const text = std::getenv(link::kStandbyGpuVariable);
  const auto its = text == nullptr ? std::nullopt : parse_standby_gpu(text);
  if (!its) return;
  const bool has_context = its->preparation != link::Preparation::kNothing;
  if (!has_context) link.await_placed();
  if (its->preparation == link::Preparation::kContext) {
    memory_of_gpu(gpu);
    link.await_placed();
  }
  const auto limit = std::chrono::steady_clock::now() + kMemoryLimit;
  for (;;) {
    std::string why;
    try {
      const std::uint64_t left = memory_of_gpu(gpu).free_bytes;
      if (left >= its->bytes) return;
      why = "the memory of the process before is not back after 5 s: its GPU has " +
            mebibytes(left) + " free, and " + mebibytes(its->bytes) + " are needed";
    } catch (const c10::Error& error) {
      why = "its GPU has failed (" + error_line(error) + ")";
      if (has_context) refuse(link, why);  // else there may be no room for one yet
    }
    if (std::chrono::steady_clock::now() > limit) refuse(link, why);
    std::this_thread::sleep_for(kLooksForMemory);
  }
}

}  // namespace ddprun
