#include "launcher/as_torchrun/as_torchrun.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "agent/python/python_archives.h"
#include "launcher/cli/option_table.h"
#include "launcher/plan/plan.h"
#include "launcher/settings/values.h"
#include "rendezvous/common/exec_arguments.h"
#include "rendezvous/common/open_files.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::cli {
namespace {

constexpr std::string_view kTorchrun = "torchrun";
constexpr const char* kVariable = "DDPRUN_AS_TORCHRUN";

// torch calls the function at the end of its import, as it does for the installed package, which
// counts more than the one in the archive.
constexpr std::string_view kEntryPoints =
    "[torch.backends]\nddprun_as_torchrun = ddprun_as_torchrun:install\n";
constexpr std::string_view kMetadata =
    "Metadata-Version: 2.1\nName: ddprun-as-torchrun\nVersion: 0\n";
constexpr std::string_view kModule = R"(import os
import sys


def install():
    try:
        try:
            import ddprun
        except ImportError:
            sys.path.append(os.path.dirname(os.path.dirname(__file__)) + "/ddprun.zip/package")
        from ddprun import _torch_autoload
        install = _torch_autoload.put_in_torchruns_place
    except Exception as error:
        print(f"ddprun: torchrun is not ddprun in this process: {error}", file=sys.stderr, flush=True)
    else:
        install()
)";

bool write_file(const std::string& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  return file.flush().good();
}

Result<std::string> make_folder(const Environment& environment) {
  std::string base = value_or_empty(environment, "TMPDIR");
  if (!base.empty()) base = std::filesystem::absolute(base);
  // A colon ends a folder's name in PATH.
  if (base.empty() || base.find(':') != std::string::npos) base = "/tmp";
  std::string folder = base + "/ddprun-as-torchrun-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) {
    return fail(error_from_errno(errno, "cannot make a folder " + folder)
                    .with("hint", "set TMPDIR to a folder that can be written"));
  }
  const std::string about = folder + "/python/ddprun_as_torchrun-0.dist-info";
  std::error_code error;
  std::filesystem::create_directory(folder + "/bin", error);
  std::filesystem::create_directories(about, error);
  std::filesystem::create_symlink(own_file(), folder + "/bin/" + std::string(kTorchrun), error);
  if (error || !write_file(folder + "/python/ddprun_as_torchrun.py", kModule) ||
      !write_file(about + "/METADATA", kMetadata) ||
      !write_file(about + "/entry_points.txt", kEntryPoints) ||
      !write_file(folder + "/ddprun.zip", agent::kHooksArchive)) {
    std::filesystem::remove_all(folder, error);
    return fail(ErrorCode::kInvalidArgument,
                "cannot write into " + folder + "; set TMPDIR to a folder with room for 1 MB");
  }
  return folder;
}

std::string in_front(const std::string& first, const std::string& others) {
  return others.empty() ? first : first + ":" + others;
}

// The command may go to another folder.
std::string from_here(const OptionSpec& spec, const std::string& text) {
  const bool is_stream = spec.id == OptionId::kEvents && (text == "-" || text.starts_with("fd:"));
  const bool is_file = spec.value_name.starts_with("FILE") || spec.value_name == "DIR";
  return is_file && !is_stream && !text.empty() ? std::filesystem::absolute(text).string() : text;
}

Environment changed(const CommandLine& line, Environment environment, const std::string& folder,
                    const std::string& called) {
  for (const OptionSpec& spec : option_table()) {
    const auto& value = line.value(spec.id);
    if (value && spec.variables != Variables::kNone) {
      environment[variables_of(spec).front()] = from_here(spec, *value);
    }
  }
  std::string path = value_or_empty(environment, "PATH");
  if (path.empty()) path = kDefaultPath;
  environment["PATH"] = in_front(folder + "/bin", path);
  environment["PYTHONPATH"] =
      in_front(folder + "/python", value_or_empty(environment, "PYTHONPATH"));
  environment[kVariable] = called.empty() ? own_file() : std::filesystem::absolute(called).string();
  return environment;
}

// What is wrong in each line of torchrun's. Options about nodes, devices and the program may be right only together with
// those of a line: of them their values alone are read.
Result<void> check_values(Settings settings, const Environment& environment) {
  using enum OptionId;
  const auto option = [&](OptionId id) { return resolved(settings, id); };
  const ResolvedOption config = option(kConfig);
  if (!config.is_default() && !std::filesystem::is_regular_file(config.text())) {
    return refused(config, "each torchrun reads it again; give a file, not a pipe");
  }
  Taking take;
  for (const OptionSpec& spec : option_table()) {
    if (!spec.choices.empty()) take(read_choice(option(spec.id)));
  }
  take(read_node_count(option(kNnodes)));
  take(read_integer(option(kNodeRank), 0));
  take(read_integer(option(kMasterPort), 0, 65535));
  take(read_integer(option(kStoreMemory), 1));
  take(read_ranks(option(kAttachDebugger)));
  if (take.error) return fail(*std::move(take.error));
  const auto forget = [&](OptionId id) {
    settings[id] = {std::string(spec_of(id).default_text), {}};
  };
  for (int id = static_cast<int>(kNnodes); id <= static_cast<int>(kNoToken); ++id) {
    forget(static_cast<OptionId>(id));
  }
  for (const OptionId id : {kStandalone, kModule, kNoPython, kRunPath, kVirtualLocalRank,
                            kNumaBinding, kAttachDebugger}) {
    forget(id);
  }
  constexpr std::string_view kCounted[] = {"auto", "cpu", "usable-cpus", "gpu", "xpu"};
  if (std::ranges::count(kCounted, settings[kNprocPerNode].text) > 0) forget(kNprocPerNode);
  if (settings[kMetricsPort].is_default()) forget(kMetricsAddress);
  settings[kRdzvId] = {"some job", {Source::kCommandLine, "--rdzv-id"}};  // as --keep-memory needs
  const Surroundings surroundings{{current_directory(), own_folder}, {}, "", rdzv::kMungeLibrary};
  return make_plan(settings, {own_file()}, environment, surroundings).map([](const Plan&) {});
}

// The process that removes the folder when this one has ended. It is no child of this one, which may
// wait for its children, has a session of its own, and no file open that anything may wait for.
Result<void> start_remover(const std::string& folder) {
  const rdzv::UniqueFd self(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  if (!self) return fail(error_from_errno(errno, "cannot watch this process"));
  const pid_t child = ::fork();
  if (child < 0) return fail(error_from_errno(errno, "cannot start a process"));
  if (child > 0) {
    ::waitpid(child, nullptr, 0);
    return {};
  }
  ::setsid();
  if (::fork() != 0) ::_exit(0);
  const int kept[] = {self.get()};
  close_all_files_but(kept);
  std::error_code error;
  std::filesystem::current_path("/", error);
  pollfd end{self.get(), POLLIN, 0};
  while (::poll(&end, 1, -1) < 0 && errno == EINTR) {
  }
  std::filesystem::remove_all(folder, error);
  ::_exit(0);
}

}  // namespace

Error become_as_torchrun(const CommandLine& line, const FileValues& configured,
                         const Environment& environment, const std::string& called) {
  if (line.command.empty()) {
    return {ErrorCode::kInvalidArgument,
            "--as-torchrun needs a command, as in: ddprun --as-torchrun -- accelerate launch "
            "train.py",
            {}};
  }
  const std::string& name = line.command.front();
  auto file = find_executable(name, current_directory(), environment);
  if (!file && name != kTorchrun) {
    const bool is_file = std::filesystem::exists(name);
    return {is_file ? ErrorCode::kPermissionDenied : ErrorCode::kNotFound,
            is_file ? name +
                          " cannot be executed; give the command that runs it, as in: ddprun "
                          "--as-torchrun -- python " +
                          name
                    : "no command " + name +
                          " was found; --as-torchrun executes a command, as a "
                          "shell would",
            {}};
  }
  if (const auto good = check_values(resolve(line, {}, configured), environment); !good)
    return good.error();
  const auto folder = make_folder(environment);
  if (!folder) return folder.error();
  const auto watched = start_remover(*folder);
  if (!watched) {
    std::error_code error;
    std::filesystem::remove_all(*folder, error);
    return watched.error();
  }
  if (name == kTorchrun) file = *folder + "/bin/" + name;
  const std::vector<std::string> variables = to_lines(changed(line, environment, *folder, called));
  // A path, which execvpe() looks for nowhere else; unlike execve() it executes a script without #! by a shell.
  ::execvpe(file->c_str(), pointers_to(line.command).data(), pointers_to(variables).data());
  return error_from_errno(errno, "cannot execute " + name);
}

bool is_called_torchrun(const std::string& name) {
  return std::string_view(name).substr(name.rfind('/') + 1) == kTorchrun;
}

std::string called_by_path(const Environment& environment) {
  const std::string path = value_or_empty(environment, kVariable);
  return path.find('/') == std::string::npos ? "" : path;
}

}  // namespace ddprun::cli
