#include "worker_lib/process/agent_link.h"

#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

#include "rendezvous/common/descriptor_message.h"

namespace ddprun {
namespace {

// A clock that is a tick (4 ms) behind at most and costs a quarter of the exact one.
std::int64_t coarse_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return now.tv_sec * 1'000'000'000L + now.tv_nsec;
}

template <typename T>
bool has_option(int socket, int name, T* value) {
  socklen_t size = sizeof *value;
  return ::getsockopt(socket, SOL_SOCKET, name, value, &size) == 0 && size == sizeof *value;
}

bool is_socket_to(int fd, pid_t agent) {
  int domain = 0;
  int type = 0;
  ucred peer{};
  return has_option(fd, SO_DOMAIN, &domain) && domain == AF_UNIX &&
         has_option(fd, SO_TYPE, &type) && type == SOCK_SEQPACKET &&
         has_option(fd, SO_PEERCRED, &peer) && peer.pid == agent;
}

// A scheduler may signal every process of the job: the signal must not end this one before the agent's
// notice arrives. A handler of the program stays, and so does the effect of a stop signal.
void survive(int preempt_signal) {
  const bool is_notice_only = preempt_signal == SIGUSR1 || preempt_signal == SIGUSR2;
  struct sigaction now {};
  if (!is_notice_only || ::sigaction(preempt_signal, nullptr, &now) != 0) return;
  if ((now.sa_flags & SA_SIGINFO) == 0 && now.sa_handler == SIG_DFL) {
    ::signal(preempt_signal, SIG_IGN);
  }
}

}  // namespace

std::unique_ptr<AgentLink> AgentLink::open(int socket_fd, int page_fd) {
  link::Header header;
  if (!is_own_file(page_fd, header) || header.version < 1 ||
      !is_socket_to(socket_fd, header.agent_pid)) {
    return nullptr;
  }
  OwnerMark mark = OwnerMark::make();
  if (!mark.is_set() || !take_descriptor(socket_fd)) return nullptr;
  rdzv::UniqueFd socket(socket_fd);
  const rdzv::UniqueFd page(page_fd);
  void* memory =
      ::mmap(nullptr, link::kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, page.get(), 0);
  if (memory == MAP_FAILED) return nullptr;
  return std::unique_ptr<AgentLink>(
      new AgentLink(std::move(socket), static_cast<link::Page*>(memory), std::move(mark)));
}

std::unique_ptr<AgentLink> AgentLink::adopt(int socket_fd, link::Page* page) {
  return std::unique_ptr<AgentLink>(
      new AgentLink(rdzv::UniqueFd(socket_fd), page, OwnerMark::make()));
}

AgentLink::AgentLink(rdzv::UniqueFd socket, link::Page* page, OwnerMark mark)
    : socket_(std::move(socket)), page_(page), mark_(std::move(mark)) {}

// A mutex that is held stays in the list of its thread.
AgentLink::~AgentLink() {
  if (page_->recovery.holds_death_lock.load() == 0) ::munmap(page_, link::kPageBytes);
}

void AgentLink::step_done(std::int64_t step, std::int64_t total_steps,
                          std::span<const link::Value> values) {
  const std::size_t count = std::min(values.size(), link::kValuesMax);
  std::copy_n(values.begin(), count, note_.values.begin());
  if (count > 0) note_.value_count = static_cast<std::uint32_t>(count);
  // Numbers that begin anew with each epoch say nothing about the whole training.
  if (step < note_.step && note_.step_kind != StepKind::kCounted) {
    note_.step_kind = StepKind::kCounted;
    told_from_ = INT64_MIN;
  }
  note_.step = step;
  note_.total_steps = total_steps;
  note_.step_at_ns = coarse_ns();
  publish();
  look_for_nan(values.first(count));
  if (step >= told_from_) [[unlikely]]
    mark_step();
  end_step();
}

// What is finite costs no system call.
void AgentLink::look_for_nan(std::span<const link::Value> values) {
  for (const link::Value& value : values) {
    const auto known = std::ranges::find(not_finite_, value.name, &link::Value::name);
    if (std::isfinite(value.number)) {
      if (known != not_finite_.end()) [[unlikely]]
        not_finite_.erase(known);
      continue;
    }
    if (known != not_finite_.end() || page_->header.version < link::kNotFiniteSince) continue;
    constexpr std::int64_t kSecondNs = 1'000'000'000;
    if (note_.step_at_ns - told_since_ns_ >= kSecondNs) {
      told_since_ns_ = note_.step_at_ns;
      told_ = 0;
    }
    if (told_ == link::kValuesMax) return;
    told_ += 1;
    not_finite_.push_back(value);
    const link::NotFinite message{
        .head = {.kind = static_cast<std::uint32_t>(link::Kind::kNotFinite), .pid = ::getpid()},
        .step = note_.step,
        .value = value};
    send(&message, sizeof message);
  }
}

void AgentLink::end_step() {
  if (page_->header.version < link::kParksSince || !mark_.is_set()) return;
  link::Boundaries& shared = page_->boundaries;
  const std::int64_t before = std::exchange(step_ended_ns_, note_.step_at_ns);
  // The clock may not have moved meanwhile.
  const std::int64_t took = before == 0 ? 0 : std::max<std::int64_t>(step_ended_ns_ - before, 1);
  shared.step_ns.store(took, std::memory_order_relaxed);
  shared.steps = ++steps_;  // a full barrier
  if (shared.state != static_cast<std::uint32_t>(link::BoundaryState::kGoOn)) [[unlikely]]
    wait_at_boundary();
}

void AgentLink::wait_at_boundary() {
  link::Boundaries& shared = page_->boundaries;
  const auto wait_while = [&shared](link::BoundaryState state) {
    const auto number = static_cast<std::uint32_t>(state);
    while (shared.state == number) {
      ::syscall(SYS_futex, &shared.state, FUTEX_WAIT, number, nullptr, nullptr, 0);
    }
  };
  wait_while(link::BoundaryState::kHold);
  const bool parks = shared.state == static_cast<std::uint32_t>(link::BoundaryState::kPark);
  if (!parks || steps_ < shared.leave_at) return;
  try {
    if (await_devices_) await_devices_();
  } catch (...) {
    return;  // the program hears of it at its next call, as it would without this one
  }
  shared.parked = 1;
  send(link::Kind::kParked);
  wait_while(link::BoundaryState::kPark);
}

// The marks are written before the agent is told; an agent that does not know them is not told.
void AgentLink::mark_step() {
  const std::int64_t wanted = page_->header.wanted_step;
  const bool is_first = told_from_ == INT64_MIN;
  told_from_ = is_first && note_.step < wanted ? wanted : INT64_MAX;
  if (!mark_.is_set() || page_->header.version < link::kMarksSince) return;
  const std::int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
  link::Marks& marks = page_->marks;
  if (is_first) {
    marks.step_kind = static_cast<std::uint32_t>(note_.step_kind);
    marks.first_step = note_.step;
    marks.first_step_at_ns = now;
    marks.wanted_step_at_ns = 0;
  }
  if (wanted > 0 && note_.step >= wanted) marks.wanted_step_at_ns = now;
  send(link::Kind::kStepped);
}

void AgentLink::collective_begins() {
  ++note_.collectives;
  publish();
}

void AgentLink::enter(WorkerPhase phase) {
  note_.phase = phase;
  note_.phase_since_ns = coarse_ns();
  publish();
}

void AgentLink::publish() {
  if (mark_.is_set()) link::write_note(*page_, note_);
}

void AgentLink::take_leave_requests() {
  if (std::exchange(takes_leave_, true)) return;
  if (support(link::kTakesLeave)) survive(page_->header.preempt_signal);
}

bool AgentLink::is_told_to_leave() {
  if (!mark_.is_set()) return false;
  const std::scoped_lock lock(mutex_);
  // A thread that waits for messages would not see what another one takes.
  if (!is_told_to_leave_ && !is_heard_) receive();
  return is_told_to_leave_;
}

void AgentLink::note_leaving() {
  if (mark_.is_set() && page_->header.version >= link::kBoundariesSince)
    page_->boundaries.has_left = 1;
}

std::optional<AgentLink::GroupNews> AgentLink::await_group_news(int stop, std::uint32_t known) {
  std::optional<GroupNews> news;
  do {
    const std::scoped_lock lock(mutex_);
    is_heard_ = true;
    receive();
    if (broken_ || (regroup_ && regroup_->generation > known)) news = GroupNews{broken_, regroup_};
    if (news || !is_open_) break;
  } while (wait_for_message(stop));
  const std::scoped_lock lock(mutex_);
  is_heard_ = false;
  return news;
}

// False: `stop` can be read.
bool AgentLink::wait_for_message(int stop) {
  pollfd waits[] = {{socket_.get(), POLLIN, 0}, {stop, POLLIN, 0}};
  if (::poll(waits, std::size(waits), /*timeout=*/-1) < 0 && errno != EINTR) return false;
  return waits[1].revents == 0;
}

// ---- replacement in place

void AgentLink::hold_death_lock() {
  static_assert(sizeof(pthread_mutex_t) <= sizeof(link::Recovery::death_lock));
  auto* const lock = reinterpret_cast<pthread_mutex_t*>(page_->recovery.death_lock);
  pthread_mutexattr_t kind;
  ::pthread_mutexattr_init(&kind);
  ::pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
  ::pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
  const bool is_held = ::pthread_mutex_init(lock, &kind) == 0 && ::pthread_mutex_lock(lock) == 0;
  ::pthread_mutexattr_destroy(&kind);
  if (is_held) page_->recovery.holds_death_lock.store(1, std::memory_order_release);
}

bool AgentLink::send(link::Kind kind, std::uint32_t requests, int descriptor) {
  const link::Message message{
      .kind = static_cast<std::uint32_t>(kind), .pid = ::getpid(), .requests = requests};
  return send(&message, sizeof message, descriptor);
}

// A forked child must not wait for the mutex, which another thread may have held at the fork.
bool AgentLink::send(const void* message, std::size_t size, int descriptor) {
  if (!mark_.is_set()) return false;
  iovec parts[] = {{const_cast<void*>(message), size}};
  rdzv::DescriptorMessage<1> whole(parts);
  whole.give({&descriptor, std::size_t{descriptor >= 0}});
  const std::scoped_lock lock(mutex_);
  if (!is_open_) return false;
  if (::sendmsg(socket_.get(), &whole.header, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return true;
  close();
  return false;
}

void AgentLink::refuse_recovery(const std::string& why, bool nor_later) {
  supported_ &= ~link::kCanRecover;
  link::Sentence message{.head = {.kind = static_cast<std::uint32_t>(link::Kind::kCannotRecover),
                                  .pid = ::getpid(),
                                  .requests = nor_later ? link::kNorLater : 0}};
  std::memcpy(message.text, why.data(), std::min(why.size(), sizeof message.text - 1));
  send(&message, sizeof message);
}

void AgentLink::regrouped(std::uint32_t generation) {
  page_->recovery.generation.store(generation, std::memory_order_release);
  send(link::Kind::kRegrouped, generation);
  told_of_commit_ = false;
}

void AgentLink::committed(std::int64_t steps, std::uint32_t generation) {
  page_->recovery.committed.store(steps, std::memory_order_release);
  if (generation == 0 || std::exchange(told_of_commit_, true)) return;
  send(link::Kind::kCommitted, generation);
}

void AgentLink::note_gpu(std::uint64_t id, std::uint32_t index, std::uint64_t free_bytes,
                         std::uint64_t used_bytes) {
  if (page_->header.version < link::kGpuSince) return;
  page_->gpu.id = id;
  page_->gpu.index = index;
  page_->gpu.free_bytes = free_bytes;
  page_->gpu.used_bytes.store(used_bytes, std::memory_order_release);
}

bool AgentLink::is_placed() const {
  char first = 0;
  const ssize_t size = ::recv(socket_.get(), &first, 1, MSG_PEEK | MSG_DONTWAIT);
  if (size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR)) ::_exit(0);
  return size > 0;
}

void AgentLink::await_placed() {
  offer_to_take_place();
  while (!is_placed()) wait_for_message(/*stop=*/-1);
}

AgentLink::Place AgentLink::await_place() {
  if (auto given = place()) return std::move(*given);
  offer_to_take_place();
  for (;;) {
    if (auto given = place()) return std::move(*given);
    wait_for_message(/*stop=*/-1);
  }
}

std::optional<AgentLink::Place> AgentLink::place() {
  const std::scoped_lock lock(mutex_);
  receive();
  if (!place_ && !is_open_) ::_exit(0);
  if (place_) supported_ &= ~link::kIsPrepared;
  return std::exchange(place_, std::nullopt);
}

// All that has come, whichever thread it is for.
void AgentLink::receive() {
  union Any {
    link::Message head;
    link::GroupBroken broken;
    link::Regroup regroup;
    link::TakePlace place;
  };
  while (is_open_) {
    Any message{};
    iovec parts[] = {{&message, sizeof message}};
    rdzv::DescriptorMessage<4> whole(parts);
    const ssize_t length = TEMP_FAILURE_RETRY(
        ::recvmsg(socket_.get(), &whole.header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC));
    if (length < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (length <= 0) return close();
    std::vector<rdzv::UniqueFd> descriptors = whole.taken();
    const auto is = [&](link::Kind kind, std::size_t size) {
      return static_cast<std::size_t>(length) == size &&
             message.head.kind == static_cast<std::uint32_t>(kind);
    };
    if (is(link::Kind::kLeave, sizeof message.head)) {
      is_told_to_leave_ = true;
    } else if (is(link::Kind::kGroupBroken, sizeof message.broken) && !broken_) {
      broken_ = message.broken;
    } else if (is(link::Kind::kRegroup, sizeof message.regroup)) {
      if (!regroup_ || regroup_->generation < message.regroup.generation) {
        regroup_ = message.regroup;
      }
    } else if (is(link::Kind::kTakePlace, sizeof message.place) && descriptors.size() == 3) {
      place_ = Place{message.place.generation, std::move(descriptors[0]), std::move(descriptors[1]),
                     std::move(descriptors[2])};
    }  // else: a newer agent's, for newer workers
  }
}

// The agent sees it as closed; the descriptor stays, since another thread may wait for it.
void AgentLink::close() {
  ::shutdown(socket_.get(), SHUT_RDWR);
  is_open_ = false;
}

}  // namespace ddprun
