#include "agent/query/kept_memory.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "agent/process/memory_offer.h"
#include "agent/text/json_fields.h"
#include "rendezvous/common/descriptor_message.h"
#include "rendezvous/common/foreign_text.h"
#include "rendezvous/common/text/durations.h"

namespace ddprun::agent {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kLineBytesMax = std::size_t{64} * 1024;

bool await_input(int socket, Clock::time_point until) {
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(until - Clock::now());
    pollfd ready{socket, POLLIN, 0};
    const int count = ::poll(&ready, 1, static_cast<int>(std::max(left, milliseconds(0)).count()));
    if (count >= 0 || errno != EINTR) return count > 0;
  }
}

Error silent(const std::string& socket) {
  return {ErrorCode::kTimeout, "nobody answers at " + socket + " in time", {}};
}

// The first line; the keeper says no more before it is asked.
Result<std::string> read_line(int socket, const std::string& name, Clock::time_point until) {
  std::string text;
  while (text.size() < kLineBytesMax) {
    if (!await_input(socket, until)) return fail(silent(name));
    std::array<char, 4096> bytes{};
    const ssize_t size = ::recv(socket, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (size <= 0) return fail(ErrorCode::kClosed, "the memory at " + name + " is gone");
    text.append(bytes.data(), static_cast<std::size_t>(size));
    if (text.ends_with('\n')) return text.substr(0, text.size() - 1);
  }
  return fail(ErrorCode::kProtocol, "no keeper answers at " + name);
}

bool say(int socket, std::string_view word) {
  return ::send(socket, word.data(), word.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(word.size());
}

// A connection to a keeper that has said what it holds, and waits for a word.
Result<rdzv::UniqueFd> ask(const KeptMemory& memory, uid_t user, Clock::time_point until) {
  const auto folder = open_control_folder(memory.folder, user, /*makes_it=*/false);
  if (!folder) return fail(folder.error());
  auto socket = connect_control(*folder, memory.socket, user);
  if (!socket) return socket;
  const auto line = read_line(socket->get(), memory.socket, until);
  if (!line) return fail(line.error());
  const auto now = kept_memory_from(*line);
  if (!now || now->is_in_use || now->owner != memory.owner) {
    return fail(ErrorCode::kClosed, "the memory at " + memory.socket + " is another one now");
  }
  return socket;
}

Result<rdzv::UniqueFd> receive_memory(int socket, const std::string& name,
                                      Clock::time_point until) {
  if (!await_input(socket, until)) return fail(silent(name));
  std::array<char, 16> bytes{};
  iovec parts[] = {{bytes.data(), bytes.size()}};
  rdzv::DescriptorMessage<1> message(parts);
  const ssize_t size = ::recvmsg(socket, &message.header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  auto taken = message.taken();
  const bool is_whole =
      std::string_view(bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0))) ==
      memory_words::kMemory;
  if (taken.size() == 1 && is_whole) return std::move(taken.front());
  return fail(ErrorCode::kClosed, "the memory at " + name + " is gone");
}

}  // namespace

// Keepers of other versions may lack what follows the version.
static void fields(auto& json, Is<MemoryOwner> auto& owner) {
  json("version", owner.version);
  json.may_lack("job", owner.job);
  json.may_lack("program", owner.program);
  json.may_lack("ddprun", owner.ddprun);
  json.may_lack("node_rank", owner.node_rank);
}

static void fields(const JsonReader& json, KeptMemory& memory) {
  fields(json, memory.owner);
  json("in_use", memory.is_in_use);
  json.may_lack("bytes", memory.bytes);
  std::time_t ended = 0;
  json.may_lack("ended_unix_s", ended);
  memory.ended = std::chrono::system_clock::from_time_t(ended);
  json.may_lack("left_ms", memory.left);
}

std::string to_json(const MemoryOwner& owner) {
  return boost::json::serialize(JsonWriter::of(owner));
}

std::optional<KeptMemory> kept_memory_from(std::string_view line) {
  auto memory = parse_json<KeptMemory>(line, "what a keeper holds");
  return memory ? std::optional(std::move(*memory)) : std::nullopt;
}

std::string describe(const KeptMemory& memory) {
  constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
  return std::to_string((memory.bytes + kMiB - 1) / kMiB) + " MiB are kept for another " +
         duration_text(std::chrono::ceil<std::chrono::seconds>(memory.left));
}

std::vector<KeptMemory> find_memories(const Environment& environment, uid_t user,
                                      std::string_view run_id, milliseconds patience) {
  struct Asked {
    KeptMemory memory;
    rdzv::UniqueFd socket;
  };
  std::vector<Asked> asked;
  const std::string prefix = run_id.empty() ? "" : control_prefix(run_id) + ".";
  for (const std::string& path : control_folders(environment, user)) {
    const auto folder = open_control_folder(path, user, /*makes_it=*/false);
    if (!folder) continue;
    std::vector<std::string> dead;
    for (const std::string& name : memory_sockets_in(*folder)) {
      if (!name.starts_with(prefix)) continue;
      auto socket = connect_control(*folder, name, user);
      if (!socket) {
        if (socket.error().code == ErrorCode::kUnavailable) dead.push_back(name);
        continue;
      }
      KeptMemory memory;
      memory.folder = path;
      memory.socket = name;
      memory.agent = peer_of(socket->get()).value_or(ucred{}).pid;
      asked.push_back({std::move(memory), std::move(*socket)});
    }
    if (!dead.empty()) remove_left_over(*folder, dead, user);
  }
  // All at the same time, so that several that hang cost the time limit only once.
  const auto until = Clock::now() + patience;
  std::vector<KeptMemory> found;
  for (Asked& each : asked) {
    const auto line = read_line(each.socket.get(), each.memory.socket, until);
    each.socket.reset();  // the next one may ask
    if (!line && line.error().code == ErrorCode::kTimeout) {
      each.memory.is_silent = true;
      found.push_back(std::move(each.memory));
      continue;
    }
    auto memory = line ? kept_memory_from(*line) : std::nullopt;
    if (!memory) continue;
    memory->folder = std::move(each.memory.folder);
    memory->socket = std::move(each.memory.socket);
    memory->agent = each.memory.agent;
    found.push_back(std::move(*memory));
  }
  return found;
}

Result<void> forget_memory(const KeptMemory& memory, uid_t user, milliseconds patience) {
  const auto until = Clock::now() + patience;
  const auto socket = ask(memory, user, until);
  if (!socket) return fail(socket.error());
  char any = 0;
  if (!say(socket->get(), memory_words::kForget) || !await_input(socket->get(), until)) {
    return fail(silent(memory.socket));
  }
  if (::recv(socket->get(), &any, 1, MSG_DONTWAIT) <= 0) return {};
  return fail(ErrorCode::kProtocol, "no keeper answers at " + memory.socket);
}

Result<TakenMemory> TakenMemory::take(const KeptMemory& memory, uid_t user, milliseconds patience) {
  const auto until = Clock::now() + patience;
  auto socket = ask(memory, user, until);
  if (!socket) return fail(std::move(socket.error()));
  if (!say(socket->get(), memory_words::kTake)) return fail(silent(memory.socket));
  auto taken = receive_memory(socket->get(), memory.socket, until);
  if (!taken) return fail(std::move(taken.error()));
  return TakenMemory(std::move(*taken), std::move(*socket));
}

void TakenMemory::confirm() {
  say(connection_.get(), memory_words::kTaken);
  connection_.reset();
}

MemoryChoice choose_memory(std::vector<KeptMemory> memories, const MemoryOwner& own) {
  MemoryChoice choice;
  const std::string begin = "the memory kept of job '" + own.job + "' ";
  const std::string end = "; it is not used; 'ddpctl forget " + own.job + "' frees it";
  for (KeptMemory& each : memories) {
    if (each.is_silent) {
      choice.refused.push_back(begin + "is not used: its keeper does not answer at " + each.socket);
    } else if (each.owner.job != as_utf8(own.job, kJsonTextBytesMax) || each.is_in_use) {
      continue;
    } else if (each.owner.version != own.version) {
      choice.refused.push_back(begin + "is of another version of ddprun, " + each.owner.ddprun +
                               end);
    } else if (each.owner.program != as_utf8(own.program, kJsonTextBytesMax)) {
      choice.refused.push_back(begin + "is of another program, " + each.owner.program + end);
    } else {
      choice.fitting.push_back(std::move(each));
    }
  }
  std::ranges::stable_sort(choice.fitting, std::ranges::greater(), &KeptMemory::ended);
  std::stable_partition(
      choice.fitting.begin(), choice.fitting.end(),
      [&own](const KeptMemory& each) { return each.owner.node_rank == own.node_rank; });
  return choice;
}

}  // namespace ddprun::agent
