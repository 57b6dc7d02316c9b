#include "agent/gpu/gpu_facts.h"

#include <algorithm>
#include <utility>

#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/text/bytes.h"
#include "rendezvous/common/text/lists.h"

namespace ddprun::agent {
namespace {

// Nothing: the GPU's list does not have it.
std::optional<std::uint64_t> bytes_of(int pid, const GpuSample& gpu) {
  const auto found = std::ranges::find(gpu.processes, pid, &GpuProcess::pid);
  return found == gpu.processes.end() ? std::nullopt : std::optional(found->bytes);
}

std::optional<int> index_in(std::string_view device, const std::vector<GpuSample>& gpus) {
  if (device.empty()) return std::nullopt;
  if (device.starts_with("GPU-")) {
    const auto found = std::ranges::find_if(
        gpus, [&](const GpuSample& each) { return each.gpu.uuid.starts_with(device); });
    if (found == gpus.end()) return std::nullopt;
    return static_cast<int>(found - gpus.begin());
  }
  int index = 0;
  for (const char c : device) {
    if (c < '0' || c > '9' || index > 9999) return std::nullopt;
    index = index * 10 + (c - '0');
  }
  return std::cmp_less(index, gpus.size()) ? std::optional(index) : std::nullopt;
}

std::string in_words(const GpuProcess& process, const GpuFailure& failure) {
  std::string text = "pid " + std::to_string(process.pid);
  if (!process.name.empty()) text += " (" + printable(process.name) + ")";
  text +=
      process.bytes == 0 ? " an unknown part" : " " + std::to_string(process.bytes >> 20) + " MiB";
  if (failure.are_pids_known && process.pid == failure.pid) {
    text += ", the rank's own process, not yet freed";
  } else if (failure.are_pids_known) {
    text += failure.own.contains(process.pid) ? ", of this job" : ", not of this job";
  }
  return text;
}

std::string holders(const GpuFailure& failure) {
  const GpuSample& gpu = failure.sample;
  std::string text = "GPU " + std::to_string(failure.gpu) + " of " + printable(failure.host);
  if (gpu.memory_used && gpu.memory_total) {
    text += " has " + gibibytes(*gpu.memory_used) + " of " + gibibytes(*gpu.memory_total) +
            " GiB in use after its end";
  }
  if (gpu.processes.empty()) return text + "; the driver names no process that holds some";
  std::vector<std::string> all;
  for (const GpuProcess& each : gpu.processes) all.push_back(in_words(each, failure));
  return text + "; held by " + joined(all, "; ") +
         (failure.are_pids_known ? ""
                                 : " (pids of the host, which mean nothing in this container)");
}

}  // namespace

std::optional<int> gpu_of(const RankDevice& rank, const std::vector<GpuSample>& gpus) {
  const std::optional<int> assigned =
      index_in(rank.device.empty() ? std::to_string(rank.local_rank) : rank.device, gpus);
  std::optional<int> fullest;
  std::uint64_t most = 0;
  for (std::size_t i = 0; i < gpus.size() && rank.pid > 0; ++i) {
    const auto held = bytes_of(rank.pid, gpus[i]);
    if (!held) continue;
    if (assigned == static_cast<int>(i)) return assigned;
    if (!fullest || *held > most) {
      fullest = static_cast<int>(i);
      most = *held;
    }
  }
  return fullest ? fullest : assigned;
}

bool are_pids_known(const std::vector<GpuSample>& gpus, const std::set<int>& own,
                    bool is_first_namespace) {
  return is_first_namespace || std::ranges::any_of(gpus, [&](const GpuSample& each) {
           return std::ranges::any_of(each.processes, [&](const GpuProcess& process) {
             return own.contains(process.pid);
           });
         });
}

std::string xid_in_words(int xid) {
  constexpr std::pair<int, std::string_view> kMeanings[] = {
      {13, "an error of a kernel, such as an address outside of an array"},
      {31, "a page fault: an address that is not there"},
      {43, "the program was stopped after an error of its own"},
      {48, "an ECC error that cannot be corrected"},
      {62, "the GPU's microcontroller has halted"},
      {63, "a row of its memory is remapped"},
      {64, "a row of its memory cannot be remapped"},
      {74, "an error of NVLink"},
      {79, "it has fallen off the bus"},
      {94, "a contained ECC error"},
      {95, "an ECC error that was not contained"},
      {119, "its firmware does not answer"},
      {120, "an error of its firmware"}};
  const auto* const found =
      std::ranges::find(kMeanings, xid, &std::pair<int, std::string_view>::first);
  const std::string text = "Xid " + std::to_string(xid);
  return found == std::end(kMeanings) ? text : text + " (" + std::string(found->second) + ")";
}

std::vector<std::string> in_words(const GpuFailure& failure) {
  const std::string where =
      " on GPU " + std::to_string(failure.gpu) + " of " + printable(failure.host);
  std::vector<std::string> lines;
  std::vector<int> xids = failure.xids;
  std::ranges::sort(xids);
  xids.erase(std::unique(xids.begin(), xids.end()), xids.end());
  for (const int xid : xids) lines.push_back(xid_in_words(xid) + where);
  if (failure.ecc > 0) {
    lines.push_back(counted(static_cast<std::int64_t>(failure.ecc), "uncorrected ECC error") +
                    where + " since the round began");
  }
  if (!failure.sample.trouble.empty()) {
    lines.push_back("GPU " + std::to_string(failure.gpu) + " of " + printable(failure.host) + ": " +
                    failure.sample.trouble);
  }
  if (failure.is_out_of_memory) lines.push_back(holders(failure));
  return lines;
}

bool says_out_of_memory(std::string_view words) {
  return words.find("CUDA out of memory") != std::string_view::npos ||
         words.find("CUDA error: out of memory") != std::string_view::npos;
}

bool speaks_of_cuda(std::string_view words) {
  return words.find("CUDA") != std::string_view::npos ||
         words.find("cuda") != std::string_view::npos ||
         words.find("NCCL") != std::string_view::npos;
}

std::string what_is_awaited(const MemoryWait& wait, const std::vector<GpuSample>& now,
                            bool are_pids_known) {
  std::vector<std::string> awaited;
  for (std::size_t i = 0; i < now.size(); ++i) {
    const int index = static_cast<int>(i);
    const bool is_used = wait.gpus.empty() || std::ranges::count(wait.gpus, index) > 0;
    if (!are_pids_known && !is_used) continue;
    const GpuSample& gpu = now[i];
    const std::string where = " on GPU " + std::to_string(index);
    bool is_held = false;
    for (const GpuProcess& each : gpu.processes) {
      if (std::ranges::count(wait.dead, each.pid) == 0) continue;
      is_held = true;
      awaited.push_back((each.bytes == 0 ? "memory" : gibibytes(each.bytes) + " GiB") + where +
                        " (pid " + std::to_string(each.pid) + ")");
    }
    if (is_held || are_pids_known || !gpu.memory_used) continue;
    const auto used_in = [&](const std::optional<std::vector<GpuSample>>& samples) {
      return samples && i < samples->size() ? (*samples)[i].memory_used : std::nullopt;
    };
    const std::optional<std::uint64_t> first = used_in(wait.before_first);
    const std::optional<std::uint64_t> last = used_in(wait.last);
    const bool is_free = first  ? *gpu.memory_used <= *first + MemoryWait::kTolerance
                         : last ? *gpu.memory_used + MemoryWait::kTolerance > *last
                                : false;
    if (!is_free)
      awaited.push_back(gibibytes(*gpu.memory_used - first.value_or(0)) + " GiB" + where);
  }
  return joined(awaited, ", ");
}

}  // namespace ddprun::agent
