// Log files: -r, -t, filters, the full disk, the slow console.
#include <gmock/gmock.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "agent/output/log_files.h"
#include "agent/output/output.h"
#include "tests/unit/agent/output/output_fixture.h"

namespace ddprun::agent {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

class OutputFiles : public OutputTest {
 protected:
  OutputSpec spec_with_log_dir() const {
    OutputSpec spec;
    spec.log_dir = temporary_.path() + "/logs/here";
    return spec;
  }
  OutputSpec teed() const {
    OutputSpec spec = spec_with_log_dir();
    spec.tee = StreamSet::kBoth;
    return spec;
  }
  std::string log(int local_rank, const std::string& name) const {
    return read_file(output_->log_directory_of(local_rank) + "/" + name);
  }
  void end(int local_rank, std::unique_ptr<FakeWorker>& worker) {
    worker.reset();
    output_->ended(local_rank);
  }
};

TEST_F(OutputFiles, LieWhereTorchrunPutsThem) {
  make(teed());
  start(1, 3);
  const std::string directory = output_->log_directory_of(1);
  EXPECT_THAT(directory,
              AllOf(StartsWith(temporary_.path() + "/logs/here/run_"), EndsWith("/attempt_3/1")));
  EXPECT_TRUE(std::filesystem::exists(directory + "/stdout.log"));
  EXPECT_TRUE(std::filesystem::exists(directory + "/stderr.log"));
}

TEST_F(OutputFiles, TheErrorFileLiesBesideTheLogsAndStays) {
  OutputSpec spec;
  spec.log_dir = temporary_.path() + "/logs";
  make(spec);
  start(1);
  const std::string file = output_->error_file_of(0, 1);
  EXPECT_EQ(file, output_->log_directory_of(1) + "/error.json");
  std::ofstream(file) << "{}";
  output_.reset();
  EXPECT_EQ(read_file(file), "{}");
}

TEST_F(OutputFiles, AreInAFolderThatOthersCannotRead) {
  make(teed());
  struct stat status {};
  ASSERT_EQ(::stat(output_->log_directory().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700);
}

TEST_F(OutputFiles, ARunIdWithASlashStaysInItsFolder) {
  output_ = std::make_unique<Output>(loop_.get_executor(), *console_, teed(), "a/../../b",
                                     temporary_.path());
  ASSERT_TRUE(prepare(*output_));
  EXPECT_THAT(output_->log_directory(), HasSubstr("/logs/here/a_.._.._b_"));
}

TEST_F(OutputFiles, OfAnEarlierRoundStay) {
  make(teed());
  for (std::uint64_t round = 0; round < 2; ++round) {
    auto worker = start(0, round);
    write_all(worker->out, "round " + std::to_string(round) + "\n");
    end(0, worker);
  }
  EXPECT_TRUE(deliver());
  EXPECT_EQ(read_file(output_->log_directory() + "/attempt_0/0/stdout.log"), "round 0\n");
  EXPECT_EQ(read_file(output_->log_directory() + "/attempt_1/0/stdout.log"), "round 1\n");
}

TEST_F(OutputFiles, OfAWorkerAreThoseOfTheOneThatTakesItsPlace) {
  make(teed());
  output_->keep_files_of_rounds();
  auto worker = start(0);
  write_all(worker->out, "before\n");
  end(0, worker);
  const auto streams = output_->open(0, {0, 10, "role"});
  ASSERT_TRUE(streams);
  worker = std::make_unique<FakeWorker>(*streams);
  output_->started(0);
  write_all(worker->out, "after\n");
  end(0, worker);
  EXPECT_TRUE(deliver());
  EXPECT_EQ(log(0, "stdout.log"), "before\nafter\n");
}

TEST_F(OutputFiles, AreKeptInTheTemporaryFolderWhenNoLogDirIsGiven) {
  OutputSpec spec;
  spec.redirects = StreamSet::kStdout;
  make(spec);
  auto worker = start(0);
  write_all(worker->out, "kept\n");
  end(0, worker);
  EXPECT_TRUE(deliver());
  const std::string file = output_->log_directory_of(0) + "/stdout.log";
  output_.reset();
  EXPECT_EQ(read_file(file), "kept\n");
}

TEST_F(OutputFiles, GetEveryByteUnchanged) {
  OutputSpec spec = spec_with_log_dir();
  spec.redirects = StreamSet::kStdout;
  spec.tee = StreamSet::kStderr;
  make(spec);
  auto worker = start(0);
  const std::string odd = std::string("nul ") + '\0' + " invalid \xff\xfe return \r\r\n bar\r";
  const std::string odd_lines = odd + "end\n";
  const std::string long_line = std::string(1'000'000, 'x') + "\n";
  const std::string odd_shown = std::string("[role0]:nul ") + '\0' +
                                " invalid \xff\xfe return \n[role0]:\n[role0]: bar\n[role0]:end\n";
  const std::string shown = odd_shown + "[role0]:" + long_line;
  const std::string text = odd_lines + long_line;
  write_all(worker->out, odd_lines);
  write_all(worker->err, odd_lines);
  EXPECT_TRUE(sees_stderr(odd_shown));
  // A console that is not empty would rather drop so long a line, which the file has.
  EXPECT_TRUE(console_->flush(std::chrono::steady_clock::now() + seconds(10)));
  std::jthread writer([&] {
    write_all(worker->out, long_line);
    write_all(worker->err, long_line);
  });
  EXPECT_TRUE(sees_stderr(shown));
  writer.join();
  write_all(worker->out, "unfinished");
  write_all(worker->err, "unfinished");
  end(0, worker);
  EXPECT_TRUE(deliver());
  EXPECT_TRUE(log(0, "stdout.log") == text + "unfinished");
  EXPECT_TRUE(log(0, "stderr.log") == text + "unfinished");
  EXPECT_TRUE(seen_err_ == shown + "[role0]:unfinished\n");
  EXPECT_EQ(seen_out_, "");
}

TEST_F(OutputFiles, RedirectedStderrStillHasATail) {
  OutputSpec spec = spec_with_log_dir();
  spec.redirects = StreamSet::kBoth;
  make(spec);
  auto worker = start(0);
  write_all(worker->err, "why\n");
  end(0, worker);
  EXPECT_THAT(output_->stderr_tail(0), ElementsAre("why"));
  EXPECT_TRUE(deliver());
  EXPECT_EQ(seen_err_, "");
}

TEST_F(OutputFiles, TeeShowsWholePrefixedLines) {
  make(teed());
  auto first = start(0);
  auto second = start(1);
  write_all(first->out, "half");
  loop_.run_for(milliseconds(30));  // longer than an unfinished line of plain stderr is held
  write_all(second->out, "progress\rdone\r\n");
  EXPECT_TRUE(sees_stdout("[role1]:progress\n[role1]:done\n"));
  write_all(first->out, " and half\nlast");
  EXPECT_TRUE(sees_stdout("[role1]:progress\n[role1]:done\n[role0]:half and half\n"));
  end(0, first);
  EXPECT_TRUE(sees_stdout(seen_out_ + "[role0]:last\n"));
}

TEST_F(OutputFiles, TheRankFilterSilencesTheConsoleOnly) {
  OutputSpec spec = teed();
  spec.local_ranks_filter = {1};
  make(spec);
  auto hidden = start(0);
  auto shown = start(1);
  write_all(hidden->err, "hidden\n");
  write_all(shown->err, "shown\n");
  end(0, hidden);
  end(1, shown);
  EXPECT_TRUE(deliver());
  EXPECT_EQ(seen_err_, "[role1]:shown\n");
  EXPECT_EQ(log(0, "stderr.log"), "hidden\n");
  EXPECT_THAT(output_->stderr_tail(0), ElementsAre("hidden"));
}

TEST_F(OutputFiles, LinesThatMatchADuplicateFilterGoToOneSharedFile) {
  OutputSpec spec = teed();
  spec.duplicate_stdout_filters = {"loss", "a,b"};
  make(spec);
  for (std::uint64_t round = 0; round < 2; ++round) {
    auto first = start(0, round);
    auto second = start(1, round);
    write_all(first->out, "loss 1\nother\n");
    end(0, first);
    write_all(second->out, "x a,b x\nloss");
    write_all(second->err, "loss on stderr\n");
    end(1, second);
  }
  EXPECT_TRUE(deliver());
  for (const std::string attempt : {"/attempt_0", "/attempt_1"}) {
    EXPECT_EQ(read_file(output_->log_directory() + attempt + "/filtered_stdout.log"),
              "[role0]:loss 1\n[role1]:x a,b x\n[role1]:loss\n");
  }
  EXPECT_FALSE(
      std::filesystem::exists(output_->log_directory() + "/attempt_0/filtered_stderr.log"));
}

TEST_F(OutputFiles, APrefixTemplateAloneNeedsNoFile) {
  OutputSpec spec;
  spec.line_prefix_template = "<$role_name $rank ${local_rank}> ";
  make(spec);
  auto worker = start(0);
  write_all(worker->out, "text\n");
  EXPECT_TRUE(sees_stdout("<role 10 0> text\n"));
  end(0, worker);
  EXPECT_TRUE(deliver());
  output_.reset();
  EXPECT_TRUE(std::filesystem::is_empty(temporary_.path()));
}

TEST_F(OutputFiles, ASlowConsoleLosesLinesThatAreInTheFileAndTheirNumberIsShown) {
  make(teed());
  const std::size_t filled = out_.fill();
  auto worker = start(0);
  constexpr int kLines = 100'000;
  std::string text;
  for (int i = 0; i < kLines; ++i) text += "line " + std::to_string(i) + "\n";
  std::jthread writer([&] { write_all(worker->out, text); });
  ASSERT_TRUE(run_until(loop_, [&] { return log(0, "stdout.log").size() == text.size(); }));
  writer.join();
  EXPECT_EQ(log(0, "stdout.log"), text);

  write_all(worker->out, "after\n");
  end(0, worker);
  EXPECT_TRUE(deliver());
  const std::string seen = seen_out_.substr(filled);
  long shown = 0;
  long dropped = 0;
  std::istringstream lines(seen);
  for (std::string line; std::getline(lines, line);) {
    const std::string notice = "[role0]:(";
    if (line.starts_with(notice)) {
      EXPECT_THAT(line, HasSubstr(" lines not shown: "));
      EXPECT_THAT(line, EndsWith("/0/stdout.log)"));
      dropped += std::stol(line.substr(notice.size()));
    } else {
      ++shown;
    }
  }
  EXPECT_EQ(shown + dropped, kLines + 1);
  EXPECT_GT(shown, 100);
  EXPECT_GT(dropped, 10'000);
}

TEST_F(OutputFiles, ABlockedConsoleDoesNotHoldUpAWorkerThatHasAFile) {
  OutputSpec spec = teed();
  make(spec);
  out_.fill();
  err_.fill();
  auto worker = start(0);
  const std::string text = std::string(99, 'x') + "\n";
  std::jthread writer([&] {
    for (int i = 0; i < 20'000; ++i) write_all(i % 2 == 0 ? worker->out : worker->err, text);
  });
  EXPECT_TRUE(run_until(loop_, [&] {
    return log(0, "stdout.log").size() == 1'000'000 && log(0, "stderr.log").size() == 1'000'000;
  }));
}

TEST_F(OutputFiles, LeaveNoDescriptorAfterManyRounds) {
  OutputSpec spec = teed();
  spec.duplicate_stdout_filters = {"x"};
  make(spec);
  const auto one_round = [&](std::uint64_t round) {
    auto first = start(0, round);
    auto second = start(1, round);
    if (round % 2 == 0) write_all(first->out, "x\n");
    end(0, first);
    end(1, second);
    EXPECT_TRUE(deliver());
  };
  one_round(0);
  const std::size_t before = open_descriptors();
  for (std::uint64_t round = 1; round <= 200; ++round) one_round(round);
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(OutputFiles, AnUnusableLogDirIsOneClearSentence) {
  const std::string file = temporary_.path() + "/file";
  std::ofstream(file) << "x";
  OutputSpec spec;
  spec.log_dir = file;
  Output output(loop_.get_executor(), *console_, spec, "run", temporary_.path());
  const auto prepared = prepare(output);
  ASSERT_FALSE(prepared);
  EXPECT_THAT(prepared.error().to_string(), AllOf(HasSubstr(file), HasSubstr("--log-dir")));
}

TEST_F(OutputFiles, WithoutAPlaceForTheFilesAskedForTheJobIsRefused) {
  OutputSpec spec;
  spec.tee_of = {{0, StreamSet::kStdout}};
  Output output(loop_.get_executor(), *console_, spec, "run", temporary_.path() + "/missing");
  const auto prepared = prepare(output);
  ASSERT_FALSE(prepared);
  EXPECT_THAT(prepared.error().to_string(), HasSubstr("--log-dir"));
}

TEST_F(OutputFiles, AFileThatCannotBeWrittenIsReportedOnce) {
  std::vector<std::string> notices;
  console_->notify_with([&](std::string_view sentence) { notices.emplace_back(sentence); });
  int closed = 0;
  LogFiles files(loop_.get_executor(), *console_, [&] { ++closed; });
  auto full = open_log_file("/dev/full");
  ASSERT_TRUE(full);
  auto file = files.adopt(full->release(), "/dev/full");
  EXPECT_TRUE(file->write("four"));
  EXPECT_TRUE(files.flush(std::chrono::steady_clock::now() + seconds(10)));
  EXPECT_TRUE(file->write("bytes"));
  file.reset();
  EXPECT_TRUE(run_until(loop_, [&] { return closed == 1; }));
  EXPECT_THAT(notices, ElementsAre(AllOf(HasSubstr("/dev/full"), HasSubstr("No space left")),
                                   "the last 9 bytes are missing in /dev/full"));
  EXPECT_TRUE(files.all_closed());
}

// A disk of 256 KiB, seen by this process only.
class OutputOnAFullDisk : public OutputFiles {
 protected:
  void SetUp() override {
    OutputFiles::SetUp();
    // Holds all that the test writes: what is not shown is not dropped for want of room.
    console_ = std::make_unique<Console>(
        loop_.get_executor(), Console::Options{out_.write_end(), err_.write_end(), 8 << 20});
    disk_ = temporary_.path() + "/disk";
    std::filesystem::create_directory(disk_);
    if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) {
      GTEST_SKIP() << "needs a mount namespace of its own, which is not permitted here";
    }
    ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
    if (::mount("ddprun_test", disk_.c_str(), "tmpfs", 0, "size=256k") != 0) {
      GTEST_SKIP() << "needs to mount a tmpfs, which is not permitted here";
    }
    is_mounted_ = true;
  }
  void TearDown() override {
    output_.reset();
    if (is_mounted_) ::umount2(disk_.c_str(), MNT_DETACH);
  }

  std::string disk_;
  bool is_mounted_ = false;
};

TEST_F(OutputOnAFullDisk, TheConsoleGetsEverythingAndTheFileGoesOnWhenItCan) {
  std::vector<std::string> notices;
  console_->notify_with([&](std::string_view sentence) { notices.emplace_back(sentence); });
  OutputSpec spec;
  spec.log_dir = disk_;
  spec.tee = StreamSet::kStdout;
  make(spec);
  const std::string filler = disk_ + "/filler";
  std::ofstream(filler) << std::string(192 * 1024, 'f');
  auto worker = start(0);
  std::string text;
  for (int i = 0; text.size() < 1'000'000; ++i) text += "line " + std::to_string(i) + "\n";
  const auto lines = std::count(text.begin(), text.end(), '\n');
  std::jthread writer([&] { write_all(worker->out, text); });
  const auto shown = [&] { return std::count(seen_out_.begin(), seen_out_.end(), '\n'); };
  ASSERT_TRUE(run_until(loop_, [&] {
    seen_out_ += out_.read_available();
    return shown() == lines && !notices.empty();
  }));
  EXPECT_THAT(notices, ElementsAre(AllOf(HasSubstr("/0/stdout.log"), HasSubstr("No space left"))));

  writer.join();
  std::filesystem::remove(filler);
  write_all(worker->out, "room again\n");
  text += "room again\n";
  ASSERT_TRUE(run_until(loop_, [&] { return log(0, "stdout.log").ends_with("room again\n"); }));
  ASSERT_TRUE(run_until(loop_, [&] { return notices.size() == 2; }));
  // One hole, of the size that was told: what came before the disk was full, and after it was not.
  const std::string written = log(0, "stdout.log");
  const auto hole = std::mismatch(written.begin(), written.end(), text.begin()).first;
  EXPECT_TRUE(text.ends_with(std::string(hole, written.end())));
  EXPECT_THAT(notices[1],
              HasSubstr(std::to_string(text.size() - written.size()) + " bytes are missing"));
  end(0, worker);
  EXPECT_TRUE(deliver());
}

}  // namespace
}  // namespace ddprun::agent
