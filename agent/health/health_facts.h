// What --health-check=auto finds out about this node, and what follows from it. The facts are collected by a process of its
// own (launcher/health), since the kernel may hold whoever asks for them; it writes them as JSON. The findings are made
// here, in the agent, which knows what was found before. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/core/health_core.h"
#include "rendezvous/common/result.h"

namespace ddprun::agent {

// The hidden option by which ddprun becomes that process.
inline constexpr std::string_view kHealthRole = "--health-check-run";

struct FolderHealth {
  std::string path;
  int error = 0;  // errno of a file system that does not work; 0: none
};

struct HealthQuestion {
  int agent = 0;                      // processes below this one are of the job
  std::vector<FolderHealth> folders;  // the job uses them
  // Of /dev/kmsg: only what came after this record counts; none: nothing does.
  std::optional<std::int64_t> after_record;
};

struct GpuHealth {
  int index = 0;
  std::string uuid;  // empty: not known
  bool is_lost = false;
  std::int64_t uncorrected_ecc = 0;  // errors since the driver was loaded
  std::uint64_t foreign_memory = 0;  // bytes that processes of no job of ours have
  std::string foreign_process = {};  // one of them: "process 4711 (python)"
};

struct Xid {  // an error that the NVIDIA driver has logged
  int number = 0;
  std::string gpu;  // PCI address
  bool operator==(const Xid&) const = default;
};

struct HealthCounter {
  std::string name;  // "mlx5_0 port 1: link_downed"
  std::int64_t value = 0;
};

struct RoomLeft {  // in bytes
  std::uint64_t size = 0;
  std::uint64_t free = 0;
};

struct HealthFacts {
  std::vector<GpuHealth> gpus;              // the workers see them
  bool is_nvml_lost = false;                // it cannot be used because of a GPU
  std::vector<Xid> xids;                    // since the question's record
  std::optional<std::int64_t> last_record;  // in /dev/kmsg; none: it cannot be read
  std::vector<FolderHealth> folders;
  std::vector<HealthCounter> ports;         // InfiniBand's
  std::vector<HealthCounter> ecc_of_cards;  // uncorrected errors of AMD GPUs: "card0"
  std::optional<RoomLeft> shared_memory;
};

// `first` and `before`: of the first check, perhaps these, and of the one before; null: there was none.
std::vector<health::Finding> findings_of(const HealthFacts& facts, const HealthFacts& first,
                                         const HealthFacts* before);

// The Xids that tell of broken hardware; empty: the number is none of them.
std::string_view meaning_of_xid(int number);

std::string to_json(const HealthQuestion& question);
Result<HealthQuestion> read_health_question(std::string_view json);
std::string to_json(const HealthFacts& facts);
Result<HealthFacts> read_health_facts(std::string_view json);

}  // namespace ddprun::agent
