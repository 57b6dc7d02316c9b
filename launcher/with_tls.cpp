// ddprun-tls: nothing more to become, and it was called by ddprun.
#include "launcher/tls_program.h"

namespace ddprun::cli {

const char* called_as(char** argv) { return argv[0] == nullptr ? "" : argv[0]; }

Result<void> become_tls_program(char**) { return {}; }

}  // namespace ddprun::cli
