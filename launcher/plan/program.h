// What the workers run: finds the program that was named, and the Python for it if it is a script.
// Looks at the file system and at nothing else; never starts anything.
//
// A name with a '/' is a path. A name without is looked for in the current directory, beside
// ddprun, then on PATH. Python runs a '.py' file, a folder with a __main__.py, and a regular file
// that can be read but not executed; anything else is executed itself. Options of torchrun's change
// that: see RunAs.
#pragma once

#include <string>
#include <vector>

#include "agent/job.h"
#include "rendezvous/common/environment.h"
#include "rendezvous/common/result.h"

namespace ddprun::cli {

struct SearchPlaces {
  std::string directory;             // the current one
  std::string ddprun_directory;      // where the ddprun that runs lies
  std::string environment_bin = "";  // of the ddprun that runs; see environment_bin()
};

enum class RunAs {
  kWhatItIs,  // as told above
  kModule,    // -m: the name is a Python module's, and no file is looked for
  kProgram,   // --no-python: executed itself whatever it is; as under torchrun, PATH comes first
  kRunPath,   // --run-path: a Python script, run by runpy inside torch's @record
};

struct FoundPython {
  std::string path;
  std::string why;  // "PYTHON_EXEC", "VIRTUAL_ENV", "CONDA_PREFIX", "ddprun's environment", "PATH"
};

struct FoundProgram {
  agent::Program program;
  std::string how;  // for --dry-run and the log: "in the current directory; Python from PATH"
};

// The folder of the file `called` if it is the bin/ of a virtual environment, or of one of conda's;
// else empty. A link from elsewhere to such a file counts as where it lies: pipx and `uv tool` make
// one, and the Python of their environment is not meant.
std::string environment_bin(const std::string& called, const std::string& directory);
std::string environment_bin();  // of this process, as it was called

// PYTHON_EXEC, else the active virtual environment's, else conda's, else that of `environment_bin`,
// else python3 or python on PATH. (torchrun: PYTHON_EXEC, else the one that it was installed with.)
Result<FoundPython> find_python(const Environment& environment, const std::string& environment_bin);

// Errors: kNotFound when nothing by that name is there, kPermissionDenied when it is there and
// cannot be run; main makes 127 and 126 of them, as a shell would.
Result<FoundProgram> find_program(RunAs run_as, const std::vector<std::string>& command,
                                  const Environment& environment, const SearchPlaces& places);

}  // namespace ddprun::cli
