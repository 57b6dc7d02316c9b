#include "launcher/plan/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <thread>
#include <utility>

#include "tests/support/temporary_tree.h"

namespace ddprun::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr mode_t kExecutable = 0755;
const std::string kBinary("\177ELF\2\1\1", 7);

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
  tree_.write("path/train", kBinary, kExecutable);
  auto found = find({"train", "a", "--b"});
  ASSERT_TRUE(found) << found.error().to_string();
  EXPECT_EQ(found->program.path, tree_ / "path/train");
  EXPECT_THAT(found->program.argv, ElementsAre("train", "a", "--b"));
  EXPECT_EQ(found->program.first_user_argument, 1u);
  EXPECT_EQ(found->program.name, "train");

  tree_.write("bin/train", kBinary, kExecutable);
  EXPECT_EQ(find({"train"})->program.path, tree_ / "bin/train");
  tree_.write("cwd/train", kBinary, kExecutable);
  found = find({"train"});
  EXPECT_EQ(found->program.path, tree_ / "cwd/train");
  EXPECT_THAT(found->program.argv, ElementsAre(tree_ / "cwd/train"))
      << "it could not find itself by a bare name that is not on PATH";
}

TEST_F(Program, AFolderOfThatNameIsPassedOver) {
  std::filesystem::create_directories(tree_ / "cwd/train");
  tree_.write("bin/train", kBinary, kExecutable);
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
  tree_.write("cwd/sub/train", kBinary, kExecutable);
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
  tree_.write("cwd/binary", kBinary);
  tree_.write("cwd/script.sh", "#!/bin/bash\necho\n");
  for (const std::string name : {"binary", "script.sh"}) {
    const Error error = refusal(name);
    EXPECT_EQ(error.code, ErrorCode::kPermissionDenied);
    EXPECT_THAT(error.message, HasSubstr("chmod +x"));
    EXPECT_THAT(error.message, HasSubstr(name));
  }
  EXPECT_THAT(refusal("script.sh").message, HasSubstr("/bin/bash"));
  tree_.write("cwd/train.py", "#!/usr/bin/env -S uv run --script\n");
  EXPECT_TRUE(find({"train.py"})) << "its name says that it is Python";
}

// torchrun gives every file to Python, and execve() refuses these.
TEST_F(Program, WhatHasNoFirstLineIsRunByPythonAlsoIfExecutable) {
  const std::vector<std::pair<std::string, std::string>> files = {
      {"text", "print()\n"},
      {"latin", "# -*- coding: latin-1 -*-\nprint('\xe4')\n"},
      {"with-mark", "\xef\xbb\xbf#!/usr/bin/env python3\n"},
      {"empty", ""},
      {"app.pyz", std::string("PK\3\4\0\0", 6)},
      {"compiled.pyc", std::string("\xa7\r\r\n\0\0", 6)}};
  for (const auto& [name, text] : files) {
    tree_.write("cwd/" + name, text, kExecutable);
    const auto found = find({name, "a"});
    ASSERT_TRUE(found) << name << ": " << found.error().to_string();
    EXPECT_THAT(found->program.argv, ElementsAre(python_, "-u", name, "a"));
    EXPECT_TRUE(found->program.is_python) << name;
    EXPECT_EQ(found->warning, "") << name;
    EXPECT_FALSE(find({"./" + name}, RunAs::kProgram)->program.is_python) << name;
  }
  tree_.write("cwd/other", std::string("MZ\x90\0", 4), kExecutable);
  EXPECT_FALSE(find({"other"})->program.is_python) << "the kernel may know what runs it";
}

TEST_F(Program, AShellScriptWithoutAFirstLineIsRefused) {
  for (const mode_t mode : {kExecutable, mode_t{0644}}) {
    tree_.write("cwd/run.sh", "echo\n", mode);
    const Error error = refusal("run.sh");
    EXPECT_EQ(error.code, ErrorCode::kPermissionDenied);
    EXPECT_THAT(error.message, HasSubstr("#!/bin/sh"));
  }
}

TEST_F(Program, APythonThatTheFirstLineNamesRunsTheScriptWithoutABuffer) {
  const std::string own = tree_.write("venv/bin/python3.12", kBinary, kExecutable);
  const std::string blank = tree_.write("a venv/bin/python", kBinary, kExecutable);
  struct Case {
    std::string text;
    std::string python;
    std::vector<std::string> options;
  };
  const std::vector<Case> cases = {
      {"#!" + own + "\n", own, {}},
      {"#! " + own + " -E -s\n", own, {"-E", "-s"}},
      {"#!" + own + " -Xdev\nPK\3\4", own, {"-Xdev"}},
      {"#!/usr/bin/env python3\n", python_, {}},
      {"#!/usr/bin/env -S python3 -I\n", python_, {"-I"}},
      {"#!/usr/bin/env -Spython3 -I\n", python_, {"-I"}},
      {"#!/usr/bin/env " + own, own, {}},
      {"#!../venv/bin/python3.12\n", tree_ / "cwd/../venv/bin/python3.12", {}},
      {"#!/bin/sh\n'''exec' \"" + blank + "\" \"$0\" \"$@\"\n' '''\n", blank, {}},
      {"#!/bin/sh\n'''exec' " + own + " \"$0\" \"$@\"\n' '''\n", own, {}},
  };
  for (const Case& c : cases) {
    tree_.write("cwd/tool", c.text, kExecutable);
    const auto found = find({"tool", "a"});
    ASSERT_TRUE(found) << c.text << found.error().to_string();
    std::vector<std::string> argv{c.python, "-u"};
    argv.insert(argv.end(), c.options.begin(), c.options.end());
    argv.insert(argv.end(), {"tool", "a"});
    EXPECT_EQ(found->program.argv, argv) << c.text;
    EXPECT_EQ(found->program.path, c.python) << c.text;
    EXPECT_TRUE(found->program.is_python) << c.text;
    EXPECT_EQ(found->program.python_options, 1 + c.options.size()) << c.text;
    EXPECT_EQ(found->program.first_user_argument, 2 + c.options.size()) << c.text;
    EXPECT_EQ(found->warning, "") << c.text;
    EXPECT_EQ(identity_of(found->program, "/srv"), "/srv/tool") << c.text;
    EXPECT_THAT(find({"./tool", "a"}, RunAs::kProgram)->program.argv, ElementsAre("./tool", "a"));
  }
  std::filesystem::rename(tree_ / "cwd/tool", tree_ / "path/tool");
  EXPECT_THAT(find({"tool"})->program.argv, ElementsAre(own, "-u", tree_ / "path/tool"));
}

TEST_F(Program, WithoutThePythonOfTheFirstLineTheActiveOneRunsTheScriptAndAWarningSaysSo) {
  const std::string own = tree_.write("venv/bin/python3", kBinary, kExecutable);
  for (const std::string& text :
       {std::string("#!/gone/bin/python3\n"), std::string("#!python\n"),
        std::string("#!/usr/bin/env python2.7\n"), std::string("#!/usr/bin/env python3\r\n"),
        "#!" + own + "\r\n", std::string("#!/gone/bin/python -m runner\n"),
        std::string("#!/bin/sh\n'''exec' \"/gone/python\" \"$0\" \"$@\"\n' '''\n")}) {
    tree_.write("cwd/tool", text, kExecutable);
    const auto found = find({"tool", "a"});
    ASSERT_TRUE(found) << text << found.error().to_string();
    EXPECT_THAT(found->program.argv, ElementsAre(python_, "-u", "tool", "a")) << text;
    EXPECT_THAT(found->warning, HasSubstr("first line of " + (tree_ / "cwd/tool"))) << text;
    EXPECT_THAT(found->warning, HasSubstr("run by " + python_)) << text;
  }
  tree_.write("cwd/tool.py", "#!/gone/bin/python3\n", kExecutable);
  EXPECT_EQ(find({"tool.py"})->warning, "") << "its first line does not count";
}

TEST_F(Program, AScriptForAnotherInterpreterIsExecutedItself) {
  for (const std::string text :
       {"#!/bin/sh\n", "#!/bin/sh -e\n", "#!/usr/bin/env bash\n",
        "#!/usr/bin/env -S uv run --script\n", "#!/usr/bin/env -S A=1 python3\n",
        "#!/usr/bin/env -i python3\n",
        "#!/bin/sh\n'''exec' \"$(dirname -- \"$0\")\"/'python' \"$0\" \"$@\"\n"}) {
    tree_.write("cwd/tool", text, kExecutable);
    const auto found = find({"./tool"});
    ASSERT_TRUE(found) << text << found.error().to_string();
    EXPECT_THAT(found->program.argv, ElementsAre("./tool")) << text;
    EXPECT_FALSE(found->program.is_python) << text;
  }
  tree_.write("cwd/tool", "#!" + python_ + " -m runner\n", kExecutable);
  EXPECT_FALSE(find({"tool"})->program.is_python) << "-u cannot stand before these words";
}

TEST_F(Program, AScriptWhoseOtherInterpreterIsNotThereIsRefused) {
  tree_.write("cwd/gone", "#!/no/such/shell\n", kExecutable);
  EXPECT_EQ(refusal("gone").code, ErrorCode::kPermissionDenied);
  EXPECT_THAT(refusal("gone").message, HasSubstr("names /no/such/shell, which is not there"));
  tree_.write("cwd/windows", "#!/bin/sh\r\n", kExecutable);
  EXPECT_EQ(refusal("windows").code, ErrorCode::kPermissionDenied);
  EXPECT_THAT(refusal("windows").message, HasSubstr("carriage return"));
}

TEST_F(Program, AMountThatForbidsExecutionIsNamed) {
  const std::string mounted = tree_ / "cwd/noexec";
  std::filesystem::create_directories(mounted);
  const auto mount_there = [&] {
    if (::unshare(CLONE_NEWNS) != 0) return false;
    ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
    return ::mount("none", mounted.c_str(), "tmpfs", MS_NOEXEC, nullptr) == 0;
  };
  bool is_mounted = false;
  std::thread([&] {  // a mount namespace is a thread's
    is_mounted = ::unshare(CLONE_FS) == 0 && mount_there();
    if (!is_mounted) return;
    tree_.write("cwd/noexec/binary", kBinary, kExecutable);
    tree_.write("cwd/noexec/script", "#!/bin/sh\n", kExecutable);
    tree_.write("cwd/noexec/tool", "#!/usr/bin/env python3\n", kExecutable);
    tree_.write("cwd/noexec/text", "print()\n", kExecutable);
    for (const std::string name : {"binary", "script"}) {
      const Error error = refusal("noexec/" + name);
      EXPECT_EQ(error.code, ErrorCode::kPermissionDenied);
      EXPECT_THAT(error.message, HasSubstr("mounted noexec"));
      EXPECT_THAT(error.message, Not(HasSubstr("chmod")));
    }
    EXPECT_THAT(refusal("noexec/binary", RunAs::kProgram).message, HasSubstr("mounted noexec"));
    for (const std::string name : {"noexec/tool", "noexec/text"}) {
      const auto found = find({name});
      ASSERT_TRUE(found) << found.error().to_string();
      EXPECT_THAT(found->program.argv, ElementsAre(python_, "-u", name));
    }
  })
      .join();
  if (!is_mounted) GTEST_SKIP() << "no mount namespaces here";
}

TEST_F(Program, APipeIsNotReadBeforeTheProgramStarts) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_EQ(::write(ends[1], "print()\n", 8), 8);
  EXPECT_TRUE(find({"/proc/self/fd/" + std::to_string(ends[0])}));
  std::array<char, 16> left{};
  EXPECT_EQ(::read(ends[0], left.data(), left.size()), 8);
  ::close(ends[0]);
  ::close(ends[1]);
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

TEST_F(Program, AModuleWithoutTheOptionForItIsRecognised) {
  tree_.write("cwd/package/train.py", "");
  tree_.write("cwd/package/tool/__main__.py", "");
  EXPECT_THAT(refusal("package.train").message, HasSubstr("ddprun -m package.train"));
  EXPECT_THAT(refusal("package.tool").message, HasSubstr("ddprun -m package.tool"));
  EXPECT_THAT(refusal("package.other").message, Not(HasSubstr("-m package")));
  EXPECT_THAT(refusal("train.py\r").message, HasSubstr("carriage return"));
  EXPECT_THAT(refusal("./train.py\r").message, HasSubstr("carriage return"));
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

  environment_["DDPRUN_CALLERS_PYTHON"] = python_;
  EXPECT_EQ(find_python(environment_, "")->path, python_);
  EXPECT_EQ(find_python(environment_, "")->why, "DDPRUN_CALLERS_PYTHON");
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
