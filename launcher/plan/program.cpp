#include "launcher/plan/program.h"

#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <optional>
#include <string_view>

#include "launcher/cli/secrets.h"
#include "launcher/cli/text.h"
#include "launcher/plan/file_start.h"
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
  return path.empty() ? kDefaultPath : path;
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

}  // namespace

std::optional<std::string> find_executable(const std::string& name, const std::string& directory,
                                           const Environment& environment) {
  if (name.find('/') == std::string::npos) return find_on_path(name, environment);
  std::string path = path_in(directory, name);
  return is_executable(path) ? std::optional(std::move(path)) : std::nullopt;
}

namespace {

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

// Why a name that was not found may be written as it is.
std::string hint_of(std::string_view name, const SearchPlaces& places) {
  if (name.ends_with('\r')) {
    return "; it ends with the carriage return of a script with Windows' line ends, which sed -i "
           "'s/\\r$//' takes off";
  }
  const std::string path = path_in(places.directory, replaced(name, '.', "/"));
  const bool is_module = name.find('/') == std::string_view::npos &&
                         (is_regular_file(path + ".py") || is_python_folder(path));
  return is_module ? "; a module of this name is there: ddprun -m " + std::string(name) : "";
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
  return fail(ErrorCode::kNotFound, "program " + shown_text(name) +
                                        " not found: there is no such file" + from +
                                        hint_of(name, places));
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
                                        " and on PATH (" + search_path_of(environment) + ")" +
                                        hint_of(name, places));
}

// A pipe is left to the program: what is read here would be missing there. Nothing: the file cannot be read.
std::optional<std::string> start_of(const std::string& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) != 0) return std::nullopt;
  if (!S_ISREG(status.st_mode)) return "";
  const rdzv::UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  return read_from(fd.get(), kFileStartBytes);
}

// The execute permission is there, but the file system does not let it count.
bool is_kept_by_mount(const std::string& file) {
  struct stat status {};
  struct statvfs mount {};
  return ::stat(file.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
         (status.st_mode & (S_IXUSR | S_IXGRP | S_IXOTH)) != 0 &&
         ::statvfs(file.c_str(), &mount) == 0 && (mount.f_flag & ST_NOEXEC) != 0;
}

tl::unexpected<Error> refused(const Place& place, const std::string& why) {
  return fail(ErrorCode::kPermissionDenied, "program " + place.path + " " + why);
}

// The begin and the end of a sentence about a file that may not be executed.
struct NotExecutable {
  std::string why;
  std::string remedy;
};
NotExecutable not_executable(const std::string& path, bool is_noexec) {
  if (is_noexec) {
    return {"its file system is mounted noexec",
            "copy it to a file system whose programs may be executed"};
  }
  return {"it has no execute permission", "try chmod +x " + path};
}

// What it is, if Python would only say "SyntaxError".
std::optional<std::string> what_else_than_python(const std::string& start,
                                                 const std::optional<FirstLine>& first_line) {
  if (is_elf(start)) return "a binary program";
  if (!first_line) return std::nullopt;
  const std::string& interpreter = first_line->interpreter;
  const bool is_some_python =
      interpreter.find("py", interpreter.rfind('/') + 1) != std::string::npos;
  return is_some_python ? std::nullopt : std::optional("a script for " + interpreter);
}

// Text without a first line that says what runs it, but with a name that does.
bool is_named_as_shell_script(std::string_view name) {
  constexpr std::string_view kSuffixes[] = {".sh", ".bash", ".zsh", ".ksh", ".csh", ".fish"};
  return std::ranges::any_of(kSuffixes, [name](auto suffix) { return name.ends_with(suffix); });
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

// `python -u`, the options, the words of `how_to_run`, then the user's words, beginning with the script or module.
FoundProgram run_by(const FoundPython& python, const std::vector<std::string>& options,
                    const std::vector<std::string>& how_to_run,
                    const std::vector<std::string>& user_words, const std::string& name) {
  FoundProgram found;
  found.program.path = python.path;
  found.program.argv = {python.path, "-u"};
  auto& argv = found.program.argv;
  argv.insert(argv.end(), options.begin(), options.end());
  found.program.python_options = argv.size() - 1;
  argv.insert(argv.end(), how_to_run.begin(), how_to_run.end());
  found.program.first_user_argument = argv.size();
  argv.insert(argv.end(), user_words.begin(), user_words.end());
  found.program.name = name;
  found.program.is_python = true;
  found.how = "run by " + python.path + " (from " + python.why + ")";
  return found;
}

std::vector<std::string> script_words(const std::vector<std::string>& command, const Place& place) {
  std::vector<std::string> words = command;
  // A script in the current directory keeps its name as typed: tracebacks and sys.argv show it.
  if (place.where == Where::kBeside || place.where == Where::kOnPath) words[0] = place.path;
  return words;
}

Result<FoundProgram> as_script(RunAs run_as, const std::vector<std::string>& command,
                               const Place& place, const Environment& environment,
                               const SearchPlaces& places) {
  auto python = find_python(environment, places.environment_bin);
  if (!python) return fail(python.error());
  std::vector<std::string> how_to_run;
  if (run_as == RunAs::kRunPath) how_to_run = {"-c", kRunPathCode};
  FoundProgram found = run_by(*python, {}, how_to_run, script_words(command, place), command[0]);
  found.how = to_string(place.where) + ", " + found.how;
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

// As execve() or env finds it. Nothing: it is not there.
std::optional<std::string> find_interpreter(const FirstLine& line, const Environment& environment,
                                            const SearchPlaces& places) {
  if (line.is_on_path) return find_on_path(line.interpreter, environment);
  std::string path = path_in(places.directory, line.interpreter);
  return is_executable(path) ? std::optional(std::move(path)) : std::nullopt;
}

// A script that may be executed.
Result<FoundProgram> by_first_line(const FirstLine& line, const std::vector<std::string>& command,
                                   const Place& place, const Environment& environment,
                                   const SearchPlaces& places) {
  const auto interpreter = find_interpreter(line, environment, places);
  if (!line.names_python && line.ends_in_return) {
    return refused(place,
                   "cannot be executed: its first line ends with Windows' carriage return, so " +
                       line.interpreter + " is not found; convert it, for example by " +
                       "sed -i 's/\\r$//' " + place.path);
  }
  if (!line.names_python && !line.is_on_path && !interpreter) {
    return refused(place, "cannot be executed: its first line names " + line.interpreter +
                              ", which is not there");
  }
  if (!line.names_python) return as_itself(command, place);
  if (interpreter && !line.ends_in_return) {
    if (!line.can_have_more_options) return as_itself(command, place);
    FoundProgram found = run_by({*interpreter, "its first line"}, line.options, {},
                                script_words(command, place), command[0]);
    found.how = to_string(place.where) + ", " + found.how;
    return found;
  }
  auto found = as_script(RunAs::kWhatItIs, command, place, environment, places);
  if (found) {
    found->warning = "the first line of " + place.path +
                     (line.ends_in_return ? " ends with Windows' carriage return"
                                          : " names " + line.interpreter + ", which is not there") +
                     "; it is run by " + found->program.path;
  }
  return found;
}

}  // namespace

std::string own_file() {
  std::array<char, 4096> path{};
  const ssize_t size = ::readlink("/proc/self/exe", path.data(), path.size());
  return {path.data(), size > 0 ? static_cast<std::size_t>(size) : 0};
}

std::string own_folder() {
  const std::string file = own_file();
  return file.substr(0, file.rfind('/'));
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
  for (const char* const variable : {"PYTHON_EXEC", kCallersPython}) {
    const std::string chosen = value_or_empty(environment, variable);
    if (chosen.empty()) continue;
    if (chosen.find('/') != std::string::npos) {
      if (is_executable(chosen)) return FoundPython{chosen, variable};
    } else if (auto found = find_on_path(chosen, environment)) {
      return FoundPython{*found, variable};
    }
    return fail(ErrorCode::kNotFound,
                std::string(variable) + "=" + chosen + " is no program that can be executed");
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
  if (run_as == RunAs::kModule) {
    return find_python(environment, places.environment_bin).map([&](const FoundPython& python) {
      return run_by(python, {}, {"-m"}, command, name);
    });
  }
  const auto place = locate(run_as, name, environment, places);
  if (!place) return fail(place.error());

  const std::string file = path_in(places.directory, place->path);
  const bool may_execute = !is_directory(file) && ::access(file.c_str(), X_OK) == 0;
  const bool is_noexec = !may_execute && is_kept_by_mount(file);
  const auto [why_not, remedy] = not_executable(place->path, is_noexec);
  if (run_as == RunAs::kProgram) {
    if (may_execute) return as_itself(command, *place);
    return refused(*place, "cannot be executed, as --no-python asks: " + why_not + "; " + remedy);
  }
  const bool is_py = name.ends_with(".py");
  const bool is_script = run_as == RunAs::kRunPath || is_py;
  if (::access(file.c_str(), R_OK) != 0) {
    if (may_execute && !is_script) return as_itself(command, *place);
    return refused(*place, "may not be read");
  }
  const auto read = start_of(file);
  if (!read && may_execute && !is_script) return as_itself(command, *place);
  const std::string start = read.value_or("");
  const auto first_line = first_line_of(start);
  if (const auto what = what_else_than_python(start, first_line); what && !may_execute && !is_py) {
    return refused(*place,
                   "cannot be executed: it is " + *what + ", and " + why_not + "; " + remedy);
  }
  // Without the execute permission a first line does not count, as under torchrun.
  if (!is_script && first_line && (may_execute || is_noexec)) {
    return by_first_line(*first_line, command, *place, environment, places);
  }
  if (!is_script && may_execute && (is_elf(start) || !may_be_python(start))) {
    return as_itself(command, *place);
  }
  if (!is_script && is_named_as_shell_script(name)) {
    return refused(*place,
                   "is a shell script by its name, but its first line does not say what runs it; "
                   "begin it with #!/bin/sh or the like");
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
