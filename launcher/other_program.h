// ddprun comes as three programs, of which users call the first only:
//
//   ddprun          linked statically, so that no C library is loaded and bound at its start; all that a job of one
//                   node with a given number of workers needs
//   ddprun-dynamic  the same, but the system's C library is loaded: only that can load what the system has of name
//                   services (hosts), NVML (counts GPUs) and MUNGE (proves to other nodes whose a node is)
//   ddprun-tls      the same as ddprun-dynamic, with OpenSSL inside, which is half of such a program
//
// Who needs more than the first becomes another one by exec before anything is started, and begins again there.
// What a program has is in static_program.cpp, dynamic_program.cpp and tls_program.cpp.
#pragma once

#include "rendezvous/common/result.h"

namespace ddprun::cli {

enum class Part { kSystemLibraries, kTls };

// Of the program that runs.
bool has(Part part);

// Does nothing in a program that has the part. Else becomes the one beside it that has, with the same arguments,
// environment and descriptors; an Error says why it has not.
Result<void> become_program_with(Part part, char** argv);

// The file that ddprun was executed by, links not followed; empty: not known.
const char* called_as(char** argv);

}  // namespace ddprun::cli
