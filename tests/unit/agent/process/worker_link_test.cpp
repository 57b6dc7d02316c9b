// Both ends of the worker link in one process: the agent's (agent/process/worker_link.h) and the worker's
// (worker_lib/process/agent_link.h), and what garbage on either side does.
#include "agent/process/worker_link.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "worker_lib/process/agent_link.h"
#include "worker_lib/process/collective_record.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// What the worker inherits: copies, as the descriptors of another process are.
struct Inherited {
  int socket = -1;
  int page = -1;
};

class WorkerLinkTest : public ::testing::Test {
 protected:
  // A link to this process, or to one that says it has another pid.
  void make(pid_t worker_pid = ::getpid(), int preempt_signal = 0, std::int64_t wanted_step = 0,
            std::uint32_t version = link::kVersion) {
    auto made = WorkerLink::make(io.get_executor());
    ASSERT_TRUE(made) << made.error().to_string();
    agent = *made;
    link::Header header;
    header.worker_pid = worker_pid;
    header.agent_pid = ::getpid();
    header.preempt_signal = preempt_signal;
    header.wanted_step = wanted_step;
    header.version = version;
    ASSERT_EQ(::pwrite(agent->worker_page(), &header, sizeof header, 0), ssize_t{sizeof header});
    worker = {::dup(agent->worker_socket()), ::dup(agent->worker_page())};
    agent->started(::getpid(),
                   {.misuse = [this](std::string_view what) { misuses.emplace_back(what); },
                    .stepped = [this](const StepMarks& marks) { told.push_back(marks); },
                    .replicas_differ =
                        [this](std::int64_t step, int rank, int other, const std::string& what) {
                          reported.push_back(std::to_string(step) + " " + std::to_string(rank) +
                                             " " + std::to_string(other) + " " + what);
                        },
                    .not_finite =
                        [this](std::int64_t step, const NamedValue& value) {
                          reported.push_back(std::to_string(step) + " " + value.name + " " +
                                             number_text(value.value));
                        },
                    .hello = [this] { reported.emplace_back("hello"); },
                    .cannot_recover =
                        [this](std::string why, bool nor_later) {
                          reported.push_back((nor_later ? "never: " : "cannot: ") + why);
                        },
                    .regrouped =
                        [this](std::uint32_t generation) {
                          reported.push_back("regrouped " + std::to_string(generation));
                        },
                    .committed =
                        [this](std::uint32_t generation) {
                          reported.push_back("committed " + std::to_string(generation));
                        },
                    .parked = [this] { reported.emplace_back("parked"); }});
  }
  void TearDown() override { close_worker(); }

  std::unique_ptr<AgentLink> open() {
    auto opened = AgentLink::open(worker.socket, worker.page);
    if (opened) worker = {};  // they are its own now
    return opened;
  }
  void close_worker() {
    if (worker.socket >= 0) ::close(worker.socket);
    if (worker.page >= 0) ::close(worker.page);
    worker = {};
  }
  void handle_events() {
    io.restart();
    io.poll();
  }
  void send(const void* bytes, std::size_t size) {
    ASSERT_EQ(::send(worker.socket, bytes, size, MSG_NOSIGNAL), static_cast<ssize_t>(size));
    handle_events();
  }

  boost::asio::io_context io;
  std::shared_ptr<WorkerLink> agent;
  Inherited worker;
  // As a worker of version 5 does, with these descriptors.
  void send_with(const link::Message& message, std::vector<int> descriptors) {
    iovec data{const_cast<link::Message*>(&message), sizeof message};
    alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))] = {};
    msghdr packet{};
    packet.msg_iov = &data;
    packet.msg_iovlen = 1;
    if (!descriptors.empty()) {
      packet.msg_control = control;
      packet.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
      cmsghdr* const header = CMSG_FIRSTHDR(&packet);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
      std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size() * sizeof(int));
    }
    ASSERT_EQ(::sendmsg(worker.socket, &packet, MSG_NOSIGNAL), ssize_t{sizeof message});
    handle_events();
  }
  static link::Message message(link::Kind kind, std::uint32_t requests = 0) {
    return {.kind = static_cast<std::uint32_t>(kind), .pid = ::getpid(), .requests = requests};
  }

  std::vector<std::string> misuses;
  std::vector<StepMarks> told;
  std::vector<std::string> reported;
};

struct Memory {
  explicit Memory(const std::string& text) : fd(::memfd_create("mirror", MFD_CLOEXEC)) {
    EXPECT_EQ(::write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  ~Memory() { ::close(fd); }
  const int fd;
};

std::string text_of(int fd) {
  char text[16] = {};
  return ::pread(fd, text, sizeof text, 0) < 0 ? "none" : text;
}

// Over the worker's socket, with the descriptors that came with it.
struct Received {
  std::string bytes;
  std::vector<int> descriptors;
};
Received receive(int socket) {
  Received received{std::string(512, '\0'), {}};
  iovec data{received.bytes.data(), received.bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {};
  msghdr packet{};
  packet.msg_iov = &data;
  packet.msg_iovlen = 1;
  packet.msg_control = control;
  packet.msg_controllen = sizeof control;
  const ssize_t size = ::recvmsg(socket, &packet, MSG_DONTWAIT);
  received.bytes.resize(static_cast<std::size_t>(std::max<ssize_t>(0, size)));
  if (const cmsghdr* const header = CMSG_FIRSTHDR(&packet); size > 0 && header != nullptr) {
    received.descriptors.resize((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(received.descriptors.data(), CMSG_DATA(header),
                received.descriptors.size() * sizeof(int));
  }
  return received;
}
template <typename T>
T as(const Received& received) {
  T message;
  EXPECT_EQ(received.bytes.size(), sizeof message);
  std::memcpy(&message, received.bytes.data(), std::min(sizeof message, received.bytes.size()));
  return message;
}

TEST_F(WorkerLinkTest, TheAgentReadsWhatTheWorkerNotes) {
  make();
  EXPECT_EQ(agent->progress(), std::nullopt);
  const auto link = open();
  ASSERT_TRUE(link);
  EXPECT_EQ(agent->progress(), std::nullopt) << "opening is no progress";
  link->enter(WorkerPhase::kJoining);
  ASSERT_TRUE(agent->progress());
  EXPECT_EQ(agent->progress()->step, std::nullopt);
  EXPECT_EQ(agent->progress()->phase, WorkerPhase::kJoining);
  link->step_done(412, 1000);
  link->collective_begins();
  {
    const PhaseGuard saving(link.get(), WorkerPhase::kSaving);
    EXPECT_EQ(agent->progress()->phase, WorkerPhase::kSaving);
  }
  const auto progress = agent->progress();
  ASSERT_TRUE(progress);
  EXPECT_EQ(progress->step, 412);
  EXPECT_EQ(progress->total_steps, 1000);
  EXPECT_EQ(progress->collectives, 1U);
  EXPECT_EQ(progress->phase, WorkerPhase::kJoining);
  EXPECT_GE(progress->since_step, 0s);
  EXPECT_LT(progress->since_step, 60s);
}

// The record as a worker with that pid gets it.
std::shared_ptr<CollectiveRecord> open_record(const WorkerLink& agent, record::Header header) {
  EXPECT_EQ(::pwrite(agent.worker_record(), &header, sizeof header, 0), ssize_t{sizeof header});
  const int fd = ::dup(agent.worker_record());
  auto opened = CollectiveRecord::open(fd);
  if (!opened) ::close(fd);
  return opened;
}

TEST_F(WorkerLinkTest, TheAgentReadsWhichCallsTheWorkerIsIn) {
  make();
  EXPECT_THAT(agent->groups(), IsEmpty()) << "an older worker writes nothing";
  const auto all = open_record(*agent, {.worker_pid = ::getpid()});
  ASSERT_TRUE(all);
  auto group = std::make_unique<GroupRecord>(all, "ddprun", 1, 4);
  const record::Ticket ticket =
      group->enter({.operation = record::Operation::kBroadcast, .root = 2, .elements = 5});
  auto groups = agent->groups();
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_EQ(groups[0].rank, 1U);
  ASSERT_TRUE(groups[0].open);
  EXPECT_EQ(groups[0].open->call.operation, record::Operation::kBroadcast);
  EXPECT_EQ(groups[0].open->call.root, 2);
  group->leave(ticket);
  groups = agent->groups();
  EXPECT_FALSE(groups[0].open);
  EXPECT_GE(*groups[0].last->left_ns, groups[0].last->entered_ns);
  group.reset();
  EXPECT_THAT(agent->groups(), IsEmpty());
}

TEST_F(WorkerLinkTest, ARecordThatIsNotOursOrUnknownIsLeftAlone) {
  make();
  EXPECT_FALSE(CollectiveRecord::open(-1));
  EXPECT_FALSE(CollectiveRecord::open(worker.page)) << "another file";
  EXPECT_FALSE(open_record(*agent, {.worker_pid = 1}));
  EXPECT_FALSE(open_record(*agent, {.version = record::kVersion + 1, .worker_pid = ::getpid()}));
  EXPECT_FALSE(open_record(*agent, {.bytes = 64, .worker_pid = ::getpid()}));
  GroupRecord none(nullptr, "ddprun", 0, 2);  // under an older agent
  none.leave(none.enter({}));
}

TEST_F(WorkerLinkTest, AMessageIsNoCallOfItsGroup) {
  make();
  const auto all = open_record(*agent, {.worker_pid = ::getpid()});
  ASSERT_TRUE(all);
  ::setenv("WORLD_SIZE", "4", 1);
  GroupRecord group(all, "ddprun", 1, 4);
  ::unsetenv("WORLD_SIZE");
  const record::Call call{.type = 6, .elements = 5};
  const record::Ticket sent = group.enter_message(GroupRecord::End::kSender, 3, 0, call);
  group.leave(group.enter_message(GroupRecord::End::kReceiver, 3, 0, call));
  auto groups = agent->groups();
  ASSERT_EQ(groups.size(), 3U);
  EXPECT_EQ(groups[0].calls, 0U);
  EXPECT_EQ(groups[1].name, "ddprun 1->3");
  EXPECT_EQ(groups[1].rank, 0U);
  EXPECT_EQ(groups[1].peer, 3U);
  ASSERT_TRUE(groups[1].open);
  EXPECT_EQ(groups[1].open->call.operation, record::Operation::kSendReceive);
  EXPECT_EQ(groups[2].name, "ddprun 3->1");
  EXPECT_EQ(groups[2].rank, 1U);
  EXPECT_FALSE(groups[2].open);
  group.leave(sent);
  group.leave(group.enter_message(GroupRecord::End::kSender, 3, 0, call));
  groups = agent->groups();
  ASSERT_EQ(groups.size(), 3U) << "the same two ranks have the same group";
  EXPECT_EQ(groups[1].calls, 2U);
  EXPECT_EQ(group.enter_message(GroupRecord::End::kReceiver, -1, 0, call), 0U)
      << "from whoever sends first";
}

TEST_F(WorkerLinkTest, MessagesLeavePlacesForGroups) {
  make();
  const auto all = open_record(*agent, {.worker_pid = ::getpid()});
  ASSERT_TRUE(all);
  auto group = std::make_unique<GroupRecord>(all, "ddprun", 0, 100);
  for (int peer = 1; peer < 100; ++peer) {
    group->leave(group->enter_message(GroupRecord::End::kSender, peer, 0, {}));
  }
  const GroupRecord other(all, "other", 0, 100);
  const auto names = agent->groups();
  EXPECT_LT(names.size(), record::kGroupsMax);
  EXPECT_EQ(names.back().name, "other");
  EXPECT_FALSE(names.front().peer) << "a part of the job's workers";
  group.reset();
  EXPECT_EQ(agent->groups().size(), 1U);
}

TEST_F(WorkerLinkTest, WhatAWorkerOfAnotherVersionWritesIsReadAsFarAsItMakesSense) {
  make();
  const auto all = open_record(*agent, {.worker_pid = ::getpid()});
  ASSERT_TRUE(all);
  const GroupRecord group(all, "ddprun", 0, 2);
  const auto put = [this](off_t at, std::uint64_t value) {
    EXPECT_EQ(::pwrite(agent->worker_record(), &value, sizeof value, at), 8);
  };
  put(8, std::uint64_t{record::kBytes} << 32 | 99);  // of its header, which the agent has written
  EXPECT_EQ(agent->groups().size(), 1U);
  put(64, ~std::uint64_t{0});  // claimed
  for (off_t at = 4096; at < off_t{record::kBytes}; at += 8) put(at, 0x0102030405060708);
  ASSERT_EQ(agent->groups().size(), 1U);
  EXPECT_FALSE(agent->groups()[0].open);
  for (off_t at = 128; at < 4096; at += 8) put(at, 0x0102030405060708);
  EXPECT_THAT(agent->groups(), IsEmpty());
}

TEST_F(WorkerLinkTest, AForkedChildDoesNotWriteIntoTheRecord) {
  make();
  const auto all = open_record(*agent, {.worker_pid = ::getpid()});
  ASSERT_TRUE(all);
  GroupRecord group(all, "ddprun", 0, 2);
  const record::Ticket ticket = group.enter({});
  const pid_t child = ::fork();
  if (child == 0) {
    group.enter({});
    group.leave(ticket);
    const GroupRecord own(all, "of the child", 0, 2);
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  const auto groups = agent->groups();
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_EQ(groups[0].calls, 1U);
  EXPECT_TRUE(groups[0].open);
}

TEST_F(WorkerLinkTest, ValuesAreThoseOfTheNewestStepThatGaveAny) {
  make();
  const auto link = open();
  ASSERT_TRUE(link);
  const auto values = [this] { return agent->progress()->values; };
  link->step_done(1, 10);
  EXPECT_THAT(values(), IsEmpty());
  const std::array first{link::Value::of("loss", 0.5), link::Value::of("learning rate", 0.1)};
  link->step_done(2, 10, first);
  EXPECT_THAT(values(), ElementsAre(NamedValue{"loss", 0.5}, NamedValue{"learning rate", 0.1}));
  link->step_done(3, 10);
  EXPECT_EQ(values().size(), 2U);
  const auto loss = link::Value::of("loss", std::numeric_limits<double>::infinity());
  link->step_done(4, 10, {&loss, 1});
  EXPECT_THAT(values(), ElementsAre(NamedValue{"loss", loss.number}));
}

TEST_F(WorkerLinkTest, ValuesThatCannotBeShownAreLeftOutOrCut) {
  make();
  const auto link = open();
  ASSERT_TRUE(link);
  const std::vector values(12, link::Value::of("loss", 1));
  link->step_done(1, 10, values);
  EXPECT_EQ(agent->progress()->values.size(), link::kValuesMax);
  const std::string longest(link::kValueNameWords * 8, 'n');
  const std::string too_long = longest + "x";
  const std::array odd{link::Value::of(too_long, 1), link::Value::of("\x1b[2J", 2),
                       link::Value::of("", 3), link::Value::of("caf\xc3\xa9", 4)};
  link->step_done(2, 10, odd);
  EXPECT_THAT(agent->progress()->values, ElementsAre(NamedValue{longest, 1}));
}

TEST_F(WorkerLinkTest, TheAgentIsToldOfTheFirstStepAndOfTheOneThatItWaitsFor) {
  const auto began = std::chrono::steady_clock::now();
  make(::getpid(), 0, /*wanted_step=*/413);
  const auto link = open();
  ASSERT_TRUE(link);
  for (std::int64_t step = 411; step < 420; ++step) {
    link->step_done(step, 1000);
    handle_events();
    if (step == 412) {
      ASSERT_EQ(told.size(), 1U);
    }
  }
  ASSERT_EQ(told.size(), 2U) << "no system call for any other step";
  EXPECT_EQ(told[0].first_step, 411);
  EXPECT_EQ(told[0].step_kind, StepKind::kProgram);
  EXPECT_EQ(told[0].wanted_step_at, std::nullopt);
  EXPECT_GE(told[0].first_step_at, began);
  EXPECT_EQ(told[1].first_step_at, told[0].first_step_at);
  EXPECT_GE(told[1].wanted_step_at, told[1].first_step_at);
  EXPECT_EQ(agent->marks(), told[1]);
  EXPECT_THAT(misuses, IsEmpty());
}

TEST_F(WorkerLinkTest, AFirstStepBeyondTheOneThatIsWaitedForIsBoth) {
  make(::getpid(), 0, /*wanted_step=*/413);
  const auto link = open();
  ASSERT_TRUE(link);
  link->step_done(413, 1000);
  link->step_done(414, 1000);
  handle_events();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].wanted_step_at, told[0].first_step_at);
}

TEST_F(WorkerLinkTest, StepsThatGoBackAreNoneOfTheWholeTraining) {
  make(::getpid(), 0, /*wanted_step=*/50);
  const auto link = open();
  ASSERT_TRUE(link);
  for (const std::int64_t step : {100, 1, 2, 100, 1}) link->step_done(step, 100);
  handle_events();
  EXPECT_EQ(agent->progress()->step_kind, StepKind::kCounted);
  EXPECT_EQ(agent->marks().step_kind, StepKind::kCounted);
  EXPECT_EQ(agent->marks().first_step, 1);
  EXPECT_EQ(told.size(), 3U) << "100; 1 of another kind; 50 or later of that";
}

TEST_F(WorkerLinkTest, AnAgentThatKnowsNoMarksIsNotTold) {
  make(::getpid(), 0, 0, /*version=*/3);
  const auto link = open();
  ASSERT_TRUE(link);
  link->step_done(1, 10);
  handle_events();
  EXPECT_THAT(told, IsEmpty());
  EXPECT_EQ(agent->marks(), StepMarks{});
  EXPECT_EQ(agent->progress()->step, 1);
}

TEST_F(WorkerLinkTest, TheLastNoteOutlivesTheWorker) {
  make();
  const pid_t child = ::fork();
  if (child == 0) {  // as if it were the worker: the note is written, then it dies
    void* memory =
        ::mmap(nullptr, link::kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, worker.page, 0);
    link::Note note;
    note.step = 7;
    note.step_at_ns = 1;
    link::write_note(*static_cast<link::Page*>(memory), note);
    ::_exit(0);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  close_worker();
  handle_events();
  ASSERT_TRUE(agent->progress());
  EXPECT_EQ(agent->progress()->step, 7);
}

// The reader's side of the promise that no note is ever seen half written, with a writer that does
// nothing else.
TEST_F(WorkerLinkTest, NoNoteIsReadTorn) {
  const auto page = std::make_unique<link::Page>();
  std::atomic<bool> is_over = false;
  std::thread writer([&] {
    for (std::int64_t i = 1; !is_over; ++i) {
      link::Note note;
      note.step = note.total_steps = note.step_at_ns = note.phase_since_ns = i;
      note.collectives = static_cast<std::uint64_t>(i);
      note.phase = static_cast<WorkerPhase>(i % 6);
      note.value_count = 2;
      note.values[1] = link::Value::of(std::to_string(i), static_cast<double>(i));
      link::write_note(*page, note);
    }
  });
  std::int64_t before = 0;
  int read = 0;
  const auto until = std::chrono::steady_clock::now() + 10s;
  while (read < 20'000 && std::chrono::steady_clock::now() < until) {
    const auto note = link::read_note(*page);
    if (!note) continue;
    ++read;
    ASSERT_GE(note->step, before);
    ASSERT_EQ(note->total_steps, note->step);
    ASSERT_EQ(note->step_at_ns, note->step);
    ASSERT_EQ(note->phase_since_ns, note->step);
    ASSERT_EQ(note->collectives, static_cast<std::uint64_t>(note->step));
    ASSERT_EQ(note->phase, static_cast<WorkerPhase>(note->step % 6));
    ASSERT_EQ(note->value_count, 2U);
    ASSERT_EQ(note->values[1].text(), std::to_string(note->step));
    ASSERT_EQ(note->values[1].number, static_cast<double>(note->step));
    before = note->step;
  }
  is_over = true;
  writer.join();
  EXPECT_GT(read, 100);
}

// Killed between any two stores of a note: the one before is still whole.
TEST_F(WorkerLinkTest, AnUpdateThatNeverEndsLeavesTheNoteBefore) {
  link::Page page{};
  link::Note note;
  note.step = note.total_steps = 1;
  link::write_note(page, note);
  page.slots[(page.notes + 1) % 2].step = 2;  // and here it died
  ASSERT_TRUE(link::read_note(page));
  EXPECT_EQ(*link::read_note(page), note);
}

TEST_F(WorkerLinkTest, WhateverIsOnThePageGivesAnAnswer) {
  make();
  std::vector<std::uint8_t> bytes(link::kPageBytes, 0xFF);
  ASSERT_EQ(::pwrite(worker.page, bytes.data(), bytes.size(), 0),
            static_cast<ssize_t>(bytes.size()));
  const auto progress = agent->progress();
  ASSERT_TRUE(progress);
  EXPECT_EQ(progress->step, -1);
  EXPECT_TRUE(progress->values.empty());
  EXPECT_EQ(progress->since_step, 0s) << "the future is not ago";
  EXPECT_EQ(name_of(progress->phase), "unknown");
  EXPECT_EQ(::ftruncate(worker.page, 0), -1) << "or reading it would end the agent";
  EXPECT_EQ(::ftruncate(worker.page, 1 << 20), -1);
}

TEST_F(WorkerLinkTest, ALeaveReachesTheWorkerThatTakesIt) {
  make();
  const auto link = open();
  ASSERT_TRUE(link);
  EXPECT_FALSE(agent->ask_to_leave()) << "it has not said that it would leave";
  EXPECT_FALSE(link->is_told_to_leave());
  link->take_leave_requests();
  handle_events();
  EXPECT_TRUE(link->is_told_to_leave()) << "asked before, and remembered";
  EXPECT_TRUE(link->is_told_to_leave()) << "for ever";
  EXPECT_TRUE(agent->ask_to_leave());
  EXPECT_THAT(misuses, IsEmpty());
}

TEST_F(WorkerLinkTest, AWorkerThatNotesItsLeaveHasLeft) {
  make();
  const auto link = open();
  ASSERT_TRUE(link);
  link->take_leave_requests();
  handle_events();
  EXPECT_TRUE(agent->ask_to_leave());
  EXPECT_FALSE(agent->has_left()) << "it may come to its end before";
  link->note_leaving();
  EXPECT_TRUE(agent->has_left());
}

TEST_F(WorkerLinkTest, AWorkerOfAnEarlierReleaseThatWasToldHasLeft) {
  make();
  link::Message hello{.kind = static_cast<std::uint32_t>(link::Kind::kHello),
                      .version = link::kBoundariesSince - 1,
                      .pid = ::getpid(),
                      .requests = link::kTakesLeave};
  ASSERT_EQ(::send(worker.socket, &hello, sizeof hello, 0), ssize_t{sizeof hello});
  EXPECT_TRUE(agent->ask_to_leave());
  EXPECT_TRUE(agent->has_left()) << "it does not note it";
}

// As ddprun.leaving does it in Python.
TEST_F(WorkerLinkTest, AWorkerWaitsAtItsBoundaryAsLongAsItIsHeld) {
  make();
  void* const memory =
      ::mmap(nullptr, link::kPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, worker.page, 0);
  ASSERT_NE(memory, MAP_FAILED);
  link::Boundaries& boundaries = static_cast<link::Page*>(memory)->boundaries;
  EXPECT_FALSE(agent->asks_at_boundaries());
  boundaries.takes_part = 1;
  EXPECT_TRUE(agent->asks_at_boundaries());
  boundaries.passed = 7;
  EXPECT_EQ(agent->boundary_passed(), 7);
  constexpr auto kHold = static_cast<std::uint32_t>(link::BoundaryState::kHold);
  agent->set({.state = link::BoundaryState::kHold});
  EXPECT_EQ(boundaries.state, kHold);
  std::thread waiting([&] {
    while (boundaries.state == kHold) {
      ::syscall(SYS_futex, &boundaries.state, FUTEX_WAIT, kHold, nullptr, nullptr, 0);
    }
  });
  agent->set({.state = link::BoundaryState::kLeave, .leave_at = 9});
  waiting.join();
  EXPECT_EQ(boundaries.state, static_cast<std::uint32_t>(link::BoundaryState::kLeave));
  EXPECT_EQ(boundaries.leave_at, 9);
  EXPECT_FALSE(agent->has_left());
  boundaries.has_left = 1;
  EXPECT_TRUE(agent->has_left());
  ::munmap(memory, link::kPageBytes);
}

TEST_F(WorkerLinkTest, AWorkerWaitsForItsEndAfterTheStepThatTheAgentNames) {
  make();
  const auto link = open();
  ASSERT_TRUE(link);
  EXPECT_EQ(agent->steps(), 0);
  link->step_done(100, 1000);
  EXPECT_EQ(agent->last_step(), std::nullopt);
  agent->set({.state = link::BoundaryState::kHold});
  std::atomic<int> devices_awaited = 0;
  link->before_parking([&] { ++devices_awaited; });
  std::thread training([&] {
    for (int step = 101; step < 110; ++step) link->step_done(step, 1000);
  });
  while (agent->steps() != 2) std::this_thread::yield();
  agent->set({.state = link::BoundaryState::kPark, .leave_at = 5});
  while (!agent->is_parked()) std::this_thread::yield();
  EXPECT_EQ(agent->steps(), 5);
  EXPECT_EQ(devices_awaited, 1);
  io.restart();
  while (reported.empty()) io.run_one();
  EXPECT_THAT(reported, ElementsAre("parked"));
  agent->set({});
  training.join();
  EXPECT_EQ(agent->steps(), 10);
  ASSERT_TRUE(agent->last_step());
}

TEST_F(WorkerLinkTest, AWorkerWhoseDevicesFailDoesNotWait) {
  make();
  const auto link = open();
  ASSERT_TRUE(link);
  link->before_parking([] { throw std::runtime_error("an illegal memory access"); });
  agent->set({.state = link::BoundaryState::kPark, .leave_at = 1});
  link->step_done(1, 10);
  EXPECT_FALSE(agent->is_parked());
}

TEST_F(WorkerLinkTest, AnAgentThatParksNobodyIsNotWaitedFor) {
  make(::getpid(), 0, 0, link::kParksSince - 1);
  const auto link = open();
  ASSERT_TRUE(link);
  agent->set({.state = link::BoundaryState::kPark, .leave_at = 1});
  link->step_done(1, 10);
  EXPECT_EQ(agent->steps(), 0);
}

TEST_F(WorkerLinkTest, AWorkerHearsThatItsGroupIsBroken) {
  make();
  const auto link = open();
  ASSERT_TRUE(link);
  int stop[2];
  ASSERT_EQ(::pipe(stop), 0);
  std::optional<AgentLink::GroupNews> heard;
  std::thread listening([&] { heard = link->await_group_news(stop[0], UINT32_MAX); });
  link->take_leave_requests();
  handle_events();
  EXPECT_TRUE(agent->ask_to_leave());
  // The thread that listens takes it out of the socket, after this one has asked for the first time or before.
  while (!link->is_told_to_leave()) std::this_thread::yield();
  agent->tell_group_broken(Round{3}, 17);
  listening.join();
  ASSERT_TRUE(heard);
  EXPECT_EQ(heard->broken->rank, 17);
  EXPECT_EQ(heard->broken->round, 3U);
  agent->tell_group_broken(Round{3}, 5);
  EXPECT_EQ(link->await_group_news(stop[0], UINT32_MAX)->broken->rank, 17)
      << "the first one counts";
  ::close(stop[0]);
  ::close(stop[1]);
}

TEST_F(WorkerLinkTest, AWorkerThatListensEndsWhenItWantsTo) {
  make();
  const auto link = open();
  int stop[2];
  ASSERT_EQ(::pipe(stop), 0);
  std::thread listening([&] { EXPECT_FALSE(link->await_group_news(stop[0], 0)); });
  ASSERT_EQ(::write(stop[1], "", 1), 1);
  listening.join();
  ::close(stop[0]);
  ::close(stop[1]);
}

TEST_F(WorkerLinkTest, AWorkerThatListensEndsWithItsAgent) {
  make();
  const auto link = open();
  std::thread listening([&] { EXPECT_FALSE(link->await_group_news(-1, 0)); });
  agent.reset();
  listening.join();
}

TEST_F(WorkerLinkTest, AWorkerThatDoesNotListenHoldsUpNobody) {
  make();
  const auto link = open();
  for (int i = 0; i < 10'000; ++i) agent->tell_group_broken(Round{1}, i);
  EXPECT_FALSE(link->is_told_to_leave());
  EXPECT_THAT(misuses, IsEmpty());
}

using SignalHandler = void (*)(int);
SignalHandler handler_of(int signal) {
  struct sigaction now {};
  ::sigaction(signal, nullptr, &now);
  return now.sa_handler;
}

TEST_F(WorkerLinkTest, AWorkerThatLeavesWhenAskedDoesNotDieOfThePreemptSignal) {
  make(::getpid(), SIGUSR2);
  const auto link = open();
  EXPECT_EQ(handler_of(SIGUSR2), SIG_DFL);
  link->take_leave_requests();
  EXPECT_EQ(handler_of(SIGUSR2), SIG_IGN);
  std::signal(SIGUSR2, SIG_DFL);
}

TEST_F(WorkerLinkTest, AHandlerOfTheProgramsOwnAndStopSignalsStay) {
  const SignalHandler own = [](int) {};
  std::signal(SIGUSR2, own);
  for (const int signal : {SIGUSR2, SIGTERM}) {
    close_worker();
    make(::getpid(), signal);
    const auto before = handler_of(signal);
    open()->take_leave_requests();
    EXPECT_EQ(handler_of(signal), before) << signal;
  }
  std::signal(SIGUSR2, SIG_DFL);
}

TEST_F(WorkerLinkTest, ALeaveReachesTheWorkerThatSaidLongAgoThatItTakesIt) {
  make();
  const auto link = open();
  ASSERT_TRUE(link);
  link->take_leave_requests();
  handle_events();
  EXPECT_FALSE(link->is_told_to_leave());
  EXPECT_TRUE(agent->ask_to_leave());
  EXPECT_TRUE(link->is_told_to_leave());
}

TEST_F(WorkerLinkTest, AHelloThatIsOnItsWayCounts) {
  make();
  const auto link = open();
  ASSERT_TRUE(link);
  link->take_leave_requests();
  EXPECT_TRUE(agent->ask_to_leave()) << "without the event loop having come round";
  EXPECT_TRUE(link->is_told_to_leave());
}

TEST_F(WorkerLinkTest, AWorkerThatClosedItsLinkIsToldInAnotherWay) {
  make();
  auto link = open();
  ASSERT_TRUE(link);
  link->take_leave_requests();
  handle_events();
  link.reset();
  EXPECT_FALSE(agent->ask_to_leave());
  handle_events();
  EXPECT_FALSE(agent->ask_to_leave());
  EXPECT_THAT(misuses, IsEmpty()) << "to close it is its right";
}

// The last hello counts, so the second says the first thing, too.
TEST_F(WorkerLinkTest, AWorkerMayOfferAZygoteAndTakeRequests) {
  make();
  auto link = open();
  ASSERT_TRUE(link);
  EXPECT_FALSE(agent->can_be_zygote());
  link->offer_zygote();
  handle_events();
  EXPECT_TRUE(agent->can_be_zygote());
  EXPECT_FALSE(agent->ask_to_leave());
  link->take_leave_requests();
  handle_events();
  EXPECT_TRUE(agent->can_be_zygote());
  EXPECT_TRUE(link->is_told_to_leave());
  link.reset();
  handle_events();
  EXPECT_TRUE(agent->can_be_zygote()) << "also when it has left its Context";
}

TEST_F(WorkerLinkTest, BytesThatAreNoMessageCloseTheLink) {
  link::Message hello;
  hello.kind = static_cast<std::uint32_t>(link::Kind::kHello);
  hello.pid = ::getpid();
  hello.requests = link::kTakesLeave;
  link::Message of_another_process = hello;
  of_another_process.pid = ::getppid();
  link::Message of_no_kind = hello;
  of_no_kind.kind = 77;
  link::Message of_no_version = hello;
  of_no_version.version = 0;
  const auto bytes_of = [](const link::Message& message) {
    return std::string(reinterpret_cast<const char*>(&message), sizeof message);
  };
  for (const std::string& bytes :
       {std::string(1, 'x'), std::string(15, '\0'), std::string(17, 'x'), std::string(100'000, 'x'),
        bytes_of(of_another_process), bytes_of(of_no_kind), bytes_of(of_no_version),
        bytes_of(hello) + "x"}) {
    SCOPED_TRACE(bytes.size());
    misuses.clear();
    close_worker();
    make();
    send(bytes.data(), bytes.size());
    EXPECT_THAT(misuses, ElementsAre(HasSubstr(std::to_string(bytes.size()) + " bytes")));
    EXPECT_FALSE(agent->ask_to_leave());
    EXPECT_EQ(::send(worker.socket, &hello, sizeof hello, MSG_NOSIGNAL), -1);
  }
}

TEST_F(WorkerLinkTest, DescriptorsThatAWorkerSendsAreNotKept) {
  make();
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
  char byte = 'x';
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &pipe[1], sizeof(int));
  ASSERT_EQ(::sendmsg(worker.socket, &message, 0), 1);
  ::close(pipe[1]);
  handle_events();
  EXPECT_EQ(::read(pipe[0], &byte, 1), 0) << "nobody holds the other end";
  ::close(pipe[0]);
}

TEST_F(WorkerLinkTest, AWorkerCanRecoverWhenItHasSentItsMirrorAndSaysSo) {
  make();
  send_with(message(link::Kind::kHello, link::kCanRecover), {});
  EXPECT_FALSE(agent->can_recover()) << "without a mirror";
  const Memory mirror("state");
  send_with(message(link::Kind::kMirror), {mirror.fd});
  EXPECT_TRUE(agent->can_recover());
  EXPECT_EQ(text_of(agent->mirror()), "state");
  EXPECT_NE(::fcntl(agent->mirror(), F_GETFD) & FD_CLOEXEC, 0);
  send_with(message(link::Kind::kHello, link::kTakesLeave), {});
  EXPECT_FALSE(agent->can_recover()) << "the last hello counts";
  send_with(message(link::Kind::kHello, link::kIsPrepared), {});
  EXPECT_TRUE(agent->is_prepared());
  EXPECT_THAT(reported, ElementsAre("hello", "hello", "hello"));
  EXPECT_THAT(misuses, IsEmpty());
}

TEST_F(WorkerLinkTest, OneMirrorIsKept) {
  make();
  const Memory first("first");
  const Memory second("second");
  const std::size_t files = std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  for (int i = 0; i < 100; ++i) send_with(message(link::Kind::kMirror), {first.fd});
  send_with(message(link::Kind::kMirror), {second.fd});
  EXPECT_EQ(text_of(agent->mirror()), "second");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}), files + 1);
  agent.reset();
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}), files - 3)
      << "and the link's two memories and its socket are gone with it";
}

TEST_F(WorkerLinkTest, WhatIsNoMirrorClosesTheLink) {
  const Memory memory("state");
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
  const std::vector<int> none;
  for (const auto& descriptors : {none, std::vector{pipe[0]}, std::vector{memory.fd, memory.fd}}) {
    misuses.clear();
    close_worker();
    make();
    send_with(message(link::Kind::kMirror), descriptors);
    EXPECT_THAT(misuses, SizeIs(1));
    EXPECT_EQ(agent->mirror(), -1);
  }
  for (const int fd : pipe) ::close(fd);
}

TEST_F(WorkerLinkTest, AWorkerSaysWhyItCannotRecover) {
  make();
  const Memory mirror("state");
  send_with(message(link::Kind::kMirror), {mirror.fd});
  send_with(message(link::Kind::kHello, link::kCanRecover), {});
  link::Sentence cannot{.head = message(link::Kind::kCannotRecover)};
  std::strcpy(cannot.text, "its \x1b loss is negative");
  send(&cannot, sizeof cannot);
  EXPECT_FALSE(agent->can_recover());
  std::memset(cannot.text, 'x', sizeof cannot.text);
  cannot.head.requests = link::kNorLater;
  send(&cannot, sizeof cannot);
  EXPECT_THAT(reported, ElementsAre("hello", "cannot: its \\x1b loss is negative",
                                    "never: " + std::string(sizeof cannot.text, 'x')));
  EXPECT_THAT(misuses, IsEmpty());
  send(&cannot, sizeof cannot - 1);
  EXPECT_THAT(misuses, SizeIs(1));
}

// The kernel answers with ECONNRESET first where the worker has left something unread.
TEST_F(WorkerLinkTest, WhatAWorkerSentLastIsHeardThoughItReadNothing) {
  make();
  agent->tell_group_broken(Round{0}, 1);
  link::Sentence cannot;
  cannot.head.kind = static_cast<std::uint32_t>(link::Kind::kCannotRecover);
  cannot.head.pid = ::getpid();
  std::strcpy(cannot.text, "its memory is not back");
  ASSERT_EQ(::send(worker.socket, &cannot, sizeof cannot, MSG_NOSIGNAL), ssize_t{sizeof cannot});
  close_worker();
  handle_events();
  EXPECT_THAT(reported, ElementsAre("cannot: its memory is not back"));
}

TEST_F(WorkerLinkTest, AWorkerTellsOfTwoRanksThatDiffer) {
  make();
  link::ReplicasDiffer differ;
  differ.head.pid = ::getpid();
  differ.step = 40;
  differ.rank = 1;
  differ.other = 3;
  std::strcpy(differ.what, "a \x1b tensor");
  send(&differ, sizeof differ);
  std::memset(differ.what, 'x', sizeof differ.what);
  send(&differ, sizeof differ);
  EXPECT_THAT(reported, ElementsAre("40 1 3 a \\x1b tensor",
                                    "40 1 3 " + std::string(sizeof differ.what, 'x')));
  EXPECT_THAT(misuses, IsEmpty());
  send(&differ, sizeof differ.head);
  EXPECT_THAT(misuses, SizeIs(1));
}

TEST_F(WorkerLinkTest, ANanIsToldOnceUntilTheValueIsFiniteAgain) {
  make();
  const auto its = open();
  ASSERT_TRUE(its);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinite = std::numeric_limits<double>::infinity();
  const auto report = [&](std::int64_t step, double loss, double norm) {
    const std::array values{link::Value::of("loss", loss), link::Value::of("norm", norm)};
    its->step_done(step, 0, values);
  };
  report(1, 0.5, 1);
  report(2, nan, 1);
  report(3, nan, -infinite);
  report(4, 0.5, -infinite);
  its->step_done(5, 0);
  report(6, infinite, 2);
  handle_events();
  EXPECT_THAT(reported, ElementsAre("2 loss nan", "3 norm -inf", "6 loss inf"));
  for (std::int64_t step = 7; step < 1000; ++step) report(step, step % 2 == 0 ? nan : 1, 2);
  handle_events();
  EXPECT_LT(reported.size(), 3 * link::kValuesMax) << "its link is no flood";
  EXPECT_THAT(misuses, IsEmpty());
}

TEST_F(WorkerLinkTest, AnAgentThatDoesNotKnowNansIsNotTold) {
  make(::getpid(), /*preempt_signal=*/0, /*wanted_step=*/0, link::kNotFiniteSince - 1);
  const std::array values{link::Value::of("loss", std::numeric_limits<double>::quiet_NaN())};
  open()->step_done(1, 0, values);
  handle_events();
  EXPECT_THAT(reported, IsEmpty());
}

TEST_F(WorkerLinkTest, WhatIsFiniteIsNoReportOfANan) {
  make();
  link::NotFinite finite{.step = 4, .value = link::Value::of("loss", 1)};
  finite.head.pid = ::getpid();
  send(&finite, sizeof finite);
  EXPECT_THAT(misuses, SizeIs(1));
  EXPECT_THAT(reported, IsEmpty());
}

TEST_F(WorkerLinkTest, AWorkerIsToldToRegroupAndSaysThatItHas) {
  make();
  ASSERT_TRUE(agent->tell_regroup(/*rank=*/3, /*generation=*/7));
  const auto regroup = as<link::Regroup>(receive(worker.socket));
  EXPECT_EQ(regroup.head.kind, static_cast<std::uint32_t>(link::Kind::kRegroup));
  EXPECT_EQ(regroup.rank, 3);
  EXPECT_EQ(regroup.generation, 7U);
  send_with(message(link::Kind::kRegrouped, 7), {});
  send_with(message(link::Kind::kCommitted, 7), {});
  EXPECT_THAT(reported, ElementsAre("regrouped 7", "committed 7"));
  close_worker();
  handle_events();
  EXPECT_FALSE(agent->tell_regroup(3, 8));
}

TEST_F(WorkerLinkTest, AStandbyGetsThePlaceWithItsStreamsAndTheMirrorOfTheOneBefore) {
  make();
  const Memory mirror("state");
  send_with(message(link::Kind::kMirror), {mirror.fd});
  const auto before = agent;
  close_worker();
  make();
  const Memory out("out");
  const Memory err("err");
  ASSERT_TRUE(agent->tell_take_place(2, 5, out.fd, err.fd, *before));
  const Received received = receive(worker.socket);
  const auto take = as<link::TakePlace>(received);
  EXPECT_EQ(take.rank, 2);
  EXPECT_EQ(take.generation, 5U);
  ASSERT_EQ(received.descriptors.size(), 3U);
  EXPECT_EQ(text_of(received.descriptors[0]), "out");
  EXPECT_EQ(text_of(received.descriptors[1]), "err");
  EXPECT_EQ(text_of(received.descriptors[2]), "state");
  EXPECT_EQ(text_of(agent->mirror()), "state") << "for the one after it";
  EXPECT_EQ(before->mirror(), -1);
  for (const int fd : received.descriptors) ::close(fd);
  close_worker();
  const auto there = agent;
  make();
  close_worker();
  handle_events();
  EXPECT_FALSE(agent->tell_take_place(2, 6, out.fd, err.fd, *there)) << "it has ended";
  EXPECT_EQ(text_of(there->mirror()), "state") << "still, for another standby";
}

TEST_F(WorkerLinkTest, TheAgentReadsWhatAWorkerHasCommitted) {
  make();
  EXPECT_EQ(agent->recovered().committed, 0);
  const std::int64_t committed = 412;
  const std::uint32_t generation = 3;
  const auto at = offsetof(link::Page, recovery);
  ASSERT_EQ(::pwrite(worker.page, &committed, 8, static_cast<off_t>(at)), 8);
  ASSERT_EQ(::pwrite(worker.page, &generation, 4, static_cast<off_t>(at) + 8), 4);
  EXPECT_EQ(agent->recovered().committed, 412);
  EXPECT_EQ(agent->recovered().generation, 3U);
}

TEST_F(WorkerLinkTest, AWorkerSaysWhatItTakesOfAGpu) {
  make();
  EXPECT_EQ(agent->gpu(), link::GpuUse());
  auto its = open();
  ASSERT_TRUE(its);
  its->note_gpu(/*id=*/9, /*index=*/3, /*free_bytes=*/1000, /*used_bytes=*/0);
  EXPECT_TRUE(agent->gpu().is_on_gpu());
  EXPECT_FALSE(agent->gpu().is_known());
  its->note_gpu(9, 3, 900, 700);
  EXPECT_EQ(agent->gpu(),
            (link::GpuUse{.id = 9, .index = 3, .free_bytes = 900, .used_bytes = 700}));
  its.reset();
  make(::getpid(), 0, 0, /*version=*/link::kGpuSince - 1);
  its = open();
  ASSERT_TRUE(its);
  its->note_gpu(9, 3, 900, 700);
  EXPECT_EQ(agent->gpu(), link::GpuUse()) << "an agent before that";
}

TEST_F(WorkerLinkTest, AStandbyThatWaitsBeforeItsSetUpTakesThePlaceAfterIt) {
  make();
  const Memory mirror("state");
  send_with(message(link::Kind::kMirror), {mirror.fd});
  const auto before = agent;
  close_worker();
  make();
  auto its = open();
  ASSERT_TRUE(its);
  EXPECT_FALSE(its->is_placed());
  const Memory out("out");
  const Memory err("err");
  ASSERT_TRUE(agent->tell_take_place(2, 5, out.fd, err.fd, *before));
  its->await_placed();
  handle_events();
  EXPECT_TRUE(agent->is_prepared());
  ASSERT_TRUE(agent->tell_regroup(/*rank=*/0, /*generation=*/6)) << "while it makes its set-up";
  EXPECT_TRUE(its->is_placed());
  const AgentLink::Place place = its->await_place();
  EXPECT_EQ(place.generation, 5U);
  EXPECT_EQ(text_of(place.mirror.get()), "state");
  const auto news = its->await_group_news(/*stop=*/-1, place.generation);
  ASSERT_TRUE(news && news->regroup);
  EXPECT_EQ(news->regroup->generation, 6U);
}

TEST_F(WorkerLinkTest, TheOwnerMayLetGoOfTheLinkInAHook) {
  auto made = WorkerLink::make(io.get_executor());
  ASSERT_TRUE(made);
  agent = *made;
  worker = {::dup(agent->worker_socket()), -1};
  int hellos = 0;
  agent->started(::getpid(), {.misuse = [](std::string_view) {},
                              .stepped = [](const StepMarks&) {},
                              .hello =
                                  [&] {
                                    ++hellos;
                                    agent.reset();
                                  }});
  made = fail(ErrorCode::kClosed, "");
  const link::Message hello = message(link::Kind::kHello);
  ASSERT_EQ(::send(worker.socket, &hello, sizeof hello, 0), ssize_t{sizeof hello});
  ASSERT_EQ(::send(worker.socket, &hello, sizeof hello, 0), ssize_t{sizeof hello});
  handle_events();
  EXPECT_EQ(hellos, 1);
}

TEST_F(WorkerLinkTest, IsOpenedByTheWorkerItIsForAndOnlyOnce) {
  make(::getppid());
  EXPECT_FALSE(open()) << "another process's, inherited";
  close_worker();

  make();
  const Inherited before = worker;
  const auto link = open();
  ASSERT_TRUE(link);
  EXPECT_FALSE(AgentLink::open(before.socket, before.page)) << "taken";
  EXPECT_EQ(::fcntl(before.socket, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST_F(WorkerLinkTest, IsNotOpenedOverWhatIsNoLink) {
  EXPECT_FALSE(AgentLink::open(-1, -1));
  EXPECT_FALSE(AgentLink::open(1 << 20, (1 << 20) + 1));
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
  EXPECT_FALSE(AgentLink::open(pipe[0], pipe[1]));
  make();
  EXPECT_FALSE(AgentLink::open(pipe[0], worker.page)) << "a page without its socket";
  EXPECT_FALSE(AgentLink::open(worker.page, worker.socket));
  for (const int fd : pipe) ::close(fd);

  int other[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, other), 0);
  EXPECT_FALSE(AgentLink::open(other[0], worker.page)) << "of another kind";
  for (const int fd : other) ::close(fd);

  link::Header header;
  header.worker_pid = ::getpid();
  header.agent_pid = ::getppid();  // the socket's other end is this process
  ASSERT_EQ(::pwrite(worker.page, &header, sizeof header, 0), ssize_t{sizeof header});
  EXPECT_FALSE(open()) << "a socket to somebody else";
}

TEST_F(WorkerLinkTest, AForkedChildHasNoPartInIt) {
  make();
  const auto link = open();
  ASSERT_TRUE(link);
  link->step_done(5, 0);
  ASSERT_FALSE(agent->ask_to_leave());
  link->take_leave_requests();
  handle_events();  // kLeave waits in the socket
  const pid_t child = ::fork();
  if (child == 0) {
    link->step_done(6, 0);
    link->enter(WorkerPhase::kSaving);
    ::_exit(link->is_told_to_leave() ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "it took the notice that was not for it";
  EXPECT_EQ(agent->progress()->step, 5);
  EXPECT_TRUE(link->is_told_to_leave());
}

// As after closerange(3, 1024), in a program that has opened a socket of its own since.
TEST_F(WorkerLinkTest, LeavesASocketAloneThatHasTheNumberOfItsOwn) {
  make();
  const int number = worker.socket;
  auto link = open();
  ASSERT_TRUE(link);
  std::array<int, 2> theirs{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, theirs.data()), 0);
  ASSERT_EQ(::dup2(theirs[0], number), number);
  ::close(theirs[0]);
  link->step_done(1, 0);
  link->take_leave_requests();
  EXPECT_FALSE(link->is_told_to_leave());
  EXPECT_FALSE(link->offer_recovery(number));
  EXPECT_EQ(agent->progress()->step, 1) << "in memory, as before";
  link.reset();
  char byte = 0;
  EXPECT_EQ(::recv(theirs[1], &byte, 1, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN) << "neither sent to nor shut down nor closed";
  ::close(number);
  ::close(theirs[1]);
}

TEST_F(WorkerLinkTest, TheWorkerRunsOnWhenTheAgentsEndIsGone) {
  make();
  const auto link = open();
  ASSERT_TRUE(link);
  agent.reset();
  handle_events();
  EXPECT_FALSE(link->is_told_to_leave());
  link->take_leave_requests();
  link->step_done(1, 2);
  EXPECT_FALSE(link->is_told_to_leave());
}

TEST_F(WorkerLinkTest, TheWorkerRunsOnAfterMessagesThatItDoesNotKnow) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
  make();
  const auto link = AgentLink::open(ends[0], worker.page);
  ASSERT_TRUE(link);
  worker.page = -1;
  link::Message unknown;
  unknown.kind = 99;
  const std::string huge(4000, 'x');
  ASSERT_EQ(::send(ends[1], &unknown, sizeof unknown, 0), ssize_t{sizeof unknown});
  ASSERT_EQ(::send(ends[1], huge.data(), huge.size(), 0), static_cast<ssize_t>(huge.size()));
  EXPECT_FALSE(link->is_told_to_leave());
  link::Message leave;
  leave.kind = static_cast<std::uint32_t>(link::Kind::kLeave);
  ASSERT_EQ(::send(ends[1], &leave, sizeof leave, 0), ssize_t{sizeof leave});
  EXPECT_TRUE(link->is_told_to_leave());
  ::close(ends[1]);
}

}  // namespace
}  // namespace ddprun::agent
