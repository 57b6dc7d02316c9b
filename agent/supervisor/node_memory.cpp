#include "agent/supervisor/node_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>

#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/text/durations.h"
#include "rendezvous/common/worker_abi/worker_link.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;

// A keeper answers when it has killed the workers of its agent; it waits a second for each of two control groups.
constexpr std::chrono::milliseconds kPatience = 3s;
constexpr std::size_t kNameBytesMax = 249;  // of memfd_create()

std::string prefix_of_stored() {
  return std::string(link::kSnapshotName) + ":" + std::to_string(MemoryOwner::kVersion) + ":";
}

// "" if it is no file in memory.
std::string name_of(int fd) {
  std::array<char, 512> target{};
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t size = ::readlink(link.c_str(), target.data(), target.size());
  std::string_view name(target.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  constexpr std::string_view kKind = "/memfd:";
  constexpr std::string_view kEnd = " (deleted)";
  if (!name.starts_with(kKind) || !name.ends_with(kEnd)) return "";
  name.remove_prefix(kKind.size());
  name.remove_suffix(kEnd.size());
  return std::string(name);
}

std::uint64_t bytes_in(int fd) {
  struct stat about {};
  return ::fstat(fd, &about) == 0 ? static_cast<std::uint64_t>(about.st_blocks) * 512 : 0;
}

std::string mebibytes(std::uint64_t bytes) {
  return std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB";
}

}  // namespace

std::string name_of_stored(const std::string& program) {
  const std::string prefix = prefix_of_stored();
  const std::size_t room = kNameBytesMax - prefix.size();
  return prefix + (program.size() <= room ? program : program.substr(program.size() - room));
}

std::optional<std::string> program_of_stored(const std::string& name) {
  const std::string prefix = prefix_of_stored();
  if (!name.starts_with(prefix)) return std::nullopt;
  return name.substr(prefix.size());
}

NodeMemory::NodeMemory(const AgentParts& parts, SystemdNotify& systemd)
    : parts_(parts),
      systemd_(systemd),
      own_{.job = parts.job.run_id,
           .program = parts.job.keep_memory.program,
           .ddprun = parts.job.version,
           .node_rank = parts.job.nodes.node_rank},
      stored_name_("ddprun-" + control_prefix(parts.job.run_id)) {}

std::optional<MemoryOffer> NodeMemory::prepare() {
  if (parts_.job.keep_memory.time == 0ms) return std::nullopt;
  const bool is_stored = systemd_.is_on();
  is_stored ? take_from_manager() : take_over();
  if (!memory_) {
    const std::string name = is_stored ? name_of_stored(own_.program) : link::kSnapshotName;
    memory_.reset(::memfd_create(name.c_str(), MFD_CLOEXEC));
  }
  std::string why;
  if (!memory_) {
    why = error_from_errno(errno, "memory for snapshots").to_string();
  } else if (!is_stored) {
    auto made = offer();
    if (made) return std::move(*made);
    why = made.error().to_string();
  } else if (!systemd_.keep(memory_.get(), stored_name_)) {
    why = "the service manager does not take it";
  }
  if (!why.empty()) {
    parts_.log.warn("the memory for snapshots will not outlive this ddprun: " + why);
    memory_.reset();
    taken_.reset();  // its keeper goes on holding it
  }
  return std::nullopt;
}

void NodeMemory::take_over() {
  const uid_t user = ::geteuid();
  auto choice =
      choose_memory(find_memories(parts_.job.environment, user, own_.job, kPatience), own_);
  for (const std::string& sentence : choice.refused) parts_.log.warn(printable(sentence));
  for (const KeptMemory& each : choice.fitting) {
    auto taken = TakenMemory::take(each, user, kPatience);
    if (!taken) {  // another agent of the job may have been faster
      parts_.log.write(Log::Level::kInfo, printable(taken.error().to_string()));
      continue;
    }
    parts_.log.write(Log::Level::kInfo,
                     "took over the memory for snapshots of the ddprun before, " +
                         mebibytes(bytes_in(taken->memory().get())));
    memory_ = std::move(taken->memory());
    taken_.emplace(std::move(*taken));
    return;
  }
}

// Whatever else the manager passes is not ours.
void NodeMemory::take_from_manager() {
  bool is_refused = false;
  for (const StoredFile& each : stored_files(parts_.job.environment, ::getpid())) {
    if (each.name != stored_name_) continue;
    rdzv::UniqueFd file(each.fd);
    ::fcntl(file.get(), F_SETFD, FD_CLOEXEC);
    const std::string name = name_of(file.get());
    if (!memory_ && name == name_of_stored(own_.program)) {
      memory_ = std::move(file);
      continue;
    }
    const auto program = program_of_stored(name);
    parts_.log.warn("the memory kept of job '" + printable(own_.job) + "' is of another " +
                    (program ? "program, " + printable(*program) : "version of ddprun") +
                    "; it is not used");
    is_refused = true;
  }
  // All of that name; what is used is stored again.
  if (is_refused) systemd_.forget(stored_name_);
}

Result<MemoryOffer> NodeMemory::offer() const {
  const uid_t user = ::geteuid();
  auto own = own_control_folder(parts_.job.environment, user);
  if (!own) return fail(std::move(own.error()));
  auto bound = bind_memory(own->folder, own_.job, ::getpid(), user);
  if (!bound) return fail(std::move(bound.error()).with("folder", own->path));
  const std::string about = to_json(own_);
  return MemoryOffer{.memory = for_workers(),
                     .folder = std::move(own->folder),
                     .name = std::move(bound->name),
                     .listener = std::move(bound->socket),
                     .about = about.substr(1, about.size() - 2),
                     .time = parts_.job.keep_memory.time};
}

rdzv::UniqueFd NodeMemory::for_workers() const {
  return rdzv::UniqueFd(memory_ ? ::fcntl(memory_.get(), F_DUPFD_CLOEXEC, 3) : -1);
}

void NodeMemory::keeper_runs() {
  if (taken_) taken_->confirm();
  taken_.reset();
}

void NodeMemory::job_succeeded() {
  is_over_ = true;
  if (memory_) systemd_.forget(stored_name_);
}

std::string NodeMemory::remark() const {
  const std::uint64_t bytes = memory_ && !is_over_ ? bytes_in(memory_.get()) : 0;
  if (bytes == 0) return "";
  const std::string job = printable(own_.job);
  return "ddprun: " + mebibytes(bytes) +
         " of snapshots in memory are kept for the next ddprun of job '" + job + "', " +
         (systemd_.is_on() ? "by the service manager"
                           : "for " + duration_text(parts_.job.keep_memory.time) +
                                 "; 'ddpctl forget " + job + "' frees them") +
         "\n";
}

}  // namespace ddprun::agent
