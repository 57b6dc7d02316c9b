// What a GPU says, in words, for ddpctl status and the live page. Pure.
#pragma once

#include <string>
#include <vector>

#include "agent/status/node_status.h"
#include "rendezvous/common/text/bytes.h"
#include "rendezvous/common/text/lists.h"
#include "rendezvous/common/text/ranks.h"

namespace ddprun::agent {

// "GPU 5 (rank 3): 61.2 of 79.6 GiB, 98 %, 61 °C, 2 uncorrected ECC errors, Xid 79"
inline std::string in_words(const GpuStatus& gpu) {
  std::vector<std::string> parts;
  if (gpu.memory_used && gpu.memory_total) {
    parts.push_back(gibibytes(*gpu.memory_used) + " of " + gibibytes(*gpu.memory_total) + " GiB");
  }
  if (gpu.utilization) parts.push_back(std::to_string(*gpu.utilization) + " %");
  if (gpu.temperature) parts.push_back(std::to_string(*gpu.temperature) + " °C");
  if (gpu.ecc.value_or(0) > 0) {
    parts.push_back(counted(static_cast<std::int64_t>(*gpu.ecc), "uncorrected ECC error"));
  }
  for (const int xid : gpu.xids) parts.push_back("Xid " + std::to_string(xid));
  if (!gpu.trouble.empty()) parts.push_back(gpu.trouble);
  const std::string ranks = gpu.ranks.empty() ? "" : " (" + ranks_in_words(gpu.ranks) + ")";
  return "GPU " + std::to_string(gpu.index) + ranks + ": " + joined(parts);
}

}  // namespace ddprun::agent
