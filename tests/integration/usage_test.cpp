// Wrong usage is refused before anything starts, with one clear sentence and the documented exit
// code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/job.h"

namespace ddprun::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Refusal {
  std::string name;
  std::vector<std::string> options;
  std::vector<std::string> sentence_holds;
};

void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.name; }

class Refused : public ::testing::TestWithParam<Refusal> {};

TEST_P(Refused, WithOneSentenceAndNothingStarted) {
  const TemporaryTree folder;
  Job job(ddprun(GetParam().options, worker({"touch", folder / "started"})));
  EXPECT_EQ(job.wait(), exited(2)) << job.err();
  const std::string sentence = job.err();
  for (const std::string& part : GetParam().sentence_holds) EXPECT_THAT(sentence, HasSubstr(part));
  EXPECT_THAT(sentence, HasSubstr("ddprun: "));
  EXPECT_LE(std::count(sentence.begin(), sentence.end(), '\n'), 3) << sentence;
  EXPECT_THAT(job.out(), IsEmpty());
  EXPECT_FALSE(std::filesystem::exists(folder / "started"));
}

INSTANTIATE_TEST_SUITE_P(
    Options, Refused,
    ::testing::Values(
        Refusal{"NoWorkers", {"--nproc-per-node=0"}, {"nproc-per-node", "0"}},
        Refusal{"NegativeWorkers", {"--nproc-per-node=-1"}, {"nproc-per-node", "-1"}},
        Refusal{"WorkersInWords", {"--nproc-per-node=two"}, {"nproc-per-node", "two"}},
        Refusal{"EmptyNumber", {"--nproc-per-node="}, {"nproc-per-node"}},
        Refusal{"FractionOfWorkers", {"--nproc-per-node=1.5"}, {"nproc-per-node", "1.5"}},
        Refusal{"MoreThanTheLimit", {"--nproc-per-node=1000000"}, {"nproc-per-node", "1000000"}},
        Refusal{"MoreThanAnInteger",
                {"--nproc-per-node=99999999999999999999"},
                {"nproc-per-node", "99999999999999999999"}},
        Refusal{"NegativeRestarts", {"--max-restarts=-1"}, {"max-restarts", "-1"}},
        Refusal{"RestartsInWords", {"--max_restarts", "many"}, {"max-restarts", "many"}},
        Refusal{"MemoryOfANamelessJob", {"--keep-memory=600"}, {"--keep-memory=600", "--rdzv-id"}},
        Refusal{"UnknownOption", {"--frobnicate"}, {"--frobnicate"}},
        Refusal{
            "MisspeltOption", {"--nproc-per-nodd", "3"}, {"--nproc-per-nodd", "--nproc-per-node"}},
        Refusal{"MisspeltOptionWithValue",
                {"--nproc-pre-node=3"},
                {"--nproc-pre-node", "--nproc-per-node"}},
        Refusal{"UnknownLetter", {"-x"}, {"-x"}},
        Refusal{"RedirectOfUnknownStream", {"-r", "7"}, {"redirects", "7"}}),
    [](const auto& each) { return each.param.name; });

// A beginning of an option's name that only one option has is that option, as under torchrun; if it
// were taken for the program, its value would be too.
TEST(Usage, AnAbbreviationIsNeverTakenForTheProgram) {
  Job job(ddprun({"--nproc-per-nod", "2"}, worker({"print", "x"})));
  EXPECT_EQ(job.wait(), exited(0)) << job.err();
  EXPECT_EQ(job.out(), "x\nx\n");
}

TEST(Usage, NoProgramIsRefused) {
  for (const std::vector<std::string>& options :
       {std::vector<std::string>{}, {"--nproc-per-node=2"}, {"--"}}) {
    Job job(ddprun(options));
    EXPECT_EQ(job.wait(), exited(2));
    EXPECT_THAT(job.err(), HasSubstr("program"));
  }
}

TEST(Usage, AMissingValueIsRefused) {
  Job job(ddprun({"--nproc-per-node"}));
  EXPECT_EQ(job.wait(), exited(2));
  EXPECT_THAT(job.err(), HasSubstr("--nproc-per-node"));
}

TEST(Usage, AProgramThatIsNotThereGives127AndSaysWhereItWasLookedFor) {
  const TemporaryTree folder;
  Job job(ddprun({}, {"no-such-program-anywhere"}),
          {.environment = {{"PATH", "/usr/bin:/opt/nothing"}}, .directory = folder.path()});
  EXPECT_EQ(job.wait(), exited(127));
  EXPECT_THAT(job.err(), AllOf(HasSubstr("no-such-program-anywhere"), HasSubstr("/opt/nothing"),
                               HasSubstr(folder.path())));

  Job with_path(ddprun({}, {"./no/such/file", "x"}));
  EXPECT_EQ(with_path.wait(), exited(127));
  EXPECT_THAT(with_path.err(), HasSubstr("./no/such/file"));
}

TEST(Usage, AFolderOrABrokenInterpreterCannotBeExecuted) {
  const TemporaryTree folder;
  Job a_folder(ddprun({}, {folder.path()}));
  EXPECT_EQ(a_folder.wait(), exited(126));
  EXPECT_THAT(a_folder.err(), HasSubstr(folder.path()));

  // Executable, but what its first line asks for does not exist.
  write_file(folder / "script", "#!/no/such/interpreter\n", 0755);
  Job script(ddprun({"--nproc-per-node=2", "--max-restarts=3"}, {folder / "script"}));
  EXPECT_EQ(script.wait(), exited(126)) << script.err();
  EXPECT_THAT(script.err(), HasSubstr(folder / "script"));
  EXPECT_THAT(script.left_over(), IsEmpty());
}

TEST(Usage, AnUnwritableLogFolderIsRefused) {
  const TemporaryTree folder;
  write_file(folder / "file", "");
  Job job(
      ddprun({"--log-dir=" + (folder / "file"), "-r", "3"}, worker({"touch", folder / "started"})));
  EXPECT_EQ(job.wait(), exited(2)) << job.err();
  EXPECT_THAT(job.err(), HasSubstr(folder / "file"));
  EXPECT_FALSE(std::filesystem::exists(folder / "started"));

  Job under_proc(
      ddprun({"--log-dir=/proc/nowhere", "-r", "3"}, worker({"touch", folder / "started"})));
  EXPECT_EQ(under_proc.wait(), exited(2)) << under_proc.err();
  EXPECT_THAT(under_proc.err(), HasSubstr("/proc/nowhere"));
  EXPECT_FALSE(std::filesystem::exists(folder / "started"));
}

TEST(Usage, HelpAndVersionGoToStdoutAndSucceed) {
  for (const char* option : {"--help", "-h", "--version"}) {
    Job job(ddprun({option}));
    EXPECT_EQ(job.wait(), exited(0));
    EXPECT_THAT(job.out(), HasSubstr("ddprun"));
    EXPECT_THAT(job.err(), IsEmpty());
  }
}

}  // namespace
}  // namespace ddprun::test
