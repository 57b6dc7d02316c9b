#include "launcher/health/gpu_health.h"

#include "agent/gpu/nvml.h"

namespace ddprun::cli {
namespace {

agent::GpuHealth health_of(const agent::GpuSample& sample, const ForeignProcess& foreign) {
  agent::GpuHealth gpu;
  gpu.uuid = sample.gpu.uuid;
  gpu.is_lost = sample.is_lost;
  gpu.uncorrected_ecc = static_cast<std::int64_t>(sample.ecc.value_or(0));
  for (const agent::GpuProcess& each : sample.processes) {
    const std::string name = each.bytes == 0 ? "" : foreign(each.pid);
    if (name.empty()) continue;
    gpu.foreign_memory += each.bytes;
    gpu.foreign_process = "process " + std::to_string(each.pid) + " (" + name + ")";
  }
  return gpu;
}

}  // namespace

GpusHealth gpus_health(const std::string& library, const std::vector<int>& indices,
                       const ForeignProcess& foreign) {
  GpusHealth health;
  const auto nvml = agent::Nvml::load(library, &health.is_nvml_lost);
  const auto samples = nvml ? nvml->samples() : std::vector<agent::GpuSample>();
  for (const int index : indices) {
    const auto at = static_cast<std::size_t>(index);
    health.gpus.push_back(at < samples.size() ? health_of(samples[at], foreign)
                                              : agent::GpuHealth());
    health.gpus.back().index = index;
  }
  return health;
}

}  // namespace ddprun::cli
