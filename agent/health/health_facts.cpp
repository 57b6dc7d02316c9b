#include "agent/health/health_facts.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "agent/text/json_fields.h"
#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/text/lists.h"

namespace ddprun::agent {
namespace {

using health::Finding;
using health::Severity;

constexpr std::uint64_t kLeastRoom = std::uint64_t{64} << 20;
constexpr std::uint64_t kLeastShare = 20;  // one in so many: 5 %

constexpr std::pair<int, std::string_view> kXids[] = {
    {48, "an uncorrectable memory error"},
    {63, "memory that is taken out of use after an error"},
    {74, "an error of NVLink"},
    {79, "the GPU has fallen off the bus"},
    {94, "a contained memory error"},
    {95, "an uncontained memory error"}};

std::string name_of_gpu(const GpuHealth& gpu) {
  return "GPU " + std::to_string(gpu.index) +
         (gpu.uuid.empty() ? "" : " (" + printable(gpu.uuid) + ")");
}

class Findings {
 public:
  std::vector<Finding> take() { return std::move(findings_); }

  void look_at_gpus(const HealthFacts& facts, const HealthFacts& first) {
    if (facts.is_nvml_lost) {
      unfit("the NVIDIA driver cannot be asked, as when it cannot reach a GPU");
    }
    if (facts.gpus.size() < first.gpus.size()) {
      unfit("this node has " + counted(static_cast<std::int64_t>(facts.gpus.size()), "GPU") +
            " and had " + std::to_string(first.gpus.size()) + " when it joined");
    }
    for (const GpuHealth& gpu : facts.gpus) {
      if (gpu.is_lost) unfit(name_of_gpu(gpu) + " is lost: the NVIDIA driver cannot reach it");
      if (gpu.uncorrected_ecc > 0) unfit(name_of_gpu(gpu) + " has uncorrectable memory errors");
      if (gpu.foreign_memory > 0) {
        warn(printable(gpu.foreign_process) + ", which is not of this job, uses memory of " +
             name_of_gpu(gpu));
      }
    }
    for (const HealthCounter& card : facts.ecc_of_cards) {
      if (card.value > 0) unfit("GPU " + printable(card.name) + " has uncorrectable memory errors");
    }
  }

  void look_at_xids(const std::vector<Xid>& xids) {
    std::vector<Xid> told;
    for (const Xid& xid : xids) {
      const std::string_view meaning = meaning_of_xid(xid.number);
      if (meaning.empty() || std::ranges::count(told, xid) > 0) continue;
      told.push_back(xid);
      unfit("the NVIDIA driver has reported Xid " + std::to_string(xid.number) + " of the GPU at " +
            printable(xid.gpu) + ": " + std::string(meaning));
    }
  }

  void look_at_folders(const std::vector<FolderHealth>& folders) {
    for (const FolderHealth& folder : folders) {
      if (folder.error == 0) continue;
      unfit("the file system of " + printable(folder.path) +
            " cannot be used: " + std::strerror(folder.error));
    }
  }

  // The numbers are not told: a counter that goes on growing is no news.
  void look_at_ports(const std::vector<HealthCounter>& ports, const HealthFacts* before) {
    if (before == nullptr) return;
    for (const HealthCounter& port : ports) {
      const auto old = std::ranges::find(before->ports, port.name, &HealthCounter::name);
      if (old != before->ports.end() && port.value > old->value) {
        warn("InfiniBand " + printable(port.name) + " grows");
      }
    }
  }

  void look_at_shared_memory(const std::optional<RoomLeft>& room) {
    if (!room || room->size == 0) return;
    if (room->free < kLeastRoom || room->free < room->size / kLeastShare) {
      warn("/dev/shm is nearly full: less than " +
           std::string(room->free < kLeastRoom ? "64 MiB" : "5 %") + " is free");
    }
  }

 private:
  void unfit(std::string sentence) { findings_.push_back({Severity::kUnfit, std::move(sentence)}); }
  void warn(std::string sentence) {
    findings_.push_back({Severity::kWarning, std::move(sentence)});
  }

  std::vector<Finding> findings_;
};

}  // namespace

std::string_view meaning_of_xid(int number) {
  const auto* const found =
      std::ranges::find(kXids, number, [](const auto& xid) { return xid.first; });
  return found == std::end(kXids) ? std::string_view() : found->second;
}

std::vector<Finding> findings_of(const HealthFacts& facts, const HealthFacts& first,
                                 const HealthFacts* before) {
  Findings findings;
  findings.look_at_gpus(facts, first);
  findings.look_at_xids(facts.xids);
  findings.look_at_folders(facts.folders);
  findings.look_at_ports(facts.ports, before);
  findings.look_at_shared_memory(facts.shared_memory);
  return findings.take();
}

// ---- JSON

static void fields(auto& json, Is<HealthQuestion> auto& question) {
  json("agent", question.agent);
  json("folders", question.folders);
  json("after_record", question.after_record);
}

static void fields(auto& json, Is<GpuHealth> auto& gpu) {
  json("index", gpu.index);
  json("uuid", gpu.uuid);
  json("is_lost", gpu.is_lost);
  json("uncorrected_ecc", gpu.uncorrected_ecc);
  json("foreign_memory", gpu.foreign_memory);
  json("foreign_process", gpu.foreign_process);
}

static void fields(auto& json, Is<Xid> auto& xid) {
  json("number", xid.number);
  json("gpu", xid.gpu);
}

static void fields(auto& json, Is<FolderHealth> auto& folder) {
  json("path", folder.path);
  json("error", folder.error);
}

static void fields(auto& json, Is<HealthCounter> auto& port) {
  json("name", port.name);
  json("value", port.value);
}

static void fields(auto& json, Is<RoomLeft> auto& room) {
  json("size", room.size);
  json("free", room.free);
}

static void fields(auto& json, Is<HealthFacts> auto& facts) {
  json("gpus", facts.gpus);
  json("is_nvml_lost", facts.is_nvml_lost);
  json("xids", facts.xids);
  json("last_record", facts.last_record);
  json("folders", facts.folders);
  json("ports", facts.ports);
  json("ecc_of_cards", facts.ecc_of_cards);
  json("shared_memory", facts.shared_memory);
}

std::string to_json(const HealthQuestion& question) {
  return boost::json::serialize(JsonWriter::of(question));
}
Result<HealthQuestion> read_health_question(std::string_view json) {
  return parse_json<HealthQuestion>(json, "the question of a health check");
}
std::string to_json(const HealthFacts& facts) {
  return boost::json::serialize(JsonWriter::of(facts));
}
Result<HealthFacts> read_health_facts(std::string_view json) {
  return parse_json<HealthFacts>(json, "the answer of a health check");
}

}  // namespace ddprun::agent
