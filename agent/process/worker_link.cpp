#include "agent/process/worker_link.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <tuple>
#include <utility>

namespace ddprun::agent {
namespace {

namespace asio = boost::asio;
using rdzv::UniqueFd;

// Messages read at once; the event loop serves others before the rest, so a worker that sends
// without end blocks nobody.
constexpr int kMessagesAtOnce = 16;

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

// Memory of the worker's, mapped only while it is read: most workers end without a single request.
template <typename T>
class Mapped {
 public:
  explicit Mapped(int fd) : memory_(::mmap(nullptr, sizeof(T), PROT_READ, MAP_SHARED, fd, 0)) {}
  ~Mapped() {
    if (memory_ != MAP_FAILED) ::munmap(memory_, sizeof(T));
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  const T* get() const { return memory_ == MAP_FAILED ? nullptr : static_cast<const T*>(memory_); }

 private:
  void* memory_;
};

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

void WorkerLink::started(pid_t pid, OnMisuse on_misuse, OnStep on_step) {
  pid_ = pid;
  on_misuse_ = std::move(on_misuse);
  on_step_ = std::move(on_step);
  worker_socket_.reset();
  await_message();
}

bool WorkerLink::ask_to_leave() {
  must_leave_ = true;
  read_messages();  // there may be a hello that was not read yet
  send_leave();
  return was_told_ && socket_.is_open();
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

std::optional<WorkerProgress> WorkerLink::progress() const {
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
  const Mapped<link::Page> page(page_.get());
  StepMarks marks;
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

void WorkerLink::await_message() {
  socket_.async_wait(asio::posix::stream_descriptor::wait_read,
                     lifetime_.guard([this](const boost::system::error_code& ec) {
                       if (ec || !socket_.is_open()) return;
                       read_messages();
                       if (socket_.is_open()) await_message();
                     }));
}

void WorkerLink::read_messages() {
  for (int left = kMessagesAtOnce; left > 0 && socket_.is_open(); --left) {
    link::Message message;
    // MSG_TRUNC returns the full length of the message. The kernel drops descriptors sent with it.
    const ssize_t length =
        ::recv(socket_.native_handle(), &message, sizeof message, MSG_DONTWAIT | MSG_TRUNC);
    if (length < 0 && errno == EINTR) continue;
    if (length < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (length <= 0) return close();  // the worker has ended, or closed its link
    if (length == sizeof message && on_message(message)) continue;
    close();
    on_misuse_("sent " + std::to_string(length) +
               " bytes over its link that are no message of the protocol; the link is closed");
  }
}

bool WorkerLink::on_message(const link::Message& message) {
  // Messages of a newer version have these fields too.
  if (message.version < 1 || message.pid != pid_) return false;
  if (message.kind == static_cast<std::uint32_t>(link::Kind::kStepped)) {
    on_step_(marks());
    return true;
  }
  if (message.kind != static_cast<std::uint32_t>(link::Kind::kHello)) return false;
  taken_ = message.requests;
  send_leave();
  return true;
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
