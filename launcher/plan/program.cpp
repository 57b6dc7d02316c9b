#include "launcher/plan/program.h"

#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <optional>
#include <string_view>

#include "launcher/cli/secrets.h"
#include "launcher/cli/text.h"
#include "rendezvous/common/file_text.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::cli {
namespace {

std::string path_in(const std::string& directory, const std::string& name) {
  if (name.starts_with('/') || directory.empty()) return name;
  return directory.ends_with('/') ? directory + name : directory + "/" + name;
}

bool has_type(const std::string& path, mode_t type) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && (status.st_mode & S_IFMT) == type;
}

bool is_regular_file(const std::string& path) { return has_type(path, S_IFREG); }

bool is_directory(const std::string& path) { return has_type(path, S_IFDIR); }

// A folder that Python runs as a program.
bool is_python_folder(const std::string& path) {
  return is_directory(path) && is_regular_file(path + "/__main__.py");
}

bool is_program(const std::string& path) { return is_regular_file(path) || is_python_folder(path); }

bool is_executable(const std::string& path) {
  return is_regular_file(path) && ::access(path.c_str(), X_OK) == 0;
}

std::string search_path_of(const Environment& environment) {
  const std::string path = value_or_empty(environment, "PATH");
  return path.empty() ? "/usr/local/bin:/usr/bin:/bin" : path;
}

std::optional<std::string> find_on_path(const std::string& name, const Environment& environment) {
  const std::string path = search_path_of(environment);
  for (const std::string_view directory : split(path, ':')) {
    // An empty entry means the current directory, as for a shell.
    std::string candidate = path_in(directory.empty() ? "." : std::string(directory), name);
    if (is_executable(candidate)) return candidate;
  }
  return std::nullopt;
}

enum class Where { kAsGiven, kHere, kBeside, kOnPath };

struct Place {
  std::string path;
  Where where;
};

std::string to_string(Where where) {
  constexpr const char* kNames[] = {"as given", "in the current directory", "beside ddprun",
                                    "on PATH"};
  return kNames[static_cast<std::size_t>(where)];
}

Result<Place> locate_path(const std::string& name, const SearchPlaces& places) {
  const std::string path = path_in(places.directory, name);
  if (is_directory(path) && !is_python_folder(path)) {
    return fail(ErrorCode::kPermissionDenied, name + " is a directory, not a program");
  }
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0) return Place{name, Where::kAsGiven};
  const std::string from = name[0] == '/' ? "" : " (from " + places.directory + ")";
  if (errno == EACCES) {
    return fail(
        ErrorCode::kPermissionDenied,
        "program " + name + " cannot be reached: a folder of its path may not be entered" + from);
  }
  return fail(ErrorCode::kNotFound,
              "program " + shown_text(name) + " not found: there is no such file" + from);
}

Result<Place> locate(RunAs run_as, const std::string& name, const Environment& environment,
                     const SearchPlaces& places) {
  if (name.find('/') != std::string::npos) return locate_path(name, places);
  if (run_as == RunAs::kProgram) {
    if (auto found = find_on_path(name, environment)) return Place{*found, Where::kOnPath};
  }
  const std::string here = path_in(places.directory, name);
  if (is_program(here)) return Place{here, Where::kHere};
  const std::string ddprun_directory = places.ddprun_directory();
  const std::string beside = path_in(ddprun_directory, name);
  if (is_program(beside)) return Place{beside, Where::kBeside};
  if (auto found = find_on_path(name, environment)) return Place{*found, Where::kOnPath};
  return fail(ErrorCode::kNotFound, "program " + shown_text(name) + " not found: looked in " +
                                        places.directory + ", " + ddprun_directory +
                                        " and on PATH (" + search_path_of(environment) + ")");
}

// A file without the execute bit that is clearly not Python: Python would only say "SyntaxError".
std::optional<std::string> why_not_python(const std::string& path) {
  const rdzv::UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const std::string start = read_from(file.get(), 128).value_or("");
  if (start.starts_with("\177ELF")) return "it is a binary program without the execute permission";
  const std::string first_line = start.substr(0, start.find('\n'));
  if (first_line.starts_with("#!") && first_line.find("python") == std::string::npos) {
    return "it is a script for " + first_line.substr(2) + " without the execute permission";
  }
  return std::nullopt;
}

// The text that --run-path passes to python -c. torchrun runs the script in a child process by
// runpy, as __main__, and writes the text of an exception to the error file.
//
// A Gloo thread of PyTorch frees the tensors of a collective after the collective has returned. If
// the interpreter has ended by then, CPython ends the thread inside a C++ destructor: "terminate
// called without an active exception". (torchrun's children wait for each other before they end.) So
// the function that is registered first, and therefore called last, waits until these threads sleep:
// until then they work, or wait for the interpreter, which this thread releases while it waits.
constexpr const char* kRunPathCode = R"(import atexit, glob, runpy, sys, time
from torch.distributed.elastic.multiprocessing.errors import record

def is_at_work(thread):
    try:
        with open(thread) as stat:
            name, _, state = stat.read().rpartition(') ')
    except OSError:
        return False  # it has ended
    return '(pt_gloo' in name and not state.startswith('S')

def let_gloo_finish():
    deadline = time.monotonic() + 5
    while any(map(is_at_work, glob.glob('/proc/self/task/*/stat'))) and time.monotonic() < deadline:
        time.sleep(0.001)

atexit.register(let_gloo_finish)
del sys.argv[0]
record(lambda: runpy.run_path(sys.argv[0], run_name='__main__'))()
)";

// `python -u`, the words of `how_to_run`, then the user's words, beginning with the script or module.
Result<FoundProgram> run_by_python(const std::vector<std::string>& how_to_run,
                                   const std::vector<std::string>& user_words,
                                   const std::string& name, const Environment& environment,
                                   const SearchPlaces& places) {
  auto python = find_python(environment, places.environment_bin);
  if (!python) return fail(python.error());
  FoundProgram found;
  found.program.path = python->path;
  found.program.argv = {python->path, "-u"};
  auto& argv = found.program.argv;
  argv.insert(argv.end(), how_to_run.begin(), how_to_run.end());
  found.program.first_user_argument = argv.size();
  argv.insert(argv.end(), user_words.begin(), user_words.end());
  found.program.name = name;
  found.program.is_python = true;
  found.how = "run by " + python->path + " (from " + python->why + ")";
  return found;
}

Result<FoundProgram> as_script(RunAs run_as, const std::vector<std::string>& command,
                               const Place& place, const Environment& environment,
                               const SearchPlaces& places) {
  std::vector<std::string> words = command;
  // A script in the current directory keeps its name as typed: tracebacks and sys.argv show it.
  if (place.where == Where::kBeside || place.where == Where::kOnPath) words[0] = place.path;
  std::vector<std::string> how_to_run;
  if (run_as == RunAs::kRunPath) how_to_run = {"-c", kRunPathCode};
  auto found = run_by_python(how_to_run, words, command[0], environment, places);
  if (found) found->how = to_string(place.where) + ", " + found->how;
  return found;
}

FoundProgram as_itself(const std::vector<std::string>& command, const Place& place) {
  FoundProgram found;
  found.program.path = place.path;
  found.program.argv = command;
  // A program found elsewhere than on PATH could not find itself by its bare name.
  if (place.where != Where::kOnPath) found.program.argv[0] = place.path;
  found.program.first_user_argument = 1;
  found.program.name = command[0];
  found.how = to_string(place.where);
  return found;
}

}  // namespace

std::string own_folder() {
  std::array<char, 4096> path{};
  const ssize_t size = ::readlink("/proc/self/exe", path.data(), path.size());
  const std::string_view file(path.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  return std::string(file.substr(0, file.rfind('/')));
}

std::string current_directory() {
  std::array<char, 4096> path{};
  return ::getcwd(path.data(), path.size()) == nullptr ? "." : path.data();
}

std::string environment_bin(const std::string& called, const std::string& directory) {
  const std::string file = path_in(directory, called);
  std::string bin = file.substr(0, file.rfind('/'));
  const bool is_environment =
      is_regular_file(bin + "/../pyvenv.cfg") || is_directory(bin + "/../conda-meta");
  return is_environment && is_executable(bin + "/python") ? bin : "";
}

std::string environment_bin() {
  // The argument of execve(): /proc/self/exe has links resolved, and argv[0] may have no path.
  const auto* const called = reinterpret_cast<const char*>(::getauxval(AT_EXECFN));
  return called == nullptr ? "" : environment_bin(called, current_directory());
}

Result<FoundPython> find_python(const Environment& environment,
                                const std::string& environment_bin) {
  if (const std::string chosen = value_or_empty(environment, "PYTHON_EXEC"); !chosen.empty()) {
    if (chosen.find('/') != std::string::npos) {
      if (is_executable(chosen)) return FoundPython{chosen, "PYTHON_EXEC"};
    } else if (auto found = find_on_path(chosen, environment)) {
      return FoundPython{*found, "PYTHON_EXEC"};
    }
    return fail(ErrorCode::kNotFound,
                "PYTHON_EXEC=" + chosen + " is no program that can be executed");
  }
  for (const char* const variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const std::string prefix = value_or_empty(environment, variable);
    if (prefix.empty()) continue;
    const std::string candidate = path_in(prefix, "bin/python");
    if (is_executable(candidate)) return FoundPython{candidate, variable};
  }
  if (!environment_bin.empty()) {
    return FoundPython{path_in(environment_bin, "python"), "ddprun's environment"};
  }
  for (const char* const name : {"python3", "python"}) {
    if (auto found = find_on_path(name, environment)) return FoundPython{*found, "PATH"};
  }
  return fail(ErrorCode::kNotFound,
              "no Python found: neither PYTHON_EXEC, VIRTUAL_ENV nor CONDA_PREFIX names one, "
              "ddprun lies in no virtual environment, and python3 and python are not on PATH (" +
                  search_path_of(environment) + ")");
}

Result<FoundProgram> find_program(RunAs run_as, const std::vector<std::string>& command,
                                  const Environment& environment, const SearchPlaces& places) {
  const std::string& name = command.front();
  if (name.empty()) return fail(ErrorCode::kNotFound, "the program's name is empty");
  if (run_as == RunAs::kModule) return run_by_python({"-m"}, command, name, environment, places);
  const auto place = locate(run_as, name, environment, places);
  if (!place) return fail(place.error());

  const std::string file = path_in(places.directory, place->path);
  const bool is_readable = ::access(file.c_str(), R_OK) == 0;
  const bool may_execute = !is_directory(file) && ::access(file.c_str(), X_OK) == 0;
  if (run_as == RunAs::kProgram && !may_execute) {
    return fail(ErrorCode::kPermissionDenied, "program " + place->path +
                                                  " may not be executed, and --no-python was "
                                                  "given; try chmod +x " +
                                                  place->path);
  }
  const bool is_script = run_as == RunAs::kRunPath || name.ends_with(".py") || !may_execute;
  if (run_as == RunAs::kProgram || !is_script) return as_itself(command, *place);
  if (!is_readable) {
    return fail(ErrorCode::kPermissionDenied, "script " + place->path + " may not be read");
  }
  const auto reason = may_execute ? std::nullopt : why_not_python(file);
  if (reason) {
    return fail(ErrorCode::kPermissionDenied, "program " + place->path + " cannot be executed: " +
                                                  *reason + "; try chmod +x " + place->path);
  }
  return as_script(run_as, command, *place, environment, places);
}

std::string identity_of(const agent::Program& program, const std::string& directory) {
  std::string file = program.path;
  if (program.is_python) {  // the user's words begin with the script or module
    file = program.argv.at(program.first_user_argument);
    if (program.argv.at(program.first_user_argument - 1) == "-m") return file;
  }
  return std::filesystem::path(path_in(directory, file)).lexically_normal();
}

}  // namespace ddprun::cli
