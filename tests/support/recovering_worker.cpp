// ddprun_recovering_worker FOLDER STEPS [WHAT [VALUE]]…: a worker that can be replaced in place, without
// LibTorch: it decides by recovery_core as worker_lib does, speaks over the link, and has a "training" of its own: the
// ranks of a round meet in a file of FOLDER in each step, and count steps, once for all ranks and once for each. A count
// that is wrong ends it with 97. It says on stdout what it does, and appends to
// FOLDER/told when it is told something ("RANK regroup GENERATION NANOSECONDS", take_place). FOLDER/pid-RANK
// is the process that is this rank now. Before the last step it waits for FOLDER/finish.
//
//   megabytes N     of memory that it has touched
//   set-up-fails    a prepared standby ends with 3, and a line on stderr
//   set-up-killed   it is killed
//   set-up-cannot   it says why it cannot recover
//   cannot          so does every worker
//   silent          no worker announces anything
//   poison N        rank 1 is killed in step N, each time
//   deaf            a rank that is told to regroup ends
//   leaves          rank 0 has left its loop of steps when it is told to regroup, and waits for ever
//   slow-regroup    a rank waits for FOLDER/go before it makes its groups anew
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "rendezvous/common/worker_abi/worker_link.h"
#include "worker_lib/recovery_core/recovery_core.h"

namespace {

using namespace ddprun;

[[noreturn]] void die(const char* what) {
  std::fprintf(stderr, "ddprun_recovering_worker: %s: %s\n", what, std::strerror(errno));
  std::_Exit(99);
}

int number_in(const char* variable) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? -1 : std::atoi(text);
}

std::int64_t monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000LL + now.tv_nsec;
}

constexpr int kRanksMax = 16;

// The memory of a round, in a file. What a rank gives to the others is valid as long as the generation beside it is
// that in which they read it: it is 0 while the rank writes.
struct Shared {
  struct Seat {
    std::atomic<std::uint32_t> generation;
    recovery::Place place;
    // Generation and number of the step that the rank is in.
    std::atomic<std::uint64_t> in_step;
  };
  Seat seats[kRanksMax];
  // The donor's.
  std::atomic<std::uint32_t> given_in;
  std::int64_t given;
};

// The count of one rank at the entry of a step and after it, for two steps, as worker_lib/process/mirror.h has it.
struct Mirror {
  struct State {
    std::int64_t step;  // from 1: an empty file has none
    std::int64_t count;
  };
  State states[2][2];

  State& at(std::int64_t step, recovery::Moment moment) {
    return states[step & 1][moment == recovery::Moment::kEntry ? 0 : 1];
  }
  void write(std::int64_t step, recovery::Moment moment, std::int64_t count) {
    std::atomic_ref number(at(step, moment).step);
    number = 0;
    at(step, moment).count = count;
    number = step + 1;
  }
  bool has(std::int64_t step, recovery::Moment moment) { return at(step, moment).step == step + 1; }
};

class Worker {
 public:
  Worker(std::string folder, std::int64_t steps, std::map<std::string, std::int64_t> what)
      : folder_(std::move(folder)), steps_(steps), what_(std::move(what)) {}

  int run() {
    open_link();
    touch();
    if (std::getenv(link::kPreparedVariable) != nullptr) {
      wait_for_place();
    } else {
      begin();
    }
    while (committed() < steps_) step();
    perform(ask(recovery::Left{}));
    say("done");
    return 0;
  }

 private:
  bool does(const char* what) const { return what_.contains(what); }
  std::int64_t committed() const { return page_->recovery.committed; }
  Shared& shared() const { return *shared_; }

  void say(const char* what) {
    std::printf("rank %d %s; pid %d, step %lld, generation %u, mirror %lld\n", rank_, what,
                ::getpid(), static_cast<long long>(committed()), generation_,
                static_cast<long long>(own_));
    std::fflush(stdout);
  }

  // ---- the link

  void open_link() {
    socket_ = number_in(link::kSocketVariable);
    const int page = number_in(link::kPageVariable);
    if (socket_ < 0 || page < 0) die("no link");
    void* const memory =
        ::mmap(nullptr, sizeof(link::Page), PROT_READ | PROT_WRITE, MAP_SHARED, page, 0);
    if (memory == MAP_FAILED) die("page");
    page_ = static_cast<link::Page*>(memory);
    ::fcntl(socket_, F_SETFD, FD_CLOEXEC);
    auto* const mutex = reinterpret_cast<pthread_mutex_t*>(page_->recovery.death_lock);
    static_assert(sizeof *mutex <= sizeof page_->recovery.death_lock);
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(mutex, &attributes);
    pthread_mutex_lock(mutex);
    page_->recovery.holds_death_lock = 1;
  }

  void send(link::Kind kind, std::uint32_t requests, int descriptor = -1) {
    link::Message message{
        .kind = static_cast<std::uint32_t>(kind), .pid = ::getpid(), .requests = requests};
    iovec bytes{&message, sizeof message};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr packet{};
    packet.msg_iov = &bytes;
    packet.msg_iovlen = 1;
    if (descriptor >= 0) {
      packet.msg_control = control;
      packet.msg_controllen = sizeof control;
      cmsghdr* const header = CMSG_FIRSTHDR(&packet);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    }
    if (::sendmsg(socket_, &packet, MSG_NOSIGNAL) < 0) die("link");
  }
  void send_cannot() {
    link::Sentence cannot{.head = {.kind = static_cast<std::uint32_t>(link::Kind::kCannotRecover),
                                   .pid = ::getpid()}};
    std::strcpy(cannot.text, "its set-up needs the others");
    if (::send(socket_, &cannot, sizeof cannot, MSG_NOSIGNAL) < 0) die("link");
  }

  // Waits so long for a message that begins a generation.
  std::optional<std::uint32_t> hear(int milliseconds) {
    pollfd readable{socket_, POLLIN, 0};
    if (::poll(&readable, 1, milliseconds) <= 0) return std::nullopt;
    link::Regroup message;  // as large as TakePlace, and GroupBroken
    iovec bytes{&message, sizeof message};
    alignas(cmsghdr) char control[CMSG_SPACE(3 * sizeof(int))] = {};
    msghdr packet{};
    packet.msg_iov = &bytes;
    packet.msg_iovlen = 1;
    packet.msg_control = control;
    packet.msg_controllen = sizeof control;
    const ssize_t size = ::recvmsg(socket_, &packet, MSG_CMSG_CLOEXEC);
    if (size <= 0) std::_Exit(98);  // the agent is gone
    const auto kind = static_cast<link::Kind>(message.head.kind);
    if (kind != link::Kind::kRegroup && kind != link::Kind::kTakePlace) return std::nullopt;
    note_told(kind == link::Kind::kRegroup ? "regroup" : "take_place", message.generation);
    if (const cmsghdr* const header = CMSG_FIRSTHDR(&packet); header != nullptr) {
      if (header->cmsg_len != CMSG_LEN(sizeof place_)) die("descriptors");
      std::memcpy(place_.data(), CMSG_DATA(header), sizeof place_);
    }
    return message.generation;
  }
  void note_told(const char* what, std::uint32_t generation) {
    const int file =
        ::open((folder_ + "/told").c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    ::dprintf(file, "%d %s %u %lld\n", rank_, what, generation,
              static_cast<long long>(monotonic_ns()));
    ::close(file);
  }

  // ---- the training

  void touch() {
    if (!does("megabytes")) return;
    const auto size = static_cast<std::size_t>(what_.at("megabytes")) << 20;
    void* const memory =
        ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) die("memory");
    ::madvise(memory, size, MADV_NOHUGEPAGE);
    std::memset(memory, 1, size);
  }

  void be_rank() {
    const std::string path = folder_ + "/pid-" + std::to_string(rank_);
    const std::string aside = path + "." + std::to_string(::getpid());
    const int file = ::open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    ::dprintf(file, "%d", ::getpid());
    ::close(file);
    if (::rename(aside.c_str(), path.c_str()) != 0) die("pid");
    const std::string state =
        folder_ + "/state-" + std::to_string(number_in("TORCHELASTIC_RESTART_COUNT"));
    const int all = ::open(state.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (all < 0 || ::ftruncate(all, sizeof(Shared)) != 0) die("state");
    void* const memory =
        ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, all, 0);
    if (memory == MAP_FAILED) die("state");
    shared_ = static_cast<Shared*>(memory);
    ::close(all);
  }

  void open_mirror(int file) {
    void* const memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) die("mirror");
    mirror_ = static_cast<Mirror*>(memory);
  }

  void begin() {
    be_rank();
    const int mirror = ::memfd_create("mirror", MFD_CLOEXEC);
    if (mirror < 0 || ::ftruncate(mirror, 4096) != 0) die("mirror");
    open_mirror(mirror);
    if (does("cannot")) {
      send_cannot();
    } else if (!does("silent")) {
      send(link::Kind::kMirror, 0, mirror);
      send(link::Kind::kHello, link::kCanRecover);
    }
    ::close(mirror);
    perform(ask(recovery::Joined{}));
    say("begins");
  }

  void wait_for_place() {
    std::printf("set-up of rank %d, which nobody sees\n", rank_);
    std::fflush(stdout);
    if (does("set-up-fails")) {
      std::fprintf(stderr, "a line before\nno data for one rank alone\n");
      std::_Exit(3);
    }
    if (does("set-up-killed")) ::raise(SIGKILL);
    if (does("set-up-cannot")) send_cannot();
    perform(ask(recovery::Joined{}));
    send(link::Kind::kHello, link::kIsPrepared);
    std::optional<std::uint32_t> generation;
    while (!generation) generation = hear(-1);
    ::dup2(place_[0], STDOUT_FILENO);
    ::dup2(place_[1], STDERR_FILENO);
    open_mirror(place_[2]);
    for (const int file : place_) ::close(file);
    be_rank();
    perform(ask(recovery::Placed{}));
    regroup(*generation);
    send(link::Kind::kHello, link::kCanRecover);
    say("takes its place");
  }

  // ---- what recovery_core decides

  recovery::Outcome ask(const recovery::Event& event) {
    recovery::Outcome outcome = recovery::step(state_, event);
    state_ = outcome.state;
    return outcome;
  }
  bool is_in_step() const { return std::holds_alternative<recovery::InStep>(state_); }

  void perform(const recovery::Outcome& outcome) {
    for (const recovery::Action& action : outcome.actions) {
      if (const auto* entry = std::get_if<recovery::NoteEntry>(&action)) {
        mirror_->write(entry->step, recovery::Moment::kEntry, own_);
      } else if (const auto* restore = std::get_if<recovery::Restore>(&action)) {
        expect(mirror_->has(restore->step, restore->moment), "the mirror has the state");
        own_ = mirror_->at(restore->step, restore->moment).count;
      } else if (const auto* regrouped = std::get_if<recovery::TellRegrouped>(&action)) {
        commit(regrouped->committed);
        page_->recovery.generation = generation_;
        send(link::Kind::kRegrouped, generation_);
        tells_commit_ = true;
      } else if (const auto* committed = std::get_if<recovery::TellCommitted>(&action)) {
        commit(committed->committed);
        if (std::exchange(tells_commit_, false)) send(link::Kind::kCommitted, generation_);
      } else if (std::holds_alternative<recovery::Withdraw>(action)) {
        send(link::Kind::kHello, 0);
      } else if (std::holds_alternative<recovery::Fail>(action)) {
        std::fprintf(stderr, "ddprun_recovering_worker: %s\n", outcome.why.c_str());
        std::_Exit(96);
      }
    }
  }
  void expect(bool holds, const char* what) const {
    if (holds) return;
    std::fprintf(stderr,
                 "ddprun_recovering_worker: rank %d, step %lld, generation %u: not so: %s\n", rank_,
                 static_cast<long long>(committed()), generation_, what);
    std::_Exit(97);
  }

  void regroup(std::uint32_t generation) {
    recovery::Outcome resumed;
    for (std::optional<std::uint32_t> next = generation; next;) {
      generation_ = *next;
      if (does("deaf") && rank_ == 0) std::_Exit(5);
      if (does("leaves") && rank_ == 0) {
        perform(ask(recovery::Left{}));
        for (;;) ::pause();
      }
      while (does("slow-regroup") && ::access((folder_ + "/go").c_str(), F_OK) != 0) ::usleep(1000);
      perform(ask(recovery::Regroup{}));
      next = agree(resumed);
    }
    perform(resumed);
  }

  // Returns the generation that begins meanwhile, if one does.
  std::optional<std::uint32_t> agree(recovery::Outcome& resumed) {
    Shared::Seat& seat = shared().seats[rank_];
    seat.generation = 0;
    seat.place = place_of(std::get<recovery::Regrouping>(state_));
    seat.generation = generation_;
    const auto are_seated = [&](auto is) {
      return all([&](int rank) { return is(shared().seats[rank].generation.load()); });
    };
    const auto newer =
        hear_until([&] { return are_seated([&](std::uint32_t in) { return in >= generation_; }); });
    if (newer) return newer;
    recovery::Met met{{}, rank_};
    for (int rank = 0; rank < world_size_; ++rank) met.places.push_back(shared().seats[rank].place);
    if (!are_seated([&](std::uint32_t in) { return in == generation_; })) return hear_next();
    const recovery::Outcome outcome = ask(met);
    perform(outcome);
    return take(std::get<recovery::TakeState>(outcome.actions.front()), resumed);
  }

  std::optional<std::uint32_t> take(const recovery::TakeState& take, recovery::Outcome& resumed) {
    if (take.donor == rank_) {
      shared().given_in = 0;
      shared().given = model_;
      shared().given_in = generation_;
    }
    const auto newer = hear_until([&] { return shared().given_in >= generation_; });
    if (newer) return newer;
    const std::int64_t given = shared().given;
    if (shared().given_in != generation_) return hear_next();
    if (take.needs_it) model_ = given;
    const std::int64_t step = std::get<recovery::Taking>(state_).at.committed;
    resumed = ask(recovery::Took{.calls = 0,
                                 .mirror = {mirror_->has(step, recovery::Moment::kEntry),
                                            mirror_->has(step - 1, recovery::Moment::kEntry),
                                            mirror_->has(step - 1, recovery::Moment::kEffect)}});
    return std::nullopt;
  }

  // Nothing: what it waits for has come before a newer generation.
  std::optional<std::uint32_t> hear_until(auto has_come) {
    while (!has_come()) {
      if (const auto generation = hear(1)) return generation;
    }
    return std::nullopt;
  }
  std::uint32_t hear_next() {
    std::optional<std::uint32_t> generation;
    while (!generation) generation = hear(-1);
    return *generation;
  }

  bool all(auto is) const {
    for (int rank = 0; rank < world_size_; ++rank) {
      if (!is(rank)) return false;
    }
    return true;
  }

  void commit(std::int64_t step) {
    expect(model_ == step, "all ranks' count is that of the committed steps");
    page_->recovery.committed = step;
    link::Note note;
    note.step = step;
    note.total_steps = steps_;
    note.step_at_ns = monotonic_ns();
    note.phase = WorkerPhase::kRunning;
    note.phase_since_ns = note.step_at_ns;
    link::write_note(*page_, note);
  }

  void step() {
    const std::int64_t next = committed() + 1;
    if (does("poison") && rank_ == 1 && next == what_.at("poison")) ::raise(SIGKILL);
    if (next == steps_) {
      while (::access((folder_ + "/finish").c_str(), F_OK) != 0) {
        if (const auto generation = hear(2)) return regroup(*generation);
      }
    }
    perform(ask(recovery::StepBegins{}));
    while (is_in_step()) make_step();
    expect(own_ == committed(), "this rank's count is that of the committed steps");
    if (next == 1) {
      send(link::Kind::kStepped, 0);
      say("steps");
    }
    if (const auto generation = hear(2)) regroup(*generation);
  }

  // If a generation begins meanwhile, the step is committed by the others then, or made again.
  void make_step() {
    const std::int64_t committed = std::get<recovery::InStep>(state_).committed;
    expect(model_ == committed && own_ == committed, "a step begins with the state before it");
    own_ += 1;
    mirror_->write(committed, recovery::Moment::kEffect, own_);
    const std::uint64_t key =
        std::uint64_t{generation_} << 40 | static_cast<std::uint64_t>(committed + 1);
    shared().seats[rank_].in_step = key;
    const auto generation = hear_until(
        [&] { return all([&](int rank) { return shared().seats[rank].in_step >= key; }); });
    if (generation) return regroup(*generation);
    model_ += 1;
    perform(ask(recovery::StepOver{}));
  }

  const std::string folder_;
  const std::int64_t steps_;
  const std::map<std::string, std::int64_t> what_;
  const int rank_ = number_in("RANK");
  const int world_size_ = number_in("WORLD_SIZE");
  int socket_ = -1;
  link::Page* page_ = nullptr;
  Shared* shared_ = nullptr;
  Mirror* mirror_ = nullptr;
  std::int64_t own_ = 0;    // steps that this rank has made, whichever process
  std::int64_t model_ = 0;  // steps that all ranks have made
  std::array<int, 3> place_{-1, -1, -1};
  std::uint32_t generation_ = 0;
  recovery::State state_ = std::getenv(link::kPreparedVariable) == nullptr
                               ? recovery::State(recovery::SetUp{})
                               : recovery::Prepared{};
  bool tells_commit_ = false;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  std::map<std::string, std::int64_t> what;
  for (int i = 3; i < argc; ++i) {
    const bool has_value = i + 1 < argc && std::atoi(argv[i + 1]) != 0;
    const char* const name = argv[i];
    what[name] = has_value ? std::atoll(argv[++i]) : 0;
  }
  return Worker(argv[1], std::atoll(argv[2]), std::move(what)).run();
}
