// Memory that a real keeper holds for the next agent, and those who ask for it.
#include "agent/query/kept_memory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "agent/process/keeper.h"

namespace ddprun::agent {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr auto kDeadline = 20s;
constexpr auto kLong = 600s;

// A child of this process ends in time.
bool ends(pid_t child) {
  const auto until = std::chrono::steady_clock::now() + kDeadline;
  while (std::chrono::steady_clock::now() < until) {
    if (::waitpid(child, nullptr, WNOHANG) != 0) return true;
    ::poll(nullptr, 0, 1);
  }
  return false;
}

class KeptMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/ddprun_memory_test_XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    root_ = name;
    environment_ = {{"DDPRUN_CONTROL_DIR", folder()}};
  }
  void TearDown() override {
    keeper_.reset();
    if (keeper_pid_ > 0) {
      ::kill(keeper_pid_, SIGKILL);
      ::waitpid(keeper_pid_, nullptr, 0);
    }
    std::filesystem::remove_all(root_);
  }

  std::string folder() const { return root_ + "/ddprun"; }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder())) {
      names.push_back(entry.path().filename());
    }
    return names;
  }

  // This process is the agent until end().
  void begin(std::chrono::milliseconds time = kLong, const std::string& content = "the state") {
    auto own = own_control_folder(environment_, ::geteuid());
    ASSERT_TRUE(own) << own.error().to_string();
    auto bound = bind_memory(own->folder, owner_.job, ::getpid(), ::geteuid());
    ASSERT_TRUE(bound) << bound.error().to_string();
    rdzv::UniqueFd memory(::memfd_create("ddprun-snapshot", MFD_CLOEXEC));
    ASSERT_EQ(::write(memory.get(), content.data(), content.size()),
              static_cast<ssize_t>(content.size()));
    const std::string about = to_json(owner_);
    auto keeper = Keeper::start(1, MemoryOffer{.memory = std::move(memory),
                                               .folder = std::move(own->folder),
                                               .name = bound->name,
                                               .listener = std::move(bound->socket),
                                               .about = about.substr(1, about.size() - 2),
                                               .time = time});
    ASSERT_TRUE(keeper) << keeper.error().to_string();
    keeper_.emplace(std::move(*keeper));
    keeper_pid_ = keeper_->pid();
  }
  void end() { keeper_.reset(); }
  bool keeper_ends() {
    const bool has = ends(keeper_pid_);
    if (has) keeper_pid_ = -1;
    return has;
  }

  std::vector<KeptMemory> find() const {
    return find_memories(environment_, ::geteuid(), owner_.job, kDeadline);
  }
  Result<TakenMemory> take() const {
    const auto found = find();
    if (found.empty()) return fail(ErrorCode::kNotFound, "there is none");
    return TakenMemory::take(found[0], ::geteuid(), kDeadline);
  }
  rdzv::UniqueFd connect() const {
    const auto opened = open_control_folder(folder(), ::geteuid(), false);
    auto socket = connect_control(*opened, files().at(0), ::geteuid());
    return socket ? std::move(*socket) : rdzv::UniqueFd();
  }

  std::string root_;
  Environment environment_;
  MemoryOwner owner_{
      .job = "a job", .program = "/srv/train \"x\"", .ddprun = "1.2", .node_rank = 3};
  std::optional<Keeper> keeper_;
  pid_t keeper_pid_ = -1;
};

std::string content_of(int memory) {
  char text[32] = {};
  return ::pread(memory, text, sizeof text - 1, 0) < 0 ? "" : text;
}

TEST_F(KeptMemoryTest, IsInUseAsLongAsTheAgentLives) {
  begin();
  const auto found = find();
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_TRUE(found[0].is_in_use);
  EXPECT_EQ(found[0].owner, owner_);
  EXPECT_EQ(found[0].agent, ::getpid());
  EXPECT_FALSE(take());
  EXPECT_FALSE(forget_memory(found[0], ::geteuid(), kDeadline));
  EXPECT_TRUE(find()[0].is_in_use);
}

TEST_F(KeptMemoryTest, IsTakenByTheNextAgent) {
  begin();
  end();
  const auto found = find();
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_FALSE(found[0].is_in_use);
  EXPECT_EQ(found[0].owner, owner_);
  EXPECT_GT(found[0].bytes, 0U);
  EXPECT_LE(found[0].left, kLong);
  EXPECT_GT(found[0].left, kLong - kDeadline);
  EXPECT_LT(std::chrono::system_clock::now() - found[0].ended, kDeadline);
  auto taken = take();
  ASSERT_TRUE(taken) << taken.error().to_string();
  EXPECT_EQ(content_of(taken->memory().get()), "the state");
  EXPECT_EQ(::waitpid(keeper_pid_, nullptr, WNOHANG), 0) << "before it is safe";
  taken->confirm();
  EXPECT_TRUE(keeper_ends());
  EXPECT_THAT(files(), IsEmpty());
}

TEST_F(KeptMemoryTest, IsStillThereIfTheOneThatTakesItDies) {
  begin();
  end();
  {
    const auto taken = take();
    ASSERT_TRUE(taken) << taken.error().to_string();
  }
  auto again = take();
  ASSERT_TRUE(again) << again.error().to_string();
  EXPECT_EQ(content_of(again->memory().get()), "the state");
}

TEST_F(KeptMemoryTest, IsTakenOnce) {
  begin();
  end();
  const auto found = find();
  auto taken = TakenMemory::take(found.at(0), ::geteuid(), kDeadline);
  ASSERT_TRUE(taken) << taken.error().to_string();
  const auto second = TakenMemory::take(found.at(0), ::geteuid(), 50ms);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kTimeout);
  taken->confirm();
  EXPECT_TRUE(keeper_ends());
  EXPECT_FALSE(TakenMemory::take(found.at(0), ::geteuid(), kDeadline));
}

TEST_F(KeptMemoryTest, IsForgottenWhenAskedTo) {
  begin();
  end();
  const auto forgotten = forget_memory(find().at(0), ::geteuid(), kDeadline);
  EXPECT_TRUE(forgotten) << forgotten.error().to_string();
  EXPECT_THAT(files(), IsEmpty());
  EXPECT_TRUE(keeper_ends());
}

TEST_F(KeptMemoryTest, IsGoneWhenItsTimeIsOver) {
  begin(/*time=*/1ms);
  end();
  EXPECT_TRUE(keeper_ends());
  EXPECT_THAT(files(), IsEmpty());
}

TEST_F(KeptMemoryTest, IsDroppedWhereTheJobHasSucceeded) {
  begin();
  keeper_->drop_memory();
  end();  // waits for the keeper's end
  EXPECT_EQ(::waitpid(keeper_pid_, nullptr, WNOHANG), -1);
  keeper_pid_ = -1;
  EXPECT_THAT(files(), IsEmpty());
}

TEST_F(KeptMemoryTest, IsNotHeldIfNothingWasWritten) {
  begin(kLong, "");
  end();
  EXPECT_TRUE(keeper_ends());
  EXPECT_THAT(files(), IsEmpty());
}

TEST_F(KeptMemoryTest, OutlivesAKeeperThatIsKilledBeforeItsAgent) {
  begin();
  ::kill(keeper_pid_, SIGKILL);
  const auto until = std::chrono::steady_clock::now() + kDeadline;
  while (!keeper_->died() && std::chrono::steady_clock::now() < until) ::poll(nullptr, 0, 1);
  ASSERT_TRUE(keeper_->replace());
  keeper_pid_ = keeper_->pid();
  EXPECT_TRUE(find().at(0).is_in_use);
  end();
  EXPECT_FALSE(find().at(0).is_in_use);
}

TEST_F(KeptMemoryTest, IsDroppedByANewKeeperToo) {
  begin();
  keeper_->drop_memory();
  ::kill(keeper_pid_, SIGKILL);
  const auto until = std::chrono::steady_clock::now() + kDeadline;
  while (!keeper_->died() && std::chrono::steady_clock::now() < until) ::poll(nullptr, 0, 1);
  ASSERT_TRUE(keeper_->replace());
  keeper_pid_ = -1;
  end();
  EXPECT_THAT(files(), IsEmpty());
}

TEST_F(KeptMemoryTest, EndsUponSigterm) {
  begin();
  end();
  ASSERT_THAT(find(), SizeIs(1));  // it holds
  ::kill(keeper_pid_, SIGTERM);
  EXPECT_TRUE(keeper_ends());
  EXPECT_THAT(files(), IsEmpty());
}

TEST_F(KeptMemoryTest, AClientThatSaysNothingDelaysOthersOnly) {
  begin();
  end();
  const auto silent = connect();
  const auto shy = connect();
  ASSERT_TRUE(shy);
  auto taken = take();
  ASSERT_TRUE(taken) << taken.error().to_string();
  taken->confirm();
  EXPECT_TRUE(keeper_ends());
}

TEST_F(KeptMemoryTest, AWordThatItDoesNotKnowEndsTheConnection) {
  begin();
  end();
  const auto socket = connect();
  ASSERT_EQ(::send(socket.get(), "take it\n", 8, MSG_NOSIGNAL), 8);
  const auto until = std::chrono::steady_clock::now() + kDeadline;
  ssize_t size = 1;
  while ((size > 0 || (size < 0 && errno == EAGAIN)) && std::chrono::steady_clock::now() < until) {
    pollfd ready{socket.get(), POLLIN, 0};
    ::poll(&ready, 1, 100);
    char text[512];
    size = ::recv(socket.get(), text, sizeof text, MSG_DONTWAIT);
  }
  EXPECT_TRUE(size == 0 || errno == ECONNRESET);
  EXPECT_TRUE(take());
}

TEST_F(KeptMemoryTest, TellsAnotherUserNothing) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs to become another user";
  begin();
  end();
  // Wider than ddprun makes them.
  ASSERT_EQ(::chmod(root_.c_str(), 0755), 0);
  ASSERT_EQ(::chmod(folder().c_str(), 0755), 0);
  ASSERT_EQ(::chmod((folder() + "/" + files().at(0)).c_str(), 0666), 0);
  const auto opened = rdzv::UniqueFd(::open(folder().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const pid_t stranger = ::fork();
  if (stranger == 0) {
    if (::setuid(65534) != 0) ::_exit(9);
    const auto socket = connect_control(opened, files().at(0), /*user=*/0);
    if (!socket) ::_exit(8);
    pollfd ready{socket->get(), POLLIN, 0};
    ::poll(&ready, 1, 10'000);
    char any = 0;
    ::_exit(::recv(socket->get(), &any, 1, MSG_DONTWAIT) == 0 ? 0 : 7);
  }
  int status = 0;
  ::waitpid(stranger, &status, 0);
  EXPECT_EQ(status, 0) << "exit code " << WEXITSTATUS(status);
  ASSERT_EQ(::chmod(folder().c_str(), 0700), 0);
  EXPECT_TRUE(take());
}

TEST_F(KeptMemoryTest, TheSocketOfADeadKeeperIsSwept) {
  begin();
  end();
  ASSERT_THAT(find(), SizeIs(1));
  ::kill(keeper_pid_, SIGKILL);
  ASSERT_TRUE(keeper_ends());
  ASSERT_THAT(files(), SizeIs(1));
  const timespec when{::time(nullptr) - 3600, 0};
  const timespec times[2] = {when, when};
  ASSERT_EQ(::utimensat(AT_FDCWD, (folder() + "/" + files()[0]).c_str(), times, 0), 0);
  EXPECT_THAT(find(), IsEmpty());
  EXPECT_THAT(files(), IsEmpty());
}

// ---- the choice

KeptMemory kept(const MemoryOwner& owner, int ended_s = 0) {
  KeptMemory memory;
  memory.owner = owner;
  memory.ended = std::chrono::system_clock::from_time_t(ended_s);
  return memory;
}

TEST(MemoryChoice, IsOfTheSameJobProgramAndVersion) {
  const MemoryOwner own{.job = "j", .program = "/a", .ddprun = "2", .node_rank = {}};
  MemoryOwner other_job = own;
  other_job.job = "j.1";
  MemoryOwner other_program = own;
  other_program.program = "/b";
  MemoryOwner other_version = own;
  other_version.version += 1;
  other_version.ddprun = "3";
  KeptMemory used = kept(own);
  used.is_in_use = true;
  KeptMemory silent;
  silent.is_silent = true;
  silent.socket = "j.7.memory";
  const auto choice = choose_memory(
      {kept(other_job), kept(other_program), kept(other_version), used, silent, kept(own)}, own);
  ASSERT_THAT(choice.fitting, SizeIs(1));
  EXPECT_EQ(choice.fitting[0].owner, own);
  EXPECT_THAT(
      choice.refused,
      ElementsAre("the memory kept of job 'j' is of another program, /b; it is not used; 'ddpctl "
                  "forget j' frees it",
                  "the memory kept of job 'j' is of another version of ddprun, 3; it is not used; "
                  "'ddpctl forget j' frees it",
                  "the memory kept of job 'j' is not used: its keeper does not answer at "
                  "j.7.memory"));
}

TEST(MemoryChoice, IsFirstTheOwnNodesThenTheLatest) {
  const auto of_node = [](std::optional<int> rank, int ended) {
    return kept({.job = "j", .program = "/a", .ddprun = "2", .node_rank = rank}, ended);
  };
  const MemoryOwner own{.job = "j", .program = "/a", .ddprun = "2", .node_rank = 1};
  const auto choice =
      choose_memory({of_node(0, 5), of_node(0, 9), of_node(1, 1), of_node({}, 7)}, own);
  std::vector<std::int64_t> ended;
  for (const KeptMemory& each : choice.fitting) {
    ended.push_back(std::chrono::system_clock::to_time_t(each.ended));
  }
  EXPECT_THAT(ended, ElementsAre(1, 9, 7, 5));
}

TEST(KeptMemory, IsReadFromALineOfAKeeperOnly) {
  for (const char* const line :
       {"", "{}", "[]", "nonsense", R"({"in_use":false})", R"({"version":1})",
        R"({"version":"1","in_use":false})", R"({"version":1,"in_use":"no"})"}) {
    EXPECT_FALSE(kept_memory_from(line)) << line;
  }
  const auto memory = kept_memory_from(
      R"({"version":2,"job":"j","in_use":false,"bytes":1048577,"left_ms":1001,"later":1})");
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->owner.version, 2);
  EXPECT_EQ(describe(*memory), "2 MiB are kept for another 2 s");
}

}  // namespace
}  // namespace ddprun::agent
