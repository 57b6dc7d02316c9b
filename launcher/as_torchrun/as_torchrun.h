// ddprun --as-torchrun -- COMMAND: this process becomes the command, and what it starts finds ddprun
// where it looks for torchrun. Nothing is installed: PATH and PYTHONPATH begin with parts of a
// temporary folder, which another process removes when this one has ended.
#pragma once

#include <string>

#include "launcher/cli/command_line.h"
#include "launcher/settings/settings.h"
#include "rendezvous/common/environment.h"
#include "rendezvous/common/result.h"

namespace ddprun::cli {

// Returns only an error: kNotFound and kPermissionDenied are about the command. The other options on
// the line become variables (DDPRUN_…), for each ddprun that is started in torchrun's place. `called`: how this one was
// executed; `configured`: by --config.
Error become_as_torchrun(const CommandLine& line, const FileValues& configured,
                         const Environment& environment, const std::string& called);

// Whether this process is in torchrun's place, and so has its defaults. `name`: argv[0], as the folder's link and
// as_torchrun.py give it.
bool is_called_torchrun(const std::string& name);

// How the ddprun was executed in whose tree this one is, in torchrun's place; empty: not known. The link's own path says nothing of
// an environment of Python.
std::string called_by_path(const Environment& environment);

}  // namespace ddprun::cli
