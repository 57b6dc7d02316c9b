// ddprun comes as two programs: ddprun, which starts quickly, and ddprun-tls, which is the same with TLS
// inside. OpenSSL is half of such a program, and every start would relocate it; who needs TLS becomes
// ddprun-tls by exec before anything is started, and begins again there. Users only call ddprun.
// Each program has one implementation of this: without_tls.cpp, with_tls.cpp.
#pragma once

#include "rendezvous/common/result.h"

namespace ddprun::cli {

// In ddprun-tls this does nothing. ddprun becomes the ddprun-tls beside it, with the same arguments,
// environment and descriptors; an Error says why it has not.
Result<void> become_tls_program(char** argv);

// The file that ddprun was executed by, links not followed; empty: not known.
const char* called_as(char** argv);

}  // namespace ddprun::cli
