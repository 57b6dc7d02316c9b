// What the workers run: finds the program, and the Python for it if it is a script. Reads only the
// file system; never starts anything.
//
// A name with a '/' is a path. Any other name is looked for in the current directory, beside
// ddprun, then on PATH. torchrun gives every file to its Python. Here:
// - The active Python runs a '.py' file, a folder with a __main__.py, a file that may be read but
//   not executed, and text or an archive without a first line "#!..." (execve() refuses those).
// - A first line that names a Python is followed: that Python, with the line's options and -u. If
//   that Python is not there, or the line ends in '\r', the active one runs the script.
// - Programs and scripts for other interpreters are executed directly.
// A mount with noexec forbids only the last. torchrun's options change all of that: see RunAs.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "agent/job.h"
#include "rendezvous/common/environment.h"
#include "rendezvous/common/result.h"

namespace ddprun::cli {

struct SearchPlaces {
  std::string directory;  // the current one
  // That of the running ddprun: own_folder(). Called only for a name that is not found in the current one.
  std::function<std::string()> ddprun_directory;
  std::string environment_bin = "";  // of the running ddprun; see environment_bin()
};

enum class RunAs {
  kWhatItIs,  // as described above
  kModule,    // -m: the name of a Python module; no file is looked for
  kProgram,   // --no-python: always executed directly; as under torchrun, PATH comes first
  kRunPath,   // --run-path: a Python script, run by runpy inside torch's @record
};

// A Python that becomes or starts ddprun (python -m ddprun, ddprun.launch) names itself to it by this variable.
inline constexpr const char* kCallersPython = "DDPRUN_CALLERS_PYTHON";

struct FoundPython {
  std::string path;
  // "PYTHON_EXEC", "DDPRUN_CALLERS_PYTHON", "VIRTUAL_ENV", "CONDA_PREFIX", "ddprun's environment", "PATH"
  std::string why;
};

struct FoundProgram {
  agent::Program program;
  std::string how;  // for --dry-run and the log: "in the current directory; Python from PATH"
  std::string warning =
      "";  // the script's first line could not be followed; empty: it could, or there is none
};

inline constexpr const char* kDefaultPath =
    "/usr/local/bin:/usr/bin:/bin";  // where there is no PATH

// The file that a shell which is started in this folder executes by this name: on PATH, unless the name is a path.
std::optional<std::string> find_executable(const std::string& name, const std::string& directory,
                                           const Environment& environment);

std::string own_file();    // the file of this process, links followed; empty: not known
std::string own_folder();  // likewise, its folder
std::string current_directory();

// The folder of the file `called` if it is the bin/ of a virtual or conda environment, else empty. A
// link to such a file from elsewhere counts as a file of its own folder: pipx and `uv tool` make
// such links, and a user of these does not mean the Python of that environment.
std::string environment_bin(const std::string& called, const std::string& directory);
std::string environment_bin();  // of this process, as it was called

// PYTHON_EXEC, else the caller's Python, else the active virtual environment's, else conda's, else that of `environment_bin`,
// else python3 or python on PATH. (torchrun: PYTHON_EXEC, else the one that it was installed with.)
Result<FoundPython> find_python(const Environment& environment, const std::string& environment_bin);

// Errors: kNotFound if there is no such program, kPermissionDenied if it cannot be run; main makes
// them the exit codes 127 and 126, as a shell does.
Result<FoundProgram> find_program(RunAs run_as, const std::vector<std::string>& command,
                                  const Environment& environment, const SearchPlaces& places);

// What is the same when the program is started again, whatever its arguments are: the absolute path of program or
// script, or a module's name. Pure.
std::string identity_of(const agent::Program& program, const std::string& directory);

}  // namespace ddprun::cli
