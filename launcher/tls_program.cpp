// ddprun-tls: nothing more to become.
#include "launcher/other_program.h"

namespace ddprun::cli {

bool has(Part) { return true; }

}  // namespace ddprun::cli
