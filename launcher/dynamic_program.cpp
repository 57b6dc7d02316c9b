// ddprun-dynamic: all but TLS (without_tls.cpp).
#include "launcher/other_program.h"

namespace ddprun::cli {

bool has(Part part) { return part == Part::kSystemLibraries; }

}  // namespace ddprun::cli
