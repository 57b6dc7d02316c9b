// What Python programs get without being asked, as zip archives in memory: Python imports from wherever a
// descriptor leads, so that ddprun stays one file and nothing is left on a disk. Each holds a
// sitecustomize, which goes on to the user's. Pure but for the files.
#pragma once

#include <string_view>

#include "agent/job.h"
#include "rendezvous/common/result.h"
#include "rendezvous/common/unique_fd.h"

namespace ddprun::agent {

// Made by agent/embed.cmake.
extern const std::string_view
    kHooksArchive;  // sitecustomize.py here, and the package in worker_lib/python
extern const std::string_view
    kHoldingArchive;  // agent/standby/python: holds a program before its first line

// Whether the program is Python, and DDPRUN_PYTHON_HOOKS is not 0.
bool wants_python_hooks(const Job& job);

// Sealed, because all who inherit it read the same file. `name`: for who looks at /proc.
Result<rdzv::UniqueFd> file_in_memory(const char* name, std::string_view bytes);

// Python imports the archive's sitecustomize before it looks at the program, which does not see this.
void put_first_on_python_path(ChildEnvironment& environment, int archive);

}  // namespace ddprun::agent
