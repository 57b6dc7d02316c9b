#include "agent/process/worker_link.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>

#include "rendezvous/common/descriptor_message.h"
#include "rendezvous/common/foreign_text.h"

namespace ddprun::agent {
namespace {

namespace asio = boost::asio;
using rdzv::UniqueFd;

// Messages read at once; the event loop serves others before the rest, so a worker that sends
// without end blocks nobody.
constexpr int kMessagesAtOnce = 16;
// More than a socket has room for. A child of the worker may have the socket, too, and send without end.
constexpr int kMessagesLeft = 1024;

// A worker may write any time; the age must not become negative.
std::chrono::nanoseconds since(std::int64_t at_ns, std::int64_t now_ns) {
  return std::chrono::nanoseconds(at_ns <= 0 || at_ns > now_ns ? 0 : now_ns - at_ns);
}

std::optional<std::chrono::steady_clock::time_point> time_of(std::int64_t at_ns) {
  using Time = std::chrono::steady_clock::time_point;
  return at_ns <= 0 ? std::nullopt : std::optional(Time(std::chrono::nanoseconds(at_ns)));
}

// A number that this version does not know is compared with nothing.
StepKind known(StepKind kind) { return kind > StepKind::kCounted ? StepKind::kCounted : kind; }

// Whether a number of a worker's page is not 0. To ask this takes a tenth of the time of mapping the page, and most workers
// end without having written anything.
bool is_set(int page, std::size_t offset) {
  std::uint64_t number = 0;
  return ::pread(page, &number, sizeof number, static_cast<off_t>(offset)) == sizeof number &&
         number != 0;
}

// Memory of the worker's, mapped only while it is used.
template <typename T, int kProtection = PROT_READ>
class Mapped {
 public:
  explicit Mapped(int fd) : memory_(::mmap(nullptr, sizeof(T), kProtection, MAP_SHARED, fd, 0)) {}
  ~Mapped() {
    if (memory_ != MAP_FAILED) ::munmap(memory_, sizeof(T));
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  using Memory = std::conditional_t<kProtection == PROT_READ, const T, T>;
  Memory* get() const { return memory_ == MAP_FAILED ? nullptr : static_cast<Memory*>(memory_); }

 private:
  void* memory_;
};

// What the worker has written of its boundaries.
struct WrittenBoundaries {
  std::int64_t passed = 0;
  std::uint32_t takes_part = 0;
  std::uint32_t has_left = 0;
  std::int64_t steps = 0;
  std::int64_t step_ns = 0;
  std::uint32_t parked = 0;
};
WrittenBoundaries boundaries_of(int page_fd) {
  const Mapped<link::Page> page(page_fd);
  if (page.get() == nullptr) return {};
  const link::Boundaries& shared = page.get()->boundaries;
  return {shared.passed, shared.takes_part, shared.has_left,
          shared.steps,  shared.step_ns,    shared.parked};
}

// Memory with a sealed size, so the worker cannot shrink it and make the agent fault while reading.
Result<UniqueFd> make_memory(const char* name, std::size_t bytes) {
  UniqueFd memory(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory || ::ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0 ||
      ::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return fail(error_from_errno(errno, "memory for a worker's link"));
  }
  return memory;
}

// Names are printed on terminals without escaping.
bool is_printable(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) { return c >= ' ' && c < '\x7f'; });
}

}  // namespace

Result<std::shared_ptr<WorkerLink>> WorkerLink::make(const asio::any_io_executor& executor) {
  int sockets[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) != 0) {
    return fail(error_from_errno(errno, "socket for a worker's link"));
  }
  UniqueFd ours(sockets[0]);
  UniqueFd theirs(sockets[1]);
  auto page = make_memory("ddprun-link", link::kPageBytes);
  if (!page) return fail(std::move(page.error()));
  auto record = make_memory("ddprun-record", record::kBytes);
  if (!record) return fail(std::move(record.error()));
  return std::shared_ptr<WorkerLink>(new WorkerLink(executor, std::move(ours), std::move(theirs),
                                                    std::move(*page), std::move(*record)));
}

WorkerLink::WorkerLink(const asio::any_io_executor& executor, UniqueFd socket,
                       UniqueFd worker_socket, UniqueFd page, UniqueFd record)
    : socket_(executor, socket.release()),
      worker_socket_(std::move(worker_socket)),
      page_(std::move(page)),
      record_(std::move(record)) {}

void WorkerLink::started(pid_t pid, Hooks hooks) {
  pid_ = pid;
  hooks_ = std::move(hooks);
  worker_socket_.reset();
  await_message();
}

bool WorkerLink::ask_to_leave() {
  must_leave_ = true;
  read_messages(kMessagesAtOnce);  // there may be a hello that was not read yet
  send_leave();
  return was_told_ && socket_.is_open();
}

bool WorkerLink::asks_at_boundaries() const { return boundaries_of(page_.get()).takes_part != 0; }

bool WorkerLink::has_left() const {
  return (was_told_ && !notes_that_it_leaves_) || boundaries_of(page_.get()).has_left != 0;
}

std::int64_t WorkerLink::boundary_passed() const { return boundaries_of(page_.get()).passed; }

std::int64_t WorkerLink::steps() const { return boundaries_of(page_.get()).steps; }

bool WorkerLink::is_parked() const { return boundaries_of(page_.get()).parked != 0; }

std::optional<std::chrono::nanoseconds> WorkerLink::last_step() const {
  const std::int64_t took = boundaries_of(page_.get()).step_ns;
  return took > 0 ? std::optional(std::chrono::nanoseconds(took)) : std::nullopt;
}

void WorkerLink::set(const Boundaries& boundaries) {
  const Mapped<link::Page, PROT_READ | PROT_WRITE> page(page_.get());
  if (page.get() == nullptr) return;
  link::Boundaries& shared = page.get()->boundaries;
  shared.leave_at = boundaries.leave_at;
  shared.state = static_cast<std::uint32_t>(boundaries.state);
  ::syscall(SYS_futex, &shared.state, FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr, nullptr,
            0);
}

void WorkerLink::tell_group_broken(Round round, int rank) {
  if (!socket_.is_open()) return;
  link::GroupBroken broken;
  broken.head.pid = ::getpid();
  broken.rank = rank;
  broken.round = number(round);
  // Where it finds no room, the worker has read nothing of this kind that was sent before.
  std::ignore =
      ::send(socket_.native_handle(), &broken, sizeof broken, MSG_DONTWAIT | MSG_NOSIGNAL);
}

// ---- replacement in place

bool WorkerLink::tell_regroup(int rank, std::uint32_t generation) {
  if (!socket_.is_open()) return false;
  link::Regroup regroup;
  regroup.head.pid = ::getpid();
  regroup.rank = rank;
  regroup.generation = generation;
  return ::send(socket_.native_handle(), &regroup, sizeof regroup, MSG_DONTWAIT | MSG_NOSIGNAL) ==
         sizeof regroup;
}

bool WorkerLink::tell_take_place(int rank, std::uint32_t generation, int stdout_fd, int stderr_fd,
                                 WorkerLink& before) {
  if (!socket_.is_open() || !before.mirror_) return false;
  link::TakePlace take;
  take.head.pid = ::getpid();
  take.rank = rank;
  take.generation = generation;
  const std::array descriptors{stdout_fd, stderr_fd, before.mirror_.get()};
  iovec bytes[] = {{&take, sizeof take}};
  rdzv::DescriptorMessage<descriptors.size()> message(bytes);
  message.give(descriptors);
  if (::sendmsg(socket_.native_handle(), &message.header, MSG_DONTWAIT | MSG_NOSIGNAL) !=
      sizeof take) {
    return false;
  }
  mirror_ = std::move(before.mirror_);
  return true;
}

WorkerLink::Recovered WorkerLink::recovered() const {
  const Mapped<link::Page> page(page_.get());
  if (page.get() == nullptr) return {};
  const link::Recovery& written = page.get()->recovery;
  return {written.committed.load(std::memory_order_acquire),
          written.generation.load(std::memory_order_acquire)};
}

link::GpuUse WorkerLink::gpu() const {
  const Mapped<link::Page> page(page_.get());
  if (page.get() == nullptr) return {};
  const link::Gpu& written = page.get()->gpu;
  const std::uint64_t used = written.used_bytes.load(std::memory_order_acquire);
  return {.id = written.id,
          .index = written.index,
          .free_bytes = written.free_bytes,
          .used_bytes = used};
}

// ---- what it has written

std::optional<WorkerProgress> WorkerLink::progress() const {
  if (!is_set(page_.get(), offsetof(link::Page, notes))) return std::nullopt;
  const Mapped<link::Page> page(page_.get());
  const auto note = page.get() == nullptr ? std::nullopt : link::read_note(*page.get());
  if (!note) return std::nullopt;
  const std::int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();  // ns
  WorkerProgress progress;
  if (note->step_at_ns != 0) progress.step = note->step;
  progress.total_steps = note->total_steps;
  progress.step_kind = known(note->step_kind);
  progress.since_step = since(note->step_at_ns, now);
  progress.collectives = note->collectives;
  progress.phase = note->phase;
  progress.since_phase = since(note->phase_since_ns, now);
  for (std::size_t i = 0; i < note->value_count; ++i) {
    const link::Value& value = note->values[i];
    if (is_printable(value.text())) {
      progress.values.push_back({std::string(value.text()), value.number});
    }
  }
  return progress;
}

StepMarks WorkerLink::marks() const {
  StepMarks marks;
  if (!is_set(page_.get(), offsetof(link::Page, marks) + offsetof(link::Marks, first_step_at_ns)))
    return marks;
  const Mapped<link::Page> page(page_.get());
  if (page.get() == nullptr) return marks;
  const link::Marks& written = page.get()->marks;
  marks.first_step_at = time_of(written.first_step_at_ns.load(std::memory_order_acquire));
  marks.wanted_step_at = time_of(written.wanted_step_at_ns.load(std::memory_order_acquire));
  marks.first_step = written.first_step.load(std::memory_order_relaxed);
  marks.step_kind = known(static_cast<StepKind>(written.step_kind.load(std::memory_order_relaxed)));
  return marks;
}

std::vector<record::RecordedGroup> WorkerLink::groups() const {
  const Mapped<record::Memory> memory(record_.get());
  if (memory.get() == nullptr) return {};
  return record::read(*memory.get());
}

std::vector<record::GroupArrivals> WorkerLink::arrivals(std::size_t most) const {
  const Mapped<record::Memory> memory(record_.get());
  if (memory.get() == nullptr) return {};
  return record::read_arrivals(*memory.get(), most);
}

record::RecordedThreads WorkerLink::threads() const {
  const Mapped<record::Memory> memory(record_.get());
  return memory.get() == nullptr ? record::RecordedThreads{} : record::read_threads(*memory.get());
}

void WorkerLink::await_message() {
  socket_.async_wait(asio::posix::stream_descriptor::wait_read,
                     lifetime_.guard([this](const boost::system::error_code& ec) {
                       if (ec || !socket_.is_open()) return;
                       const auto watched = lifetime_.watch();
                       read_messages(kMessagesAtOnce);
                       if (!watched.expired() && socket_.is_open()) await_message();
                     }));
}

// The largest message of a worker.
struct WorkerLink::Packet {
  link::Sentence message;
  ssize_t length = -1;  // as it was sent; -1: errno says why there is none
  rdzv::UniqueFd descriptor;
  bool had_more_descriptors = false;

  std::string sentence() const {
    return printable({message.text, ::strnlen(message.text, sizeof message.text)});
  }
};

WorkerLink::Packet WorkerLink::receive(int socket) {
  Packet packet;
  iovec bytes{&packet.message, sizeof packet.message};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_LEN(sizeof(int));  // the kernel drops what is beyond the first one
  // MSG_TRUNC returns the full length of the message.
  packet.length = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_TRUNC | MSG_CMSG_CLOEXEC);
  if (packet.length < 0) return packet;
  packet.had_more_descriptors = (message.msg_flags & MSG_CTRUNC) != 0;
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
      header->cmsg_len == CMSG_LEN(sizeof(int))) {
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
    packet.descriptor.reset(descriptor);
  }
  return packet;
}

void WorkerLink::ended() { read_messages(kMessagesLeft); }

void WorkerLink::read_messages(int most) {
  const auto self = shared_from_this();
  const auto is_owned = [&self] { return self.use_count() > 1; };
  for (int left = most; left > 0 && socket_.is_open() && is_owned(); --left) {
    Packet packet = receive(socket_.native_handle());
    // ECONNRESET comes once, before what a worker sent that has ended and left messages unread.
    if (packet.length < 0 && (errno == EINTR || errno == ECONNRESET)) continue;
    if (packet.length < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (packet.length <= 0) return close();  // the worker has ended, or closed its link
    if (on_message(packet)) continue;
    close();
    return hooks_.misuse(
        "sent " + std::to_string(packet.length) +
        " bytes over its link that are no message of the protocol; the link is closed");
  }
}

bool WorkerLink::on_message(Packet& packet) {
  const link::Message& head = packet.message.head;
  const auto kind = static_cast<link::Kind>(head.kind);
  const bool is_sentence =
      kind == link::Kind::kCannotRecover || kind == link::Kind::kReplicasDiffer;
  const std::size_t size = is_sentence                      ? sizeof packet.message
                           : kind == link::Kind::kNotFinite ? sizeof(link::NotFinite)
                                                            : sizeof head;
  // Messages of a newer version have these fields too.
  if (!std::cmp_equal(packet.length, size) || head.version < 1 || head.pid != pid_) return false;
  switch (kind) {
    case link::Kind::kHello:
      taken_ = head.requests;
      notes_that_it_leaves_ = head.version >= link::kBoundariesSince;
      send_leave();
      hooks_.hello();
      return true;
    case link::Kind::kStepped:
      hooks_.stepped(marks());
      return true;
    case link::Kind::kMirror: {
      struct stat about {};
      if (!packet.descriptor || packet.had_more_descriptors ||
          ::fstat(packet.descriptor.get(), &about) != 0 || !S_ISREG(about.st_mode)) {
        return false;
      }
      mirror_ = std::move(packet.descriptor);
      return true;
    }
    case link::Kind::kRegrouped:
      hooks_.regrouped(head.requests);
      return true;
    case link::Kind::kCommitted:
      hooks_.committed(head.requests);
      return true;
    case link::Kind::kParked:
      hooks_.parked();
      return true;
    case link::Kind::kCannotRecover:
      taken_ &= ~link::kCanRecover;
      has_refused_ = true;
      hooks_.cannot_recover(packet.sentence(), (head.requests & link::kNorLater) != 0);
      return true;
    case link::Kind::kReplicasDiffer: {
      const auto its = std::bit_cast<link::ReplicasDiffer>(packet.message);
      hooks_.replicas_differ(its.step, its.rank, its.other,
                             printable({its.what, ::strnlen(its.what, sizeof its.what)}));
      return true;
    }
    case link::Kind::kNotFinite: {
      link::NotFinite its;
      std::memcpy(static_cast<void*>(&its), &packet.message, sizeof its);
      if (!is_printable(its.value.text()) || std::isfinite(its.value.number)) return false;
      hooks_.not_finite(its.step, {std::string(its.value.text()), its.value.number});
      return true;
    }
    default:
      return false;
  }
}

void WorkerLink::send_leave() {
  if (!must_leave_ || was_told_ || (taken_ & link::kTakesLeave) == 0) return;
  link::Message leave;
  leave.kind = static_cast<std::uint32_t>(link::Kind::kLeave);
  leave.pid = ::getpid();
  // The buffer has room: little else is ever sent.
  was_told_ = ::send(socket_.native_handle(), &leave, sizeof leave, MSG_DONTWAIT | MSG_NOSIGNAL) ==
              sizeof leave;
}

void WorkerLink::close() {
  boost::system::error_code ignored;
  socket_.close(ignored);
  taken_ &= link::kCanBeZygote;  // what was said of the program stays true
}

}  // namespace ddprun::agent
