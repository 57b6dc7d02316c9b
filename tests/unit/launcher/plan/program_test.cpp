#include "launcher/plan/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/temporary_tree.h"

namespace ddprun::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr mode_t kExecutable = 0755;

class Program : public testing::Test {
 protected:
  Program() {
    tree_.write("cwd/keep", "");
    tree_.write("bin/keep", "");
    python_ = tree_.write("path/python3", "#!/bin/sh\n", kExecutable);
    environment_["PATH"] = tree_ / "nowhere" + ":" + (tree_ / "path");
  }

  Result<FoundProgram> find(std::vector<std::string> command, RunAs run_as = RunAs::kWhatItIs) {
    return find_program(run_as, command, environment_,
                        {tree_ / "cwd", [this] { return tree_ / "bin"; }});
  }
  Error refusal(const std::string& name, RunAs run_as = RunAs::kWhatItIs) {
    const auto found = find({name}, run_as);
    EXPECT_FALSE(found) << name;
    return found ? Error{} : found.error();
  }

  TemporaryTree tree_;
  std::string python_;
  Environment environment_;
};

TEST_F(Program, NameIsLookedForInTheCurrentDirectoryThenBesideDdprunThenOnPath) {
  tree_.write("path/train", "x", kExecutable);
  auto found = find({"train", "a", "--b"});
  ASSERT_TRUE(found) << found.error().to_string();
  EXPECT_EQ(found->program.path, tree_ / "path/train");
  EXPECT_THAT(found->program.argv, ElementsAre("train", "a", "--b"));
  EXPECT_EQ(found->program.first_user_argument, 1u);
  EXPECT_EQ(found->program.name, "train");

  tree_.write("bin/train", "x", kExecutable);
  EXPECT_EQ(find({"train"})->program.path, tree_ / "bin/train");
  tree_.write("cwd/train", "x", kExecutable);
  found = find({"train"});
  EXPECT_EQ(found->program.path, tree_ / "cwd/train");
  EXPECT_THAT(found->program.argv, ElementsAre(tree_ / "cwd/train"))
      << "it could not find itself by a bare name that is not on PATH";
}

TEST_F(Program, AFolderOfThatNameIsPassedOver) {
  std::filesystem::create_directories(tree_ / "cwd/train");
  tree_.write("bin/train", "x", kExecutable);
  EXPECT_EQ(find({"train"})->program.path, tree_ / "bin/train");
}

TEST_F(Program, AFolderWithAMainIsRunByPython) {
  tree_.write("cwd/package/__main__.py", "");
  for (const std::string name : {"package", "./package"}) {
    const auto found = find({name, "x"});
    ASSERT_TRUE(found) << found.error().to_string();
    EXPECT_THAT(found->program.argv, ElementsAre(python_, "-u", name, "x"));
  }
}

TEST_F(Program, ANameWithASlashIsAPath) {
  tree_.write("cwd/sub/train", "x", kExecutable);
  const auto found = find({"sub/train"});
  ASSERT_TRUE(found) << found.error().to_string();
  EXPECT_EQ(found->program.path, "sub/train");
  EXPECT_THAT(found->program.argv, ElementsAre("sub/train"));
}

TEST_F(Program, PyFileRunsWithPythonEvenIfExecutable) {
  tree_.write("cwd/train.py", "", kExecutable);
  const auto found = find({"train.py", "--epochs", "3"});
  ASSERT_TRUE(found) << found.error().to_string();
  EXPECT_EQ(found->program.path, python_);
  EXPECT_THAT(found->program.argv, ElementsAre(python_, "-u", "train.py", "--epochs", "3"));
  EXPECT_EQ(found->program.first_user_argument, 2u)
      << "macros are replaced in the script's path too";
  EXPECT_EQ(found->program.name, "train.py");
}

TEST_F(Program, ReadableFileThatIsNotExecutableRunsWithPython) {
  tree_.write("cwd/train", "print()\n");
  tree_.write("cwd/tool", "#!/usr/bin/env python3\n");
  EXPECT_THAT(find({"train"})->program.argv, ElementsAre(python_, "-u", "train"));
  EXPECT_THAT(find({"./tool"})->program.argv, ElementsAre(python_, "-u", "./tool"));
}

TEST_F(Program, ScriptFoundElsewhereIsGivenToPythonByItsWholePath) {
  tree_.write("bin/train.py", "");
  EXPECT_THAT(find({"train.py"})->program.argv, ElementsAre(python_, "-u", tree_ / "bin/train.py"));
}

TEST_F(Program, WhatIsPlainlyNotPythonIsNotGivenToPython) {
  tree_.write("cwd/binary", std::string("\177ELF\2\1\1", 7));
  tree_.write("cwd/script.sh", "#!/bin/bash\necho\n");
  for (const std::string name : {"binary", "script.sh"}) {
    const Error error = refusal(name);
    EXPECT_EQ(error.code, ErrorCode::kPermissionDenied);
    EXPECT_THAT(error.message, HasSubstr("chmod +x"));
    EXPECT_THAT(error.message, HasSubstr(name));
  }
  EXPECT_THAT(refusal("script.sh").message, HasSubstr("/bin/bash"));
}

TEST_F(Program, SaysWhatWasLookedForAndWhere) {
  const Error error = refusal("no-such");
  EXPECT_EQ(error.code, ErrorCode::kNotFound);
  for (const std::string& part :
       {std::string("no-such"), tree_ / "cwd", tree_ / "bin", tree_ / "nowhere"}) {
    EXPECT_THAT(error.message, HasSubstr(part));
  }
  EXPECT_EQ(refusal("./no-such.py").code, ErrorCode::kNotFound);
  EXPECT_THAT(refusal("./no-such.py").message, HasSubstr("there is no such file"));
  EXPECT_EQ(refusal("").code, ErrorCode::kNotFound);
}

TEST_F(Program, AFolderGivenAsAPathIsRefused) {
  const Error error = refusal(tree_ / "cwd");
  EXPECT_EQ(error.code, ErrorCode::kPermissionDenied);
  EXPECT_THAT(error.message, HasSubstr("is a directory"));
}

TEST_F(Program, PythonIsThatOfTheActiveEnvironment) {
  EXPECT_EQ(find_python(environment_, "")->path, python_);
  EXPECT_EQ(find_python(environment_, "")->why, "PATH");

  environment_["CONDA_PREFIX"] = tree_ / "conda";
  EXPECT_EQ(find_python(environment_, "")->why, "PATH")
      << "a prefix without a Python is passed over";
  const std::string conda = tree_.write("conda/bin/python", "", kExecutable);
  EXPECT_EQ(find_python(environment_, "")->path, conda);

  environment_["VIRTUAL_ENV"] = tree_ / "venv";
  const std::string venv = tree_.write("venv/bin/python", "", kExecutable);
  EXPECT_EQ(find_python(environment_, "")->path, venv);

  environment_["PYTHON_EXEC"] = conda;
  EXPECT_EQ(find_python(environment_, "")->path, conda);
  EXPECT_EQ(find_python(environment_, "")->why, "PYTHON_EXEC");
  environment_["PYTHON_EXEC"] = "python3";
  EXPECT_EQ(find_python(environment_, "")->path, python_);
  environment_["PYTHON_EXEC"] = tree_ / "no-python";
  EXPECT_THAT(find_python(environment_, "").error().message, HasSubstr("PYTHON_EXEC"))
      << "what was asked for is not replaced by something else";
}

TEST_F(Program, PythonOfTheEnvironmentThatDdprunLiesInCountsMoreThanPath) {
  const auto bin_of = [this](const std::string& called) {
    return environment_bin(called, tree_ / "cwd");
  };
  tree_.write("venv/bin/ddprun", "", kExecutable);
  EXPECT_EQ(bin_of(tree_ / "venv/bin/ddprun"), "") << "a folder that is no environment";
  tree_.write("venv/pyvenv.cfg", "");
  EXPECT_EQ(bin_of(tree_ / "venv/bin/ddprun"), "") << "there is no Python in it";
  const std::string python = tree_.write("venv/bin/python", "", kExecutable);
  EXPECT_EQ(bin_of(tree_ / "venv/bin/ddprun"), tree_ / "venv/bin");
  EXPECT_EQ(bin_of("../venv/bin/ddprun"), tree_ / "cwd/../venv/bin");
  std::filesystem::create_symlink(tree_ / "venv/bin/ddprun", tree_ / "bin/ddprun");
  EXPECT_EQ(bin_of(tree_ / "bin/ddprun"), "") << "pipx and `uv tool` make such a link";
  std::filesystem::create_symlink(tree_ / "bin/keep", tree_ / "venv/bin/linked");
  EXPECT_EQ(bin_of(tree_ / "venv/bin/linked"), tree_ / "venv/bin") << "a link in the environment";
  tree_.write("conda/conda-meta/history", "");
  tree_.write("conda/bin/python", "", kExecutable);
  EXPECT_EQ(bin_of(tree_ / "conda/bin/ddprun"), tree_ / "conda/bin");

  const std::string bin = tree_ / "venv/bin";
  EXPECT_EQ(find_python(environment_, bin)->path, python);
  EXPECT_EQ(find_python(environment_, bin)->why, "ddprun's environment");
  environment_["CONDA_PREFIX"] = tree_ / "conda";
  EXPECT_EQ(find_python(environment_, bin)->why, "CONDA_PREFIX") << "what is active is meant";
  environment_["PYTHON_EXEC"] = python_;
  EXPECT_EQ(find_python(environment_, bin)->path, python_);
}

TEST_F(Program, ModuleIsRunByPythonAndNoFileIsLookedFor) {
  const auto found = find({"pkg.train", "-m", "x"}, RunAs::kModule);
  ASSERT_TRUE(found) << found.error().to_string();
  EXPECT_EQ(found->program.path, python_);
  EXPECT_THAT(found->program.argv, ElementsAre(python_, "-u", "-m", "pkg.train", "-m", "x"));
  EXPECT_EQ(found->program.first_user_argument, 3u);
  EXPECT_EQ(found->program.name, "pkg.train");
}

TEST_F(Program, NoPythonExecutesTheProgramAndLooksOnPathFirst) {
  tree_.write("cwd/tool.py", "#!/bin/sh\n", kExecutable);
  EXPECT_THAT(find({"./tool.py", "a"}, RunAs::kProgram)->program.argv,
              ElementsAre("./tool.py", "a"));
  EXPECT_EQ(find({"tool.py"}, RunAs::kProgram)->program.path, tree_ / "cwd/tool.py");
  tree_.write("path/tool.py", "#!/bin/sh\n", kExecutable);
  const auto found = find({"tool.py"}, RunAs::kProgram);
  EXPECT_EQ(found->program.path, tree_ / "path/tool.py");
  EXPECT_THAT(found->program.argv, ElementsAre("tool.py"));
  EXPECT_EQ(found->program.first_user_argument, 1u) << "the program's own name has no macros";

  tree_.write("cwd/plain.py", "");
  const Error error = refusal("plain.py", RunAs::kProgram);
  EXPECT_EQ(error.code, ErrorCode::kPermissionDenied);
  EXPECT_THAT(error.message, HasSubstr("--no-python"));
}

TEST_F(Program, RunPathRunsTheScriptInsidePython) {
  tree_.write("cwd/tool", "", kExecutable);
  const auto found = find({"tool", "a"}, RunAs::kRunPath);
  ASSERT_TRUE(found) << found.error().to_string();
  const std::vector<std::string>& argv = found->program.argv;
  ASSERT_EQ(argv.size(), 6u);
  EXPECT_EQ(argv[2], "-c");
  EXPECT_THAT(argv[3], HasSubstr("runpy"));
  EXPECT_THAT(std::vector(argv.begin() + 4, argv.end()), ElementsAre("tool", "a"));
  EXPECT_EQ(found->program.first_user_argument, 4u);
}

TEST_F(Program, WithoutAnyPythonAScriptIsRefused) {
  std::filesystem::remove(python_);
  tree_.write("cwd/train.py", "");
  EXPECT_THAT(refusal("train.py").message, HasSubstr("no Python found"));
}

TEST(ProgramIdentity, IsThePathOfWhatTheUserWrote) {
  agent::Program program{.path = "./bin/../train", .argv = {"train", "--lr=1"}, .name = "train"};
  EXPECT_EQ(identity_of(program, "/srv"), "/srv/train");
  program.path = "/opt/train";
  EXPECT_EQ(identity_of(program, "/srv"), "/opt/train");
  program = {.path = "/usr/bin/python3",
             .argv = {"/usr/bin/python3", "-u", "train.py", "x"},
             .first_user_argument = 2,
             .name = "train.py",
             .is_python = true};
  EXPECT_EQ(identity_of(program, "/srv"), "/srv/train.py");
  program.argv = {"/usr/bin/python3", "-u", "-m", "package.train", "x"};
  program.first_user_argument = 3;
  EXPECT_EQ(identity_of(program, "/srv"), "package.train");
}

}  // namespace
}  // namespace ddprun::cli
