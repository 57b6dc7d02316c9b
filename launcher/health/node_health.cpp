#include "launcher/health/node_health.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/health/gpu_health.h"
#include "launcher/machine/placement_files.h"
#include "rendezvous/common/file_text.h"
#include "rendezvous/common/parse_number.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::cli {
namespace {

using agent::HealthCounter;
using agent::HealthFacts;
using agent::names_in;

constexpr std::size_t kXidsMax = 32;  // the first ones: later ones follow from them

// ---- GPUs

std::vector<int> gpus_of_workers(const Environment& environment,
                                 const std::vector<agent::Gpu>& gpus) {
  const auto given = environment.find("CUDA_VISIBLE_DEVICES");
  std::vector<int> visible =
      agent::visible_gpus(given == environment.end() ? nullptr : &given->second, gpus);
  std::erase(visible, agent::kSomeMigInstance);
  return visible;
}

// Whose parents and their parents are told by /proc.
ForeignProcess foreign_to(int agent, const std::string& root) {
  return [agent, proc = root + "/proc/"](pid_t pid) -> std::string {
    constexpr int kGenerationsMax = 1000;
    const std::string name(trimmed(file_text(proc + std::to_string(pid) + "/comm")));
    pid_t ancestor = pid;
    for (int i = 0; i < kGenerationsMax && ancestor > 1; ++i) {
      if (ancestor == agent) return {};
      const std::string status = file_text(proc + std::to_string(ancestor) + "/status");
      ancestor = agent::number(agent::field(status, "PPid")).value_or(0);
    }
    return name;
  };
}

// "ue: 0\nce: 3" in the file of each card whose memory corrects errors.
std::vector<HealthCounter> ecc_of_cards(const std::string& root) {
  const std::string folder = root + "/sys/class/drm/";
  std::vector<HealthCounter> cards;
  for (const std::string& name : names_in(folder)) {
    const std::string text = file_text(folder + name + "/device/ras/umc_err_count");
    const auto errors = parse_number<std::int64_t>(agent::field(text, "ue"));
    if (errors) cards.push_back({name, *errors});
  }
  return cards;
}

// ---- the kernel's log

struct KernelRecord {
  std::int64_t number = 0;
  std::string_view message;
};

// "6,1234,5678901,-;message", as the kernel documents /dev/kmsg.
std::optional<KernelRecord> kernel_record(std::string_view line) {
  const std::size_t first = line.find(',');
  const std::size_t end = line.find(';');
  if (first == std::string_view::npos || end == std::string_view::npos || end < first) return {};
  const std::string_view rest = line.substr(first + 1, end - first - 1);
  const auto number = parse_number<std::int64_t>(rest.substr(0, rest.find(',')));
  if (!number) return {};
  return KernelRecord{*number, line.substr(end + 1)};
}

// "NVRM: Xid (PCI:0000:c1:00): 79, pid=1234, GPU has fallen off the bus."
std::optional<agent::Xid> xid_in(std::string_view message) {
  constexpr std::string_view kBegin = "NVRM: Xid (PCI:";
  const std::size_t begin = message.find(kBegin);
  if (begin == std::string_view::npos) return {};
  message.remove_prefix(begin + kBegin.size());
  constexpr std::string_view kEnd = "): ";
  const std::size_t end = message.find(kEnd);
  if (end == std::string_view::npos) return {};
  const auto number = agent::leading_number(message.substr(end + kEnd.size()));
  if (!number) return {};
  return agent::Xid{*number, std::string(message.substr(0, end))};
}

// Each read of the device is one record; EPIPE: the oldest ones are gone meanwhile.
std::optional<std::string> kernel_log(const std::string& file) {
  const rdzv::UniqueFd log(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!log) return {};
  std::string text;
  std::array<char, 8192> part;
  for (;;) {
    const ssize_t size = ::read(log.get(), part.data(), part.size());
    if (size < 0 && (errno == EINTR || errno == EPIPE)) continue;
    if (size < 0 && errno != EAGAIN) return {};
    if (size <= 0) return text;
    text.append(part.data(), static_cast<std::size_t>(size));
  }
}

// GPUs that the workers do not see are those of other jobs; a GPU whose address is not known may be any.
bool is_of_workers(const agent::Xid& xid, const std::vector<std::string>& addresses) {
  return std::ranges::any_of(addresses, [&](const std::string& address) {
    return address.empty() || address.starts_with(xid.gpu);
  });
}

void read_kernel_log(const std::string& file, std::optional<std::int64_t> after,
                     const std::vector<std::string>& addresses, HealthFacts& facts) {
  const auto log = kernel_log(file);
  if (!log) return;
  facts.last_record = after.value_or(-1);
  std::string_view rest = *log;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    const auto record = kernel_record(line);
    if (!record) continue;
    facts.last_record = std::max(*facts.last_record, record->number);
    if (!after || record->number <= *after || facts.xids.size() >= kXidsMax) continue;
    const auto xid = xid_in(record->message);
    if (xid && !agent::meaning_of_xid(xid->number).empty() && is_of_workers(*xid, addresses)) {
      facts.xids.push_back(*xid);
    }
  }
}

// ---- file systems, InfiniBand

// Other errors, such as a folder that was removed, are not those of a file system.
int error_of_file_system(const std::string& folder) {
  struct stat status {};
  struct statvfs disk {};
  if (::stat(folder.c_str(), &status) == 0 && ::statvfs(folder.c_str(), &disk) == 0) return 0;
  constexpr std::array kDead{ESTALE, EIO, ENOTCONN, ESHUTDOWN};
  return std::ranges::count(kDead, errno) > 0 ? errno : 0;
}

std::optional<agent::RoomLeft> room_in(const std::string& folder) {
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0) return {};
  return agent::RoomLeft{std::uint64_t{disk.f_blocks} * disk.f_frsize,
                         std::uint64_t{disk.f_bavail} * disk.f_frsize};
}

std::vector<HealthCounter> infiniband_counters(const std::string& root) {
  constexpr std::array kCounters{"symbol_error", "link_downed", "link_error_recovery"};
  const std::string devices = root + "/sys/class/infiniband/";
  std::vector<HealthCounter> counters;
  for (const std::string& device : names_in(devices)) {
    for (const std::string& port : names_in(devices + device + "/ports")) {
      for (const char* const counter : kCounters) {
        const std::string text =
            file_text(devices + device + "/ports/" + port + "/counters/" + counter);
        const auto value = parse_number<std::int64_t>(trimmed(text));
        if (value) counters.push_back({device + " port " + port + ": " + counter, *value});
      }
    }
  }
  return counters;
}

}  // namespace

HealthFacts read_node_health(const agent::HealthQuestion& question, const agent::Machine& machine,
                             const Environment& environment,
                             const std::function<void(std::string_view)>& at) {
  const std::string& root = machine.root;
  HealthFacts facts;
  for (agent::FolderHealth folder : question.folders) {
    at("the file system of " + folder.path);
    folder.error = error_of_file_system(folder.path);
    facts.folders.push_back(std::move(folder));
  }
  at("/dev/shm");
  facts.shared_memory = room_in(root + "/dev/shm");
  at("InfiniBand");
  facts.ports = infiniband_counters(root);
  at("the GPUs");
  const std::vector<agent::Gpu> all = agent::find_gpus(machine);
  const std::vector<int> indices = gpus_of_workers(environment, all);
  auto [gpus, is_nvml_lost] =
      gpus_health(machine.nvml_library, indices, foreign_to(question.agent, root));
  facts.gpus = std::move(gpus);
  facts.is_nvml_lost = is_nvml_lost;
  facts.ecc_of_cards = ecc_of_cards(root);
  std::vector<std::string> addresses;
  const auto visible = environment.find("CUDA_VISIBLE_DEVICES");
  const bool are_hidden =
      visible != environment.end() &&
      (visible->second.empty() || visible->second == "-1" || visible->second == "NoDevFiles");
  if (all.empty() && !are_hidden) addresses.emplace_back();  // some that cannot be counted
  for (const int index : indices) {
    addresses.push_back(all[static_cast<std::size_t>(index)].pci_address);
  }
  at("/dev/kmsg");
  read_kernel_log(root + "/dev/kmsg", question.after_record, addresses, facts);
  return facts;
}

}  // namespace ddprun::cli
